"""``python3 -m e2e.bench outage``: completeness of usage after an hour without a control plane."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx

from e2e.bench import report
from e2e.bench.rig import Tools
from e2e.tests.scripted import KILLED, STAYS, Run
from tools import progress
from tools.product import Gateway
from tools.services.postgres import Postgres


class Outage(Run):
    """A run without the control plane, except for its start and its end."""

    spilling = (KILLED, STAYS)

    def failures(self) -> list[tuple[float, str, Callable[[], None]]]:
        """A single outage of the control plane."""
        return [
            (0.01, "control is stopped", self.control.stop),
            (0.99, "control is back", self.control.start),
        ]

    def settle(self) -> None:
        """Waits until the gateways have sent all usage."""
        for name, gateway in self.gateways.items():
            progress.wait_until(f"usage of {name} is sent", lambda one=gateway: _waiting(one) == 0, seconds=600)


def _waiting(gateway: Gateway) -> int:
    """The number of unsent usage events in memory and on disk."""
    text = httpx.get(f"{gateway.url}/metrics", timeout=5).text
    names = ("fastllm_usage_queue_depth ", "fastllm_usage_spill_events ")
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def run(tools: Tools, requests: int, rate: int, out: Path | None) -> bool:
    """Sends requests through two gateways and prints the totals; returns whether every request has exactly one row."""
    with (
        Postgres("outage", "127.0.0.1:0") as postgres,
        tempfile.TemporaryDirectory() as folder,
        progress.step(f"{requests} requests, at most {rate} per second"),
    ):
        found = Outage(tools.gateway.parent, Path(folder), postgres).measure(requests, rate)
    stored = {row.n for row in found.rows}
    ended = [one for one in found.seen if one.end in ("Complete", "Left")]
    lost = sum(one.n not in stored for one in ended)
    twice = len(found.rows) - len(stored)
    print(f"requests {len(found.seen)}, ended {len(ended)}, rows {len(found.rows)}, lost {lost}, twice {twice}")
    report.write(out, {"requests": len(found.seen), "rows": len(found.rows), "lost": lost, "twice": twice})
    return not lost and not twice
