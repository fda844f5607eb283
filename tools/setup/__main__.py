"""``python3 -m tools.setup [part …]``: prepares this machine for the cluster and the tests."""

from __future__ import annotations

import argparse
import sys

from tools import paths, progress
from tools.setup import PARTS, ensure


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.setup", description=ensure.__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(PARTS)}; default: all")
    arguments = parser.parse_args()
    try:
        ensure(*arguments.parts)
    except (progress.StepFailed, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    progress.say(f"ready; cache: {paths.cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
