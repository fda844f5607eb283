"""The images of the cluster itself, made from programs in the cache: pause, CoreDNS, and a shell for tests."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tools import progress
from tools.cluster.config import COREDNS_IMAGE, PAUSE_IMAGE
from tools.images import oci
from tools.paths import cache_dir
from tools.setup import golang

# busybox with sh, wget, nslookup, nc and httpd, for tests inside a pod. Debian's static wget crashes with -T.
SHELL_IMAGE = "localhost/fastllm-tools/shell:1"

_SOURCE = Path(__file__).with_name("pause.c")


def pause_program() -> Path:
    """The pause program, compiled on first use. It is also the init process of a node's namespaces."""
    key = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    program = cache_dir() / "bin" / f"pause-{key}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        progress.run(["cc", "-Os", "-static", "-s", "-o", unfinished, _SOURCE])
        unfinished.rename(program)
    return program


def archives() -> list[Path]:
    """The archives that every node imports, written on first use."""
    busybox = Path("/bin/busybox")
    applets = ("sh", "wget", "nslookup", "nc", "httpd", "cat", "sleep", "true", "false", "ls", "echo", "id", "env")
    return [
        _archive(PAUSE_IMAGE, {"/pause": pause_program()}, {"Entrypoint": ["/pause"], "User": "65535:65535"}),
        _archive(COREDNS_IMAGE, {"/coredns": golang.path("coredns")}, {"Entrypoint": ["/coredns"]}),
        _archive(
            SHELL_IMAGE,
            {"/bin/busybox": busybox},
            {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]},
            {f"/bin/{applet}": "busybox" for applet in applets},
        ),
    ]


def _archive(name: str, files: dict[str, Path], config: dict, links: dict[str, str] | None = None) -> Path:
    key = hashlib.sha256(repr((name, config, links)).encode())
    for path in files.values():
        status = path.stat()
        key.update(f"{path} {status.st_size} {status.st_mtime_ns}".encode())
    folder = cache_dir() / "node-images"
    folder.mkdir(exist_ok=True)
    archive = folder / f"{name.rpartition('/')[2].partition(':')[0]}-{key.hexdigest()[:12]}.tar"
    if not archive.exists():
        unfinished = archive.with_suffix(f".{os.getpid()}")
        oci.write(unfinished, [name], files, config, links)
        unfinished.rename(archive)
    return archive
