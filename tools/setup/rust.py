"""Checks the Rust compiler; never installs it."""

from __future__ import annotations

import re
import shutil
import subprocess

from tools.paths import CHECKOUT
from tools.progress import StepFailed


def oldest(cargo_toml: str) -> tuple[int, ...]:
    """The ``rust-version`` of a Cargo.toml."""
    found = re.search(r'^rust-version\s*=\s*"([\d.]+)"', cargo_toml, re.MULTILINE)
    if not found:
        raise StepFailed("the root Cargo.toml has no rust-version")
    return tuple(int(part) for part in found.group(1).split("."))


def check() -> None:
    """Raises StepFailed with instructions if rustc is missing or too old."""
    need = oldest((CHECKOUT / "Cargo.toml").read_text())
    wanted = ".".join(map(str, need))
    have = "found none"
    if shutil.which("rustc") and shutil.which("cargo"):
        output = subprocess.run(
            ["rustc", "--version"], capture_output=True, text=True, cwd=CHECKOUT, check=False
        ).stdout
        found = re.match(r"rustc (\d+)\.(\d+)", output)
        if found and (int(found.group(1)), int(found.group(2))) >= need[:2]:
            return
        have = f"found {output.strip() or 'one that does not start'}"
    raise StepFailed(
        f"Rust {wanted} or newer is required; {have}.\n"
        "Install it from https://rustup.rs, or run `rustup update stable` if rustup is installed."
    )
