"""``python3 -m tools.suite check|test``: what ``make check`` and ``make test`` run.

``check`` reads the tree: format, lints, dependency policy, borders and sizes, secrets, Dockerfiles, links.
``test`` is ``check``, then every test: Rust's against a real PostgreSQL and a real API server, then those
that cross processes on a local Kubernetes. It ends with the counts.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools import progress, setup
from tools.suite import checks, tests


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.suite", description=__doc__)
    parser.add_argument("command", choices=("check", "test"))
    command = parser.parse_args().command
    began = time.monotonic()
    try:
        if command == "check":
            setup.ensure("rust", "tools")
            checks.run()
            progress.say("all checks passed")
            return 0
        setup.ensure()
        checks.run()
        counts = tests.run()
    except (progress.StepFailed, ValueError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    progress.say(f"everything took {(time.monotonic() - began) / 60:.1f} minutes")
    print(counts.line(), flush=True)
    return 0 if counts.good() else 1


if __name__ == "__main__":
    sys.exit(main())
