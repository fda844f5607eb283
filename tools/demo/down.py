"""``make demo-down``: removes everything that the demo started; packages and caches stay."""

from __future__ import annotations

import sys

from tools import progress
from tools.demo import parts


def main() -> int:
    """Returns the exit status."""
    # Parts are found by name; the address is irrelevant here.
    address = "127.0.0.1"
    failed = False
    for part in (*parts.engines(address), parts.postgres(address), parts.cluster()):
        try:
            part.down()
        except progress.StepFailed as error:
            failed = True
            print(error, file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
