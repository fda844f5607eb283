"""npm packages in the cache, keyed by their lock file. Node itself comes as a wheel."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from tools import progress
from tools.paths import CHECKOUT, cache_dir
from tools.setup import venv

_SOURCES = CHECKOUT / "e2e" / "clients" / "js"
_MANIFESTS = ("package.json", "package-lock.json")


def program() -> Path:
    """The path of Node."""
    return venv.clients_venv() / "bin" / "node"


def clients() -> Path:
    """The folder of the JavaScript clients with their packages; installs them if missing."""
    key = hashlib.sha256(b"".join((_SOURCES / name).read_bytes() for name in _MANIFESTS)).hexdigest()[:12]
    folder = cache_dir() / f"npm-clients-{key}"
    finished = folder / ".finished"
    with (cache_dir() / "npm-clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(folder)
            finished.touch()
        # Node resolves imports relative to the importing file, and packages stay out of the checkout.
        for source in _SOURCES.glob("*.mjs"):
            shutil.copy(source, folder)
    return folder


def _install(folder: Path) -> None:
    folder.mkdir()
    for name in _MANIFESTS:
        shutil.copy(_SOURCES / name, folder)
    path = f"{program().parent}{os.pathsep}{os.environ['PATH']}"
    with progress.step("npm: openai, Vercel AI SDK"):
        command = [program().parent / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        progress.run(command, cwd=folder, env={"PATH": path}, log=cache_dir() / "npm-clients.log")
