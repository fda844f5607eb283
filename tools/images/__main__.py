"""``python3 -m tools.images build --tag TAG …``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import progress
from tools.images import REPOSITORY, build


def main() -> int:
    """Prints each image's archive and names; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.images", description="The product's images, without Docker."
    )
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "build", help="build from compiled binaries"
    )
    command.add_argument("--tag", action="append", help="may be given several times (default dev)")
    command.add_argument(
        "--only", action="append", default=[], metavar="IMAGE", help="fastllm-proxy or fastllm-operator"
    )
    command.add_argument(
        "--repository", default=REPOSITORY, help=f"what stands before the image's name (default {REPOSITORY})"
    )
    command.add_argument("--binaries", type=Path, help="the folder of the binaries (default target/release)")
    asked = parser.parse_args()
    try:
        for image in build(
            asked.tag or ["dev"], only=asked.only, repository=asked.repository, binaries=asked.binaries
        ).values():
            print(image.archive, *image.names)
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
