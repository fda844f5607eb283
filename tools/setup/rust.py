"""The compiler: checked, never installed."""

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
        raise StepFailed("the root Cargo.toml names no rust-version")
    return tuple(int(part) for part in found.group(1).split("."))


def check() -> None:
    """Raises StepFailed when rustc is missing or too old, saying how to get it."""
    need = oldest((CHECKOUT / "Cargo.toml").read_text())
    wanted = ".".join(map(str, need))
    have = "none was found"
    if shutil.which("rustc") and shutil.which("cargo"):
        said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, cwd=CHECKOUT, check=False).stdout
        found = re.match(r"rustc (\d+)\.(\d+)", said)
        if found and (int(found.group(1)), int(found.group(2))) >= need[:2]:
            return
        have = f"this machine has {said.strip() or 'one that does not start'}"
    raise StepFailed(
        f"Rust {wanted} or newer is needed; {have}.\n"
        "Get it from https://rustup.rs, or, where rustup is installed: "
        f"rustup toolchain install {wanted} && rustup default {wanted}"
    )
