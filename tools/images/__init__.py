"""Builds the product's images from the Dockerfiles without Docker and without an image registry."""

from __future__ import annotations

from tools.images.build import REPOSITORY, Image, build

__all__ = ["REPOSITORY", "Image", "build"]
