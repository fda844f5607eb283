"""The JavaScript clients: the official one, and Vercel's AI SDK."""

from __future__ import annotations

import os
import subprocess

import pytest

from e2e.clients.conftest import CHAT, EMBEDDINGS, NOT_GRANTED, Target
from tools.setup import node


@pytest.mark.parametrize(
    "name",
    [
        "openai.mjs",
        "ai-sdk.mjs",
        "openai-embed.mjs",
        "openai-model.mjs",
        "ai-sdk-embed.mjs",
    ],
)
def test_node(target: Target, name: str) -> None:
    folder = node.clients()
    environment = {
        "BASE_URL": target.base_url,
        "API_KEY": target.key,
        "CHAT": CHAT,
        "EMBEDDINGS": EMBEDDINGS,
        "NOT_GRANTED": NOT_GRANTED,
    }
    done = subprocess.run(
        [node.program(), "--test", "--test-reporter=spec", name],
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
