"""``python3 -m e2e.bench path|idle|scale|syscalls``: measures the gateway beside its peers on this machine."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from e2e import progress
from e2e.bench import idle, path, peers, rig, scale, syscalls
from e2e.bench.measure import Length

_ABOUT = {
    "path": "CPU a request and a frame, ratios to nginx",
    "idle": "memory of streams that say nothing",
    "scale": "CPU a request with 1,000 to 100,000 keys and 10 to 1,000 models",
    "syscalls": "system calls a request, by strace",
}


def main() -> int:
    """Returns the exit status."""
    asked = _parser().parse_args()
    try:
        if not asked.no_build:
            rig.build()
        _run(asked)
    except (progress.StepFailed, ValueError, OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m e2e.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in _ABOUT.items():
        one = commands.add_parser(name, help=about)
        one.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
        one.add_argument("--no-build", action="store_true", help="measure what lies in target/release")
        one.add_argument("--gateway", type=Path, default=rig.Tools().gateway, help="our program")
        if name != "scale":
            usual = ("fastllm",) if name == "idle" else peers.DEFAULT
            one.add_argument("--peers", default=",".join(usual), help=f"of {', '.join(peers.ALL)}; or all")
        if name == "idle":
            one.add_argument("--streams", type=int, default=9_500)
        else:
            usual_length = Length()
            one.add_argument("--rounds", type=int, choices=range(1, 51), metavar="N", default=usual_length.rounds)
            one.add_argument("--window-ms", type=int, default=usual_length.window_ms)
        if name in ("path", "scale"):
            one.add_argument(
                "--patience",
                type=float,
                default=usual_length.patience,
                metavar="SECONDS",
                help="to wait, in all, while others use this machine, and to measure again what they disturbed",
            )
    return parser


def _run(asked: argparse.Namespace) -> None:
    tools = rig.Tools(gateway=asked.gateway.absolute())
    if asked.command == "idle":
        idle.run(peers.chosen(asked.peers), asked.streams, tools, asked.out)
        return
    length = Length(rounds=asked.rounds, window_ms=asked.window_ms)
    if asked.command in ("path", "scale"):
        length = replace(length, patience=asked.patience)
    if asked.command == "scale":
        scale.run(length, tools, asked.out)
    elif asked.command == "syscalls":
        syscalls.run(peers.chosen(asked.peers), length, tools, asked.out)
    else:
        path.run(peers.chosen(asked.peers), length, tools, asked.out)


if __name__ == "__main__":
    sys.exit(main())
