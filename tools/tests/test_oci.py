"""The format of image archives, as containerd reads it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tools.images import oci


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    program = tmp_path / "program"
    program.write_bytes(b"#!binary")
    target = tmp_path / "image.tar"
    oci.write(target, ["localhost/a:1"], {"/usr/bin/program": program}, {"User": "1:1"}, {"/usr/bin/alias": "program"})
    return target


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()}


def manifest_of(members: dict[str, bytes]) -> dict:
    [digest] = {entry["digest"] for entry in json.loads(members["index.json"])["manifests"]}
    return json.loads(members[f"blobs/{digest.replace(':', '/')}"])


def test_digests_match_their_blobs(archive: Path) -> None:
    members = read(archive)
    blobs = {name: content for name, content in members.items() if name.startswith("blobs/")}
    assert len(blobs) == 3
    assert all(name.endswith(hashlib.sha256(content).hexdigest()) for name, content in blobs.items())
    layer = manifest_of(members)["layers"][0]
    assert f"blobs/{layer['digest'].replace(':', '/')}" in blobs


def test_the_layer_contains_folders_files_and_links(archive: Path) -> None:
    members = read(archive)
    layer = members[f"blobs/{manifest_of(members)['layers'][0]['digest'].replace(':', '/')}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = {member.name: member for member in tar.getmembers()}
    assert list(found) == ["usr", "usr/bin", "usr/bin/alias", "usr/bin/program"]
    assert found["usr/bin/program"].mode == 0o755
    assert found["usr/bin/alias"].linkname == "program"


def test_archives_are_reproducible(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    program = {"/usr/bin/program": tmp_path / "program"}
    oci.write(again, ["localhost/a:1"], program, {"User": "1:1"}, {"/usr/bin/alias": "program"})
    assert again.read_bytes() == archive.read_bytes()


def test_a_retagged_archive_has_the_new_names_on_the_same_image(archive: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar"
    oci.retag(archive, ["localhost/a:2", "localhost/b:3"], other)
    before, after = read(archive), read(other)
    entries = json.loads(after["index.json"])["manifests"]
    assert [entry["annotations"]["io.containerd.image.name"] for entry in entries] == ["localhost/a:2", "localhost/b:3"]
    assert manifest_of(after) == manifest_of(before)
    assert {name: data for name, data in after.items() if name != "index.json"} == {
        name: data for name, data in before.items() if name != "index.json"
    }
