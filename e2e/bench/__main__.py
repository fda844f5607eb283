"""``python3 -m e2e.bench``: measures the gateway here, in many ways; ``--help`` lists them."""

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
    "path": "CPU a request and a frame, ratios to nginx",
    "limits": "CPU a request with limits, budgets and metadata, and without",
    "micro": "nanoseconds of each step of a request",
    "idle": "memory of streams that say nothing",
    "scale": "CPU a request with 1,000 to 100,000 keys and 10 to 1,000 models",
    "syscalls": "system calls a request, by strace",
    "affinity": "how much of conversations' prompts two real engines have in their caches, by policy",
    "engines": "time to the first token and between tokens of real engines, directly and through",
    "soak": "memory and descriptors under everything at once",
    "outage": "whether usage is whole after an hour without a control plane",
}

# Those that wait for a quiet machine.
_PATIENT = ("path", "limits", "scale")

# Those that speak HTTP themselves, in the tests' venv.
_IN_VENV = ("affinity", "engines", "soak", "outage")


def main() -> int:
    """Returns the exit status."""
    arguments = _parser().parse_args()
    try:
        if arguments.command in _IN_VENV and not find_spec("httpx"):
            _again_in(venv.tests_venv())
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


def _again_in(environment: Path) -> None:
    """Goes on as the same command in a venv; does not return."""
    python = environment / "bin" / "python"
    os.environ["PYTHONPATH"] = str(paths.CHECKOUT)
    os.execv(python, [str(python), "-m", "e2e.bench", *sys.argv[1:]])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m e2e.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in _ABOUT.items():
        one = commands.add_parser(name, help=about)
        one.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
        one.add_argument("--no-build", action="store_true", help="measure what lies in target/release")
        one.add_argument("--gateway", type=Path, default=rig.Tools().gateway, help="our program")
        if name not in ("limits", "micro", "scale", *_IN_VENV):
            usual = ("fastllm",) if name == "idle" else peers.DEFAULT
            one.add_argument("--peers", default=",".join(usual), help=f"of {', '.join(peers.ALL)}; or all")
        if name == "affinity":
            one.add_argument("--conversations", type=int, default=10)
            one.add_argument("--turns", type=int, default=10)
        elif name == "engines":
            # Fewer have no intervals.
            one.add_argument("--rounds", type=int, choices=range(2, 51), metavar="N", default=4)
            one.add_argument("--litellm", action="store_true", help="LiteLLM beside")
        elif name == "soak":
            one.add_argument("--seconds", type=float, default=1800)
        elif name == "outage":
            one.add_argument("--requests", type=int, default=360_000, help="an hour of 100 a second")
            one.add_argument("--rate", type=int, default=3_000, help="a second; 100 for an outage of an hour")
        elif name == "micro":
            one.add_argument("--rounds", type=int, choices=range(1, 51), metavar="N", default=9)
        elif name == "idle":
            one.add_argument("--streams", type=int, default=9_500)
        else:
            _length(one, patient=name in _PATIENT)
    return parser


def _length(parser: argparse.ArgumentParser, *, patient: bool) -> None:
    usual = Length()
    parser.add_argument("--rounds", type=int, choices=range(1, 51), metavar="N", default=usual.rounds)
    parser.add_argument("--window-ms", type=int, default=usual.window_ms)
    if patient:
        parser.add_argument(
            "--patience",
            type=float,
            default=usual.patience,
            metavar="SECONDS",
            help="to wait, in all, while others use this machine, and to measure again what they disturbed",
        )


def _run(arguments: argparse.Namespace, tools: rig.Tools) -> None:
    if arguments.command == "idle":
        idle.run(peers.chosen(arguments.peers), arguments.streams, tools, arguments.out)
        return
    if arguments.command == "micro":
        micro.run(tools, arguments.rounds, arguments.out)
        return
    length = Length(rounds=arguments.rounds, window_ms=arguments.window_ms)
    if arguments.command in _PATIENT:
        length = replace(length, patience=arguments.patience)
    if arguments.command == "scale":
        scale.run(length, tools, arguments.out)
    elif arguments.command == "limits":
        limits.run(length, tools, arguments.out)
    elif arguments.command == "syscalls":
        syscalls.run(peers.chosen(arguments.peers), length, tools, arguments.out)
    else:
        path.run(peers.chosen(arguments.peers), length, tools, arguments.out)


def _run_in_venv(arguments: argparse.Namespace, tools: rig.Tools) -> bool:
    """Whether what was measured is as it should be."""
    # They import what only the venv has.
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
