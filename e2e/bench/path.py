"""``python3 -m e2e.bench path``: CPU time per request and per frame, all peers in one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from e2e.bench import measure, peers, report
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from tools import progress

BASELINE = "nginx"


def run(names: Sequence[str], length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures, prints the tables, writes the JSON."""
    with Rig(tools) as rig, ExitStack() as opened:
        made = [peers.make(name, rig) for name in names]
        for peer in made:
            peer.prepare()
        running = [opened.enter_context(peer) for peer in made]
        samples = measure.rounds(running, PATH, length)
        versions = {peer.name: peer.version() for peer in running}
        events = rig.usage_events()
    order = [peer.name for peer in made]
    print(report.cpu_table(samples, BASELINE, order))
    print()
    print(report.rest_table(samples, order))
    requests = sum(one.requests for one in samples if one.peer.startswith("fastllm"))
    if requests:
        progress.say(f"usage events received by control: {events}; requests in the windows: {requests}")
    report.write(
        out,
        {
            "versions": versions,
            "usage_events": events,
            "samples": [one.as_dict() for one in samples],
        },
    )
