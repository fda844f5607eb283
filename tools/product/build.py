"""From the checkout to binaries and images."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools import images as image_builder
from tools import paths, progress

__all__ = ["binaries", "images", "version"]

# Where a name without a host leads to: the CRD's default image is `fastllm/fastllm-proxy:<version>`.
REPOSITORY = "docker.io/fastllm"


def version() -> str:
    """The version of this checkout (root Cargo.toml)."""
    for line in (paths.CHECKOUT / "Cargo.toml").read_text().splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    raise ValueError("the root Cargo.toml names no version")


def binaries(*, with_tests: bool = False) -> Path:
    """Builds all programs with cargo (progress is cargo's own) and returns their folder.

    ``with_tests`` builds the Rust tests along: they turn on features of libraries, so that after a run of them
    the programs alone would compile half of the libraries once more.
    """
    what = "--all-targets" if with_tests else "--bins"
    with progress.step("programs built by cargo"):
        command = ["cargo", "build", "--release", "--locked", "--workspace", what]
        if subprocess.run(command, cwd=paths.CHECKOUT, check=False).returncode:
            raise progress.StepFailed("cargo build failed; its errors stand above")
    return paths.CHECKOUT / "target" / "release"


def images(*tags: str) -> list[Path]:
    """Builds the product's and the operator's image from the binaries, under this version and each further tag.

    Returns the archives to load into a cluster.
    """
    built = image_builder.build([version(), *tags], repository=REPOSITORY)
    return [image.archive for image in built.values()]
