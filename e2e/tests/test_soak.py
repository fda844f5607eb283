"""Memory and descriptors under everything at once: the short version of ``python3 -m e2e.bench soak``."""

from __future__ import annotations

from pathlib import Path

from e2e.bench import soak
from e2e.bench.rig import Tools

# Buffers, arenas and TLS sessions grow to their size for about as long as this one runs, which the long soak
# does not see. What it can tell is a few hundred bytes kept of each of its hundred thousand requests.
MOST_GROWTH = 4 * soak.MOST_GROWTH


def test_nothing_is_left_behind_by_clients_and_upstreams_that_break_off(programs: Path) -> None:
    found = soak.measure(Tools(programs, programs / "fastllm-gateway"), seconds=90)
    for watched in found.watched.values():
        before, after = watched.descriptors
        assert after <= before
        assert watched.growth() <= MOST_GROWTH
    # It would be no wonder if little had happened.
    assert min(found.requests[f"{name} {one.name}"] for name in found.watched for one in soak.LOADS) >= 25
    assert len(found.misused) == 7 and min(found.misused.values()) >= 20
    assert found.snapshots >= 10 and found.certificates >= 4
    assert found.usage_events >= sum(found.requests[f"{name} 1k"] for name in found.watched) / 2
