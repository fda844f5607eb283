"""``python3 -m e2e.bench``: benchmarks of the gateway; ``--help`` lists them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from e2e.bench import idle, limits, micro, path, peers, rig, scale, syscalls
from e2e.bench.measure import Length
from tools import paths, progress
from tools.setup import venv

_ABOUT = {
    "path": "CPU time per request and per frame, with ratios to nginx",
    "limits": "CPU time per request with limits, budgets and metadata, and without",
    "micro": "nanoseconds per step of a request",
    "idle": "memory of idle streams",
    "scale": "CPU time per request with 1,000 to 100,000 keys and 10 to 1,000 models",
    "syscalls": "system calls per request, counted by strace",
    "affinity": "cached share of the prompts of conversations with two real engines, by balancing policy",
    "engines": "time to first token and between tokens of real engines, directly and through the gateway",
    "soak": "memory and file descriptors under mixed load and faults",
    "outage": "completeness of usage after an hour without a control plane",
}

# Commands that wait until the machine is otherwise idle.
_WAITING = ("path", "limits", "scale")

# Commands that need the environment of the tests.
_IN_VENV = ("affinity", "engines", "soak", "outage")


def main() -> int:
    """Returns the exit status."""
    arguments = _parser().parse_args()
    try:
        if arguments.command in _IN_VENV and not find_spec("httpx"):
            _restart_in(venv.tests_venv())
        if not arguments.no_build:
            rig.build()
        tools = rig.Tools(gateway=arguments.gateway.absolute())
        if arguments.command in _IN_VENV:
            return 0 if _run_in_venv(arguments, tools) else 1
        _run(arguments, tools)
    except (progress.StepFailed, ValueError, OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _restart_in(environment: Path) -> None:
    """Restarts the same command in a virtual environment; does not return."""
    python = environment / "bin" / "python"
    os.environ["PYTHONPATH"] = str(paths.CHECKOUT)
    os.execv(python, [str(python), "-m", "e2e.bench", *sys.argv[1:]])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m e2e.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in _ABOUT.items():
        one = commands.add_parser(name, help=about)
        one.add_argument("--out", type=Path, metavar="FILE", help="write the results as JSON")
        one.add_argument("--no-build", action="store_true", help="use the programs in target/release")
        one.add_argument("--gateway", type=Path, default=rig.Tools().gateway, help="path of the gateway")
        if name not in ("limits", "micro", "scale", *_IN_VENV):
            usual = ("fastllm",) if name == "idle" else peers.DEFAULT
            one.add_argument(
                "--peers", default=",".join(usual), help=f"comma-separated list of {', '.join(peers.ALL)}, or all"
            )
        if name == "affinity":
            one.add_argument("--conversations", type=int, default=10)
            one.add_argument("--turns", type=int, default=10)
        elif name == "engines":
            # A single round has no interval.
            one.add_argument("--rounds", type=int, choices=range(2, 51), metavar="N", default=4)
            one.add_argument("--litellm", action="store_true", help="also measure LiteLLM")
        elif name == "soak":
            one.add_argument("--seconds", type=float, default=1800)
        elif name == "outage":
            one.add_argument("--requests", type=int, default=360_000, help="default: an hour at 100 per second")
            one.add_argument(
                "--rate", type=int, default=3_000, help="requests per second; 100 makes the outage last an hour"
            )
        elif name == "micro":
            one.add_argument("--rounds", type=int, choices=range(1, 51), metavar="N", default=9)
        elif name == "idle":
            one.add_argument("--streams", type=int, default=9_500)
        else:
            _length(one, waits=name in _WAITING)
    return parser


def _length(parser: argparse.ArgumentParser, *, waits: bool) -> None:
    usual = Length()
    parser.add_argument("--rounds", type=int, choices=range(1, 51), metavar="N", default=usual.rounds)
    parser.add_argument("--window-ms", type=int, default=usual.window_ms)
    if waits:
        parser.add_argument(
            "--max-wait",
            type=float,
            default=usual.max_wait,
            metavar="SECONDS",
            help="total time to wait while other processes use the machine, and to repeat disturbed windows",
        )


def _run(arguments: argparse.Namespace, tools: rig.Tools) -> None:
    if arguments.command == "idle":
        idle.run(peers.chosen(arguments.peers), arguments.streams, tools, arguments.out)
        return
    if arguments.command == "micro":
        micro.run(tools, arguments.rounds, arguments.out)
        return
    length = Length(rounds=arguments.rounds, window_ms=arguments.window_ms)
    if arguments.command in _WAITING:
        length = replace(length, max_wait=arguments.max_wait)
    if arguments.command == "scale":
        scale.run(length, tools, arguments.out)
    elif arguments.command == "limits":
        limits.run(length, tools, arguments.out)
    elif arguments.command == "syscalls":
        syscalls.run(peers.chosen(arguments.peers), length, tools, arguments.out)
    else:
        path.run(peers.chosen(arguments.peers), length, tools, arguments.out)


def _run_in_venv(arguments: argparse.Namespace, tools: rig.Tools) -> bool:
    """Runs a command that needs the environment of the tests; returns whether its criterion is met."""
    # These modules import packages of that environment.
    from e2e.bench import affinity, conversations, engines, outage, soak

    if arguments.command == "affinity":
        return affinity.run(tools, conversations.Size(arguments.conversations, arguments.turns), arguments.out)
    if arguments.command == "engines":
        return engines.run(tools, arguments.rounds, arguments.out, litellm=arguments.litellm)
    if arguments.command == "outage":
        return outage.run(tools, arguments.requests, arguments.rate, arguments.out)
    return soak.run(tools, arguments.seconds, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
