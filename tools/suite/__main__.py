"""``python3 -m tools.suite check|test-unit|test``: implements the targets of the same names in the Makefile.

``check`` reads the tree: format, lints, repository rules, dependency policy, secrets, spelling, Dockerfiles, links.
``test-unit`` runs the unit tests of Rust and Python and the repository's rules, without a cluster or a database.
``test`` runs ``check``, then every test: Rust's with a real PostgreSQL and a real API server, fuzzing, and the
end-to-end tests on a local Kubernetes. It prints the totals at the end.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools import progress, setup
from tools.suite import checks, tests


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("check", "test-unit", "test"))
    command = parser.parse_args().command
    began = time.monotonic()
    try:
        if command == "check":
            setup.ensure("rust", "tools")
            checks.run()
            progress.say("all checks passed")
            return 0
        if command == "test-unit":
            setup.ensure("rust", "python", "tools")
            counts = tests.run_unit()
        else:
            setup.ensure()
            checks.run()
            counts = tests.run()
    except (progress.StepFailed, ValueError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    progress.say(f"{command} took {(time.monotonic() - began) / 60:.1f} minutes")
    print(counts.line(), flush=True)
    return 0 if counts.good() else 1


if __name__ == "__main__":
    sys.exit(main())
