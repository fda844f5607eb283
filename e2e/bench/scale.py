"""``python3 -m e2e.bench scale``: CPU time per request by number of keys, models and workers."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from e2e.bench import measure, report
from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH
from e2e.bench.snapshot import Population
from tools import progress

KEYS = (1_000, 10_000, 100_000)
MODELS = (10, 1_000)

# Keys, models, workers: all sizes on one core; the smallest and the largest also on two.
SIZES = (
    *((keys, models, 1) for keys in KEYS for models in MODELS),
    (KEYS[0], MODELS[0], 2),
    (KEYS[-1], MODELS[-1], 2),
)


def label(keys: int, models: int, workers: int) -> str:
    """The name of an instance."""
    more = "" if workers == 1 else f"-{workers}-workers"
    return f"{keys // 1000}k-keys-{models}-models{more}"


def run(length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Measures a gateway of each size in one run; ratios are relative to the smallest."""
    before = os.getloadavg()[0]
    with Rig(tools) as rig, ExitStack() as opened:
        running = []
        for keys, models, workers in SIZES:
            # Ten keys per principal, and only the kind of model that the load uses.
            population = Population(keys, keys // 10, models, ("bench-json",))
            peer = FastLlm(rig, label(keys, models, workers), population, workers=workers)
            running.append(opened.enter_context(peer))
        samples = measure.rounds(running, PATH[:2], length)
    order = [label(*size) for size in SIZES]
    print(report.cpu_table(samples, order[0], order))
    print()
    print(report.rest_table(samples, order))
    progress.say(f"load average before: {before:.1f}")
    report.write(out, {"load_average": before, "samples": [one.as_dict() for one in samples]})
