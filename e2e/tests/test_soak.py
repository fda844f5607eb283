"""Memory and descriptors under mixed load and faults: the short version of ``python3 -m e2e.bench soak``."""

from __future__ import annotations

from pathlib import Path

from e2e.bench import soak
from e2e.bench.rig import Tools

# Buffers, arenas and TLS sessions grow during the first minutes, that is, during this whole test. It still detects a
# leak of a few hundred bytes per request.
MAX_GROWTH = 4 * soak.MAX_GROWTH


def test_aborted_connections_leak_nothing(programs: Path) -> None:
    found = soak.measure(Tools(programs, programs / "fastllm-gateway"), seconds=90)
    for watched in found.watched.values():
        before, after = watched.descriptors
        assert after <= before
        assert watched.growth() <= MAX_GROWTH
    # The result is meaningful only if enough happened.
    assert min(found.requests[f"{name} {one.name}"] for name in found.watched for one in soak.LOADS) >= 25
    assert len(found.misused) == 7 and min(found.misused.values()) >= 20
    assert found.snapshots >= 10 and found.certificates >= 4
    assert found.usage_events >= sum(found.requests[f"{name} 1k"] for name in found.watched) / 2
