"""Builds both images with buildah on a generated base image, and stores them as OCI archives."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import progress
from tools.images import oci
from tools.paths import CHECKOUT, cache_dir, state_dir
from tools.setup import ensure

REPOSITORY = "localhost"

_BASE = "localhost/fastllm-tools/base:1"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class _Recipe:
    dockerfile: str
    binaries: tuple[str, ...]


_RECIPES = {
    "fastllm-proxy": _Recipe("Dockerfile", ("fastllm-gateway", "fastllm-control", "fastllm-proxy")),
    "fastllm-operator": _Recipe("operator/Dockerfile", ("fastllm-operator",)),
}


@dataclass(frozen=True)
class Image:
    """A built image: the archive for ``Cluster.load_image``, and its names."""

    archive: Path
    names: tuple[str, ...]


def build(
    tags: Sequence[str] = ("dev",),
    *,
    only: Iterable[str] = (),
    repository: str = REPOSITORY,
    binaries: Path | None = None,
) -> dict[str, Image]:
    """Builds ``<repository>/fastllm-proxy`` and ``<repository>/fastllm-operator`` with every tag; returns them by name.

    ``only`` selects images; ``binaries`` is the folder of the compiled programs (default ``target/release``).
    Additional tags cost nothing; tests of upgrades use them. Raises StepFailed.
    """
    ensure("images")
    source = binaries or CHECKOUT / "target" / "release"
    wanted = tuple(only) or tuple(_RECIPES)
    if not tags or (unknown := set(wanted) - _RECIPES.keys()):
        raise ValueError(f"unknown images: {', '.join(sorted(unknown))}" if tags else "at least one tag is required")
    folder = state_dir() / "images"
    folder.mkdir(exist_ok=True)
    made = {}
    with (cache_dir() / "buildah.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in wanted:
            with progress.step(f"image {name}"):
                names = tuple(f"{repository}/{name}:{tag}" for tag in tags)
                made[name] = Image(_built(name, source, names, folder), names)
        # Only the archives are kept.
        progress.run([*_storage(), "rmi", "--all", "--force"], log=folder / "buildah.log")
    return made


def _built(name: str, source: Path, names: Sequence[str], folder: Path) -> Path:
    recipe = _RECIPES[name]
    context = _context(folder / f"{name}.context", source, recipe)
    try:
        _load_base([context / "target" / "release" / binary for binary in recipe.binaries])
        return _buildah(name, recipe, context, names, folder)
    finally:
        shutil.rmtree(context)


def _context(context: Path, source: Path, recipe: _Recipe) -> Path:
    """A build context with only the binaries, so that buildah does not read the whole checkout."""
    shutil.rmtree(context, ignore_errors=True)
    release = context / "target" / "release"
    release.mkdir(parents=True)
    for binary in recipe.binaries:
        if not (source / binary).exists():
            raise progress.StepFailed(f"{source / binary} does not exist; run `make build`")
        shutil.copy2(source / binary, release / binary)
    return context


def _buildah(name: str, recipe: _Recipe, context: Path, names: Sequence[str], folder: Path) -> Path:
    log = folder / f"{name}.log"
    local = f"localhost/fastllm-tools/{name}:built"
    progress.run(
        [
            *_storage(),
            "bud",
            "--isolation",
            "chroot",
            "--pull-never",
            "--layers=false",
            "--format",
            "oci",
            "--build-arg",
            "BINARIES=prebuilt",
            "--build-arg",
            f"BASE={_BASE}",
            "--build-arg",
            f"REVISION={_revision()}",
            "--tag",
            local,
            "--file",
            CHECKOUT / recipe.dockerfile,
            context,
        ],
        log=log,
    )
    plain, archive = folder / f"{name}.plain.tar", folder / f"{name}.tar"
    plain.unlink(missing_ok=True)
    progress.run([*_storage(), "push", "--disable-compression", local, f"oci-archive:{plain}:built"], log=log)
    oci.retag(plain, names, archive)
    plain.unlink()
    return archive


def _storage() -> list[str | Path]:
    """buildah with a separate storage, apart from the user's images."""
    root = cache_dir() / "buildah"
    return ["buildah", "--root", root / "storage", "--runroot", root / "run", "--storage-driver", "vfs"]


def _revision() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _load_base(binaries: Iterable[Path]) -> None:
    """Creates the base image: the shared libraries of the binaries, certificates and a user."""
    archive = cache_dir() / f"base.{os.getpid()}.tar"
    passwd = cache_dir() / "passwd"
    passwd.write_text("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
    files = {str(path): path for binary in binaries for path in libraries(binary)}
    files |= {"/etc/passwd": passwd, str(_CERTIFICATES): _CERTIFICATES}
    try:
        oci.write(
            archive,
            [_BASE],
            files,
            {"User": "65532:65532", "Env": ["PATH=/usr/local/bin", f"SSL_CERT_FILE={_CERTIFICATES}"]},
        )
        image = progress.run([*_storage(), "pull", "--quiet", f"oci-archive:{archive}"]).split()[-1]
        progress.run([*_storage(), "tag", image, _BASE])
    finally:
        archive.unlink(missing_ok=True)


def libraries(binary: Path) -> list[Path]:
    """The shared libraries and the loader of a program, from ldd; none for a static program."""
    done = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False)
    if "not found" in done.stdout:
        raise progress.StepFailed(f"ldd {binary}:\n{done.stdout}")
    return [Path(path) for path in re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout)]
