"""``python3 -m e2e.bench limits``: what limits, budgets and metadata cost a request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median

from e2e import progress
from e2e.bench import measure, report
from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.peers.nginx import Nginx
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from e2e.bench.snapshot import Population

WITHOUT, WITH = "without", "with"


def run(length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures one gateway of each, and nginx, all in one run; the ratio is printed last."""
    with Rig(tools) as rig, ExitStack() as opened:
        peers = (Nginx(rig), FastLlm(rig, WITHOUT), FastLlm(rig, WITH, Population(limited=True)))
        for peer in peers:
            peer.prepare()
        running = [opened.enter_context(peer) for peer in peers]
        samples = measure.rounds(running, PATH[:2], length)
    order = [peer.name for peer in peers]
    print(report.cpu_table(samples, order[0], order))
    for scenario in PATH[:2]:
        cpu = {
            name: median(one.cpu_us for one in samples if (one.peer, one.scenario) == (name, scenario.name))
            for name in (WITHOUT, WITH)
        }
        progress.say(f"{scenario.name}: with ÷ without {cpu[WITH] / cpu[WITHOUT]:.3f}")
    report.write(out, {"samples": [one.as_dict() for one in samples]})
