"""``python3 -m tools.demo up|down``: implements ``make demo`` and ``make demo-down``.

``up`` needs only Python, Rust and root. It installs and builds everything else, then continues in the virtual
environment of the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from tools import cargo, paths, progress, setup
from tools.setup import debian, venv

_PARTS = ("full", "images", "postgres", "python")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("up", "down"))
    command = parser.parse_args().command
    try:
        if command == "up":
            prepare(len(os.sched_getaffinity(0)))
        python = venv.tests_venv() / "bin" / "python"
    except (progress.StepFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    os.chdir(paths.CHECKOUT)
    os.execv(python, [str(python), "-m", f"tools.demo.{command}"])


def prepare(cores: int) -> None:
    """Installs and builds what the demo runs. Raises StepFailed."""
    setup.ensure("rust")
    debian.install_missing({"api", *_PARTS})
    if cores > 2:
        with _setup_in_background():
            cargo.build(terminal=False)
    else:
        # Each build alone keeps two cores busy: side by side they take as long as in sequence, with the memory of
        # both. The next process builds the product's programs.
        setup.ensure(*_PARTS)


@contextlib.contextmanager
def _setup_in_background() -> Iterator[None]:
    """Builds Kubernetes' programs and the virtual environment while the body of the ``with`` statement runs."""
    command = [sys.executable, "-m", "tools.setup", *_PARTS]
    with subprocess.Popen(command, cwd=paths.CHECKOUT, start_new_session=True) as background:
        try:
            yield
            background.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(background.pid, signal.SIGTERM)
            raise
    if background.returncode:
        raise progress.StepFailed("the setup failed; its errors are above")


if __name__ == "__main__":
    sys.exit(main())
