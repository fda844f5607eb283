"""The documents for contributors refer only to existing paths."""

from __future__ import annotations

import re

import pytest

from tools.paths import CHECKOUT

_TOP = {path.name for path in CHECKOUT.iterdir() if path.is_dir()}


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "README.md", "docs/architecture.md", "e2e/README.md"])
def test_paths_in_documents_exist(document: str) -> None:
    quoted = re.findall(r"`([A-Za-z0-9_.-]+/[A-Za-z0-9_./-]*)`", (CHECKOUT / document).read_text())
    paths = {path for path in quoted if path.partition("/")[0] in _TOP}
    assert [path for path in sorted(paths) if not (CHECKOUT / path).exists()] == []
