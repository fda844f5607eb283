"""Go programs, built once from pinned modules into the cache, under a key of all their inputs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools import progress
from tools.paths import cache_dir
from tools.setup import venv
from tools.setup.versions import GO_MODULES, GO_OLDEST, GO_WHEEL, GoModule

_FLAGS = ("-trimpath", "-buildvcs=false")


def version(module: GoModule) -> str:
    """The pinned version, as in go.mod (``v1.37.2``)."""
    found = re.search(
        rf"^(?:require|\t)\s*{re.escape(module.versioned)} (v\S+)", (module.folder / "go.mod").read_text(), re.MULTILINE
    )
    if not found:
        raise progress.StepFailed(f"{module.folder}/go.mod does not require {module.versioned}")
    return found.group(1)


def ldflags(module: GoModule) -> str:
    """Linker flags: no debug information, and the version where a program would otherwise report v0.0.0."""
    flags = "-s -w"
    if module.version_in:
        whole = version(module)
        major, minor, _ = whole.removeprefix("v").split(".", 2)
        for name, value in (("gitVersion", whole), ("gitMajor", major), ("gitMinor", minor)):
            flags += f" -X {module.version_in}.{name}={value}"
    return flags


def folder(module: GoModule) -> Path:
    """The folder of its programs: ``cache/bin/<name>-<version>-<hash>``."""
    key = hashlib.sha256()
    for part in (
        (module.folder / "go.mod").read_bytes(),
        (module.folder / "go.sum").read_bytes(),
        *(source.read_bytes() for source in sorted(module.folder.glob("*.go"))),
        *(f.encode() for f in _FLAGS),
        ldflags(module).encode(),
    ):
        key.update(part)
    return cache_dir() / "bin" / f"{module.name}-{version(module)}-{key.hexdigest()[:12]}"


def path(name: str) -> Path:
    """The path of a built program. Raises StepFailed when nothing builds it."""
    for module in GO_MODULES:
        if any(name in programs for programs in module.programs.values()):
            return folder(module) / name
    raise progress.StepFailed(f"no module builds {name}")


def go_command() -> str:
    """The installed Go if it is recent enough, or one from a wheel in the cache."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists() and _go_version(candidate) >= GO_OLDEST:
            return candidate
    return str(venv.go_venv(GO_WHEEL) / "bin" / "go")


def _go_version(go: str) -> tuple[int, int]:
    output = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", output)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def build_missing(parts: set[str]) -> None:
    """Builds the programs of ``parts`` that are not in the cache, which takes minutes."""
    todo = []
    for module in GO_MODULES:
        for part, programs in module.programs.items():
            lacking = {name: package for name, package in programs.items() if not (folder(module) / name).exists()}
            if part in parts and lacking:
                todo.append((module, lacking))
    if not todo:
        return
    names = ", ".join(name for _, lacking in todo for name in lacking)
    progress.say(f"building {names}: once per machine, about 15 minutes on two cores")
    (cache_dir() / "bin").mkdir(exist_ok=True)
    with (cache_dir() / "bin" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        go = go_command()
        for module, lacking in todo:
            still = {name: package for name, package in lacking.items() if not (folder(module) / name).exists()}
            if still:
                _build(go, module, still)


def _build(go: str, module: GoModule, programs: dict[str, str]) -> None:
    target = folder(module)
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    log = cache_dir() / "bin" / f"{module.name}.log"
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOCACHE": str(cache_dir() / "go-build"),
    }
    compiled = 0
    with progress.step(
        f"{module.name} {version(module)}: {', '.join(programs)}", lambda: f"{compiled} packages compiled"
    ):
        command = [
            go,
            "build",
            "-v",
            "-p",
            str(os.cpu_count() or 2),
            *_FLAGS,
            "-ldflags",
            ldflags(module),
            "-o",
            f"{unfinished}/",
            *programs.values(),
        ]
        for line in _go(command, module, env, log):
            compiled += not line.startswith("go: downloading")
        target.mkdir(exist_ok=True)
        for name, package in programs.items():
            # Go names a binary after its package, without the suffix of a major version ("v3").
            built = [part for part in package.split("/") if not re.fullmatch(r"v\d+", part)][-1]
            (unfinished / built).rename(target / name)
        shutil.rmtree(unfinished)


def _go(command: list[str], module: GoModule, env: dict[str, str], log: Path) -> Iterator[str]:
    """Runs the build and yields its output line by line; ``-v`` prints one line per compiled package."""
    with (
        log.open("w") as out,
        subprocess.Popen(
            command,
            cwd=module.folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as build,
    ):
        for line in build.stdout or ():
            out.write(line)
            yield line
    if build.returncode:
        raise progress.StepFailed(f"go build of {module.name} failed; the end of {log}:\n{progress.tail(log)}")
