"""``python3 -m e2e.clients [pytest arguments]``: tests all clients; ``make test`` includes only OpenAI's for Python."""

from __future__ import annotations

import subprocess
import sys

from tools import paths, progress, setup
from tools.setup import venv


def main() -> int:
    """Returns the exit status."""
    try:
        setup.ensure("rust", "postgres", "python")
        python = venv.clients_venv() / "bin" / "python"
    except (progress.StepFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    command = [python, "-m", "pytest", "-q", "-m", "", "-rxX", "e2e/clients", *sys.argv[1:]]
    return subprocess.run(command, cwd=paths.CHECKOUT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
