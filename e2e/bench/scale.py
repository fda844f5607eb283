"""``python3 -m e2e.bench scale``: whether a request costs more where there are more keys and models."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from e2e.bench import measure, report
from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from e2e.bench.snapshot import Population

KEYS = (1_000, 10_000, 100_000)
MODELS = (10, 1_000)


def label(keys: int, models: int) -> str:
    """The name of an instance."""
    return f"{keys // 1000}k-keys-{models}-models"


def run(length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures one gateway for each size, all in one run; ratios are to the smallest."""
    sizes = [(keys, models) for keys in KEYS for models in MODELS]
    with Rig(tools) as rig, ExitStack() as opened:
        running = []
        for keys, models in sizes:
            # Ten keys a principal, and only the kind of model that is asked for.
            population = Population(keys, keys // 10, models, ("bench-json",))
            peer = FastLlm(rig, label(keys, models), population)
            running.append(opened.enter_context(peer))
        samples = measure.rounds(running, PATH[:1], length)
    order = [label(keys, models) for keys, models in sizes]
    print(report.cpu_table(samples, order[0], order))
    print()
    print(report.rest_table(samples, order))
    report.write(out, {"samples": [one.as_dict() for one in samples]})
