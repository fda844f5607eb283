"""``python3 -m tools.images build --tag TAG …``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import progress
from tools.images import REPOSITORY, build


def main() -> int:
    """Prints the archive and the names of each image; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.images", description="Build the product's images without Docker."
    )
    command = parser.add_subparsers(dest="command", required=True).add_parser(
        "build", help="build the images from compiled binaries"
    )
    command.add_argument("--tag", action="append", help="tag of the images; repeatable (default dev)")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="IMAGE",
        help="build only fastllm-proxy or fastllm-operator; repeatable",
    )
    command.add_argument("--repository", default=REPOSITORY, help=f"prefix of the image names (default {REPOSITORY})")
    command.add_argument("--binaries", type=Path, help="folder of the binaries (default target/release)")
    arguments = parser.parse_args()
    try:
        for image in build(
            arguments.tag or ["dev"], only=arguments.only, repository=arguments.repository, binaries=arguments.binaries
        ).values():
            print(image.archive, *image.names)
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
