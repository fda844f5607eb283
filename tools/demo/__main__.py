"""``python3 -m tools.demo up|down``: what ``make demo`` and ``make demo-down`` run.

``up`` needs nothing but Python, Rust and root: it makes the machine ready, then goes on in the tests' venv.
"""

from __future__ import annotations

import argparse
import os
import sys

from tools import paths, progress, setup
from tools.setup import venv


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.demo", description=__doc__)
    parser.add_argument("command", choices=("up", "down"))
    command = parser.parse_args().command
    try:
        if command == "up":
            setup.ensure("rust", "full", "images", "postgres", "python")
        python = venv.tests_venv() / "bin" / "python"
    except (progress.StepFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    os.chdir(paths.CHECKOUT)
    os.execv(python, [str(python), "-m", f"tools.demo.{command}"])


if __name__ == "__main__":
    sys.exit(main())
