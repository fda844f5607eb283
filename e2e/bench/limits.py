"""``python3 -m e2e.bench limits``: what limits, budgets and metadata cost a request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median

from e2e.bench import measure, report
from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.peers.nginx import Nginx
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from e2e.bench.snapshot import Population

WITHOUT = "without"
HOLDERS = ("principal", "key", "team")

# Limits of all kinds and budgets of both kinds for each holder. What is measured, by the names of its peers.
POPULATIONS = {
    WITHOUT: Population(),
    "principal": Population(limited=("principal",)),
    "all": Population(limited=HOLDERS),
    "metadata": Population(metadata=True),
    "everything": Population(limited=HOLDERS, metadata=True),
}


def run(length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures a gateway of each, and nginx, all in one run; the ratios to one without any are printed last."""
    with Rig(tools) as rig, ExitStack() as opened:
        peers = (Nginx(rig), *(FastLlm(rig, name, population) for name, population in POPULATIONS.items()))
        for peer in peers:
            peer.prepare()
        running = [opened.enter_context(peer) for peer in peers]
        samples = measure.rounds(running, PATH[:2], length)
    order = [peer.name for peer in peers]
    print(report.cpu_table(samples, order[0], order))
    for scenario in PATH[:2]:
        cpu = {
            name: median(one.cpu_us for one in samples if (one.peer, one.scenario) == (name, scenario.name))
            for name in POPULATIONS
        }
        ratios = ", ".join(f"{name} {cpu[name] / cpu[WITHOUT]:.3f}" for name in POPULATIONS if name != WITHOUT)
        print(f"{scenario.name}, ÷ without: {ratios}")
    report.write(out, {"samples": [one.as_dict() for one in samples]})
