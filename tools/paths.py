"""The paths of the checkout, the cache and the state.

``FASTLLM_CACHE`` moves the cache: programs, virtual environments and build caches, which are expensive to recreate.
``FASTLLM_STATE`` moves the state of clusters and services, which ``down`` removes. Both are outside the checkout.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def cache_dir() -> Path:
    """The cache folder; created if missing."""
    own = os.environ.get("FASTLLM_CACHE")
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = (Path(own) if own else parent / "fastllm").absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def state_dir() -> Path:
    """The folder for the state of running clusters and services; created if missing."""
    own = os.environ.get("FASTLLM_STATE")
    path = Path(own).absolute() if own else cache_dir()
    path.mkdir(parents=True, exist_ok=True)
    return path


def checked_name(name: str) -> str:
    """Returns ``name`` if it is valid in paths, host names and cgroups. Raises ValueError otherwise."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid name: lower-case letters, digits and dashes, 32 at most")
    return name
