"""Installs the Debian packages of missing commands. Removes nothing and starts no service."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import progress
from tools.paths import cache_dir
from tools.setup.versions import DEBIAN

_POLICY = Path("/usr/sbin/policy-rc.d")
_SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def program(name: str) -> str | None:
    """The path of a command, also in the sbin folders, or None."""
    return shutil.which(name, path=_SEARCH)


def missing(parts: set[str]) -> list[str]:
    """The packages, sorted, whose command or file is missing."""
    packages = set()
    for part in parts & DEBIAN.keys():
        for what, package in DEBIAN[part].items():
            there = glob.glob(what) if what.startswith("/") else program(what)
            if not there:
                packages.add(package)
    return sorted(packages)


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Installs a policy-rc.d that prevents service starts; restores the previous one afterwards."""
    saved = _POLICY.with_name("policy-rc.d.before-fastllm")
    if _POLICY.exists() and not saved.exists():
        _POLICY.rename(saved)
    try:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
        if saved.exists():
            saved.rename(_POLICY)


def install_missing(parts: set[str]) -> None:
    """Installs the missing packages of ``parts``. Raises StepFailed with a list of packages if it cannot."""
    packages = missing(parts)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise progress.StepFailed(
            f"apt-get is not available; install the equivalents of these Debian packages: {' '.join(packages)}"
        )
    if os.geteuid() != 0:
        raise progress.StepFailed(
            "Debian packages are missing, and installing them needs root:\n"
            f"sudo apt-get update && sudo apt-get install --no-install-recommends --no-remove {' '.join(packages)}"
        )
    log = cache_dir() / "apt.log"
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    with progress.step("apt-get update"):
        progress.run(["apt-get", "update", "-q"], log=log, env=env)
    with progress.step(f"apt-get install {' '.join(packages)}"), _no_service_starts():
        progress.run(
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", "--no-remove", *packages],
            log=log,
            env=env,
        )
    if still := missing(parts):
        raise progress.StepFailed(f"installed, but the commands are still missing: {' '.join(still)}; see {log}")
