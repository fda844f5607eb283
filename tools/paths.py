"""Where things lie: the checkout, the cache that survives, the state of what runs now.

``FASTLLM_CACHE`` moves the cache (programs, venvs, build cache: costly to make
again), ``FASTLLM_STATE`` moves the state (clusters, services: thrown away by
``down``). Both lie outside the checkout.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


def cache_dir() -> Path:
    """The cache folder, made when it is missing."""
    own = os.environ.get("FASTLLM_CACHE")
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = (Path(own) if own else parent / "fastllm").absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def state_dir() -> Path:
    """The folder of everything that runs now, made when it is missing."""
    own = os.environ.get("FASTLLM_STATE")
    path = Path(own).absolute() if own else cache_dir()
    path.mkdir(parents=True, exist_ok=True)
    return path


def checked_name(name: str) -> str:
    """Returns ``name`` if it can stand in paths, host names and cgroups, else raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name: lower-case letters, digits and dashes, 32 at most")
    return name
