"""Scans every tracked file for credentials. A baseline contains the hashes of known samples.

``python3 -m tools.suite.secrets`` accepts the current findings.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tools import paths, progress
from tools.setup import venv

__all__ = ["find"]

_BASELINE = paths.CHECKOUT / ".config" / "secrets-baseline.json"
# Checksums, not secrets.
_SKIPPED = (".lock", "go.sum", _BASELINE.name)


def find() -> None:
    """Raises StepFailed with every finding that is not in the baseline."""
    known = {
        (name, found["hashed_secret"])
        for name, findings in json.loads(_BASELINE.read_text()).items()
        for found in findings
    }
    new = [
        f"{name}:{found['line_number']}: {found['type']}"
        for name, findings in _scan().items()
        for found in findings
        if (name, found["hashed_secret"]) not in known
    ]
    if new:
        raise progress.StepFailed("possible secrets (`make secrets-baseline` accepts them):\n" + "\n".join(new))


def _scan() -> dict[str, list[dict[str, Any]]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=paths.CHECKOUT, check=True, capture_output=True, text=True)
    wanted = [
        name
        for name in listed.stdout.split("\0")
        if name and not name.endswith(_SKIPPED) and not name.startswith(".sqlx/")
    ]
    scanner = venv.tools_venv() / "bin" / "detect-secrets"
    return json.loads(progress.run([scanner, "scan", "--no-verify", *wanted], cwd=paths.CHECKOUT))["results"]


def main() -> int:
    """Regenerates the baseline; returns the exit status."""
    baseline = {
        name: [{"type": found["type"], "hashed_secret": found["hashed_secret"]} for found in findings]
        for name, findings in _scan().items()
    }
    _BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
