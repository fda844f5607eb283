"""Writes OCI image archives of one layer, without a daemon or a registry."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def architecture() -> str:
    """The OCI name of this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def write(
    archive: Path,
    names: Sequence[str],
    files: Mapping[str, Path],
    config: Mapping[str, Any],
    links: Mapping[str, str] | None = None,
) -> None:
    """Writes an image of one layer: ``files`` and symbolic ``links`` by their path in the image.

    ``config`` is the runtime configuration. The output is reproducible.
    """
    layer = _layer(files, links or {})
    image = {
        "architecture": architecture(),
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    blobs = [layer, json.dumps(image).encode()]
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, blobs[1]),
            "layers": [_descriptor(_LAYER, layer)],
        }
    ).encode()
    blobs.append(manifest)
    index = _index(names, _descriptor(_MANIFEST, manifest))
    with tarfile.open(archive, "w") as out:
        _add(out, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(out, "index.json", index)
        for blob in blobs:
            _add(out, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def retag(archive: Path, names: Sequence[str], target: Path) -> None:
    """Copies an archive of one image with other names; a single import creates all of them."""
    with tarfile.open(archive) as source, tarfile.open(target, "w") as out:
        for member in source.getmembers():
            data = source.extractfile(member) if member.isfile() else None
            content = data.read() if data else b""
            if member.name.removeprefix("./") == "index.json":
                descriptor = json.loads(content)["manifests"][0]
                _add(out, "index.json", _index(names, descriptor))
            elif data:
                _add(out, member.name, content)


def _index(names: Sequence[str], descriptor: Mapping[str, Any]) -> bytes:
    entries = []
    for name in names:
        notes = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
        entries.append({**descriptor, "annotations": notes})
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries}).encode()


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        folders: set[str] = set()
        for name in sorted([*files, *links]):
            parents = [str(parent) for parent in reversed(Path(name.lstrip("/")).parents) if str(parent) != "."]
            for parent in parents:
                if parent not in folders:
                    folders.add(parent)
                    layer.addfile(_entry(parent, tarfile.DIRTYPE, 0o755))
            if name in links:
                link = _entry(name.lstrip("/"), tarfile.SYMTYPE, 0o777)
                link.linkname = links[name]
                layer.addfile(link)
            else:
                _add(layer, name.lstrip("/"), files[name].read_bytes(), 0o755)
    return buffer.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _add(out: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, tarfile.REGTYPE, mode)
    entry.size = len(content)
    out.addfile(entry, io.BytesIO(content))


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}
