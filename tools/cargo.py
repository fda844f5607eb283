"""Builds the product's programs with cargo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools import paths, progress

__all__ = ["PROGRAMS", "build"]

# The packages in the images. Neither benchmarks nor tests are among them.
PROGRAMS = ("fastllm-gateway", "fastllm-control", "fastllm-proxy", "fastllm-operator")


def build(packages: Sequence[str] = PROGRAMS, *, with_tests: bool = False, terminal: bool | None = None) -> Path:
    """Builds the programs of these packages and returns their folder. Raises StepFailed.

    ``with_tests`` builds the whole workspace with its tests instead. Tests enable features of libraries: building
    the programs alone after a test run would compile half of the libraries a second time.

    On a terminal the progress is cargo's own; elsewhere, or with ``terminal=False``, it is a line every few seconds.
    """
    if with_tests:
        selection = ["--workspace", "--all-targets"]
    else:
        selection = [*(f"--package={name}" for name in packages), "--bins"]
    command = ["cargo", "build", "--release", "--locked", *selection]
    if sys.stderr.isatty() if terminal is None else terminal:
        with progress.step("cargo build", heartbeat=False):
            status = subprocess.run(command, cwd=paths.CHECKOUT, check=False).returncode
    else:
        status = _with_lines([*command, "--quiet", "--message-format=json-render-diagnostics"])
    if status:
        raise progress.StepFailed("cargo build failed; its errors are above")
    return paths.CHECKOUT / "target" / "release"


def _with_lines(command: list[str]) -> int:
    """Runs a build and reports how many crates it has compiled; returns cargo's exit status."""
    compiled = 0
    with (
        progress.step("cargo build", lambda: f"{compiled} crates compiled"),
        subprocess.Popen(command, cwd=paths.CHECKOUT, stdout=subprocess.PIPE, text=True) as cargo,
    ):
        for line in cargo.stdout or ():
            message = json.loads(line) if line.startswith("{") else {}
            compiled += message.get("reason") == "compiler-artifact" and not message.get("fresh")
    return cargo.returncode
