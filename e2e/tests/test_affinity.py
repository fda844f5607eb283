"""Conversations stay with the engine that has them in its KV cache: seen in the engine's own figures."""

from __future__ import annotations

from pathlib import Path

from e2e.bench import affinity
from e2e.bench.conversations import Size


def test_conversations_find_their_caches_again(programs: Path) -> None:
    found = affinity.measure(programs / "fastllm-gateway", Size(conversations=3, turns=4, answer=8))
    alone, kept, spread = (found[arm].share for arm in (affinity.DIRECT, *affinity.POLICIES))
    assert alone > 0.4, "an engine finds again what it has read"
    assert kept >= alone - affinity.MARK
    assert kept >= spread + 0.1
