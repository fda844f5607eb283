"""``python3 -m e2e.images build --tag TAG …``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from e2e import progress
from e2e.images import REPOSITORY, build


def main() -> int:
    """Prints each image's archive and names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m e2e.images", description="The product's images, without Docker.")
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "build", help="build from compiled binaries"
    )
    command.add_argument("--tag", action="append", help="may be given several times (default e2e)")
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
            asked.tag or ["e2e"], only=asked.only, repository=asked.repository, binaries=asked.binaries
        ).values():
            print(image.archive, *image.names)
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
