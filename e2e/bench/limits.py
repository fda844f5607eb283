"""``python3 -m e2e.bench limits``: CPU time of limits, budgets and metadata per request."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from e2e.bench import measure, report
from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.peers.nginx import Nginx
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from e2e.bench.snapshot import Population

WITHOUT = "without"
SUBJECTS = ("principal", "key", "team")

# Short requests, and requests whose estimate takes a scan of 64 KiB.
SCENARIOS = PATH[:4]

# The measured variants, by peer name: limits of all kinds and budgets of both kinds for each subject.
POPULATIONS = {
    WITHOUT: Population(),
    "principal": Population(limited=("principal",)),
    "all": Population(limited=SUBJECTS),
    "metadata": Population(metadata=True),
    "everything": Population(limited=SUBJECTS, metadata=True),
}


def run(length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures a gateway per variant, and nginx, in one run; prints the ratios to the gateway without limits last."""
    with Rig(tools) as rig, ExitStack() as opened:
        peers = (Nginx(rig), *(FastLlm(rig, name, population) for name, population in POPULATIONS.items()))
        for peer in peers:
            peer.prepare()
        running = [opened.enter_context(peer) for peer in peers]
        samples = measure.rounds(running, SCENARIOS, length)
    order = [peer.name for peer in peers]
    print(report.cpu_table(samples, order[0], order))
    for scenario in SCENARIOS:
        cpu = {name: report.median(samples, name, scenario.name, report.cpu) for name in POPULATIONS}
        ratios = ", ".join(f"{name} {cpu[name] / cpu[WITHOUT]:.3f}" for name in POPULATIONS if name != WITHOUT)
        print(f"{scenario.name}, ÷ without: {ratios}")
    report.write(out, {"samples": [one.as_dict() for one in samples]})
