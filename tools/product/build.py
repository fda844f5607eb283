"""Builds the images under the names that the custom resource refers to."""

from __future__ import annotations

from pathlib import Path

from tools import images as image_builder
from tools import paths

__all__ = ["images", "version"]

# The default registry of a name without a host: the CRD's default image is `fastllm/fastllm-proxy:<version>`.
REPOSITORY = "docker.io/fastllm"


def version() -> str:
    """The version in the root Cargo.toml."""
    for line in (paths.CHECKOUT / "Cargo.toml").read_text().splitlines():
        if line.startswith("version = "):
            return line.split('"')[1]
    raise ValueError("the root Cargo.toml has no version")


def images(*tags: str) -> list[Path]:
    """Builds the images of the product and the operator from the binaries, tagged with this version and ``tags``.

    Returns the archives to load into a cluster.
    """
    built = image_builder.build([version(), *tags], repository=REPOSITORY)
    return [image.archive for image in built.values()]
