"""Conversations stay with the engine that has them in its KV cache, according to the engine's statistics."""

from __future__ import annotations

from pathlib import Path

from e2e.bench import affinity
from e2e.bench.conversations import Size


def test_conversations_reuse_their_kv_caches(programs: Path) -> None:
    found = affinity.measure(programs / "fastllm-gateway", Size(conversations=3, turns=4, response_tokens=8))
    alone, with_affinity, without = (found[arm].share for arm in (affinity.DIRECT, *affinity.POLICIES))
    assert alone > 0.4, "a single engine reuses its cache"
    assert with_affinity >= alone - affinity.MARK
    assert with_affinity >= without + 0.1
