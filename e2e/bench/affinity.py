"""``python3 -m e2e.bench affinity``: cached share of prompts with two real engines, by policy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.bench import report, snapshot
from e2e.bench.conversations import Cached, Size
from e2e.bench.conversations import run as run_conversations
from e2e.bench.rig import Tools
from e2e.services.scripted_control import ScriptedControl
from tools import progress
from tools.product import Gateway
from tools.services.engine import Engine

MODEL = "smollm2"
DIRECT = "one engine, directly"
POLICIES = ("cache-affinity", "round-robin")

# Maximum difference to a single engine, as a share of the prompt tokens.
MARK = 0.05


def run(tools: Tools, size: Size, out: Path | None) -> bool:
    """Measures, prints the table, writes the JSON; returns whether cache-affinity meets the criterion."""
    found = measure(tools.gateway, size)
    alone = found[DIRECT].share
    rows = [["", "prompt tokens", "cached", "share", "to one engine"]]
    for name, cached in found.items():
        difference = f"{(cached.share - alone) * 100:+.1f} points"
        rows.append([name, str(cached.prompt), str(cached.cached), f"{cached.share:.1%}", difference])
    print(report.aligned(rows))
    met = found["cache-affinity"].share >= alone - MARK
    progress.say(f"cache-affinity within {MARK * 100:.0f} points of one engine: {'met' if met else 'NOT met'}")
    results = [
        {"arm": name, "prompt_tokens": one.prompt, "cached_tokens": one.cached, "share": one.share}
        for name, one in found.items()
    ]
    report.write(out, {"size": vars(size), "met": met, "samples": results})
    return met


def measure(program: Path, size: Size) -> dict[str, Cached]:
    """The cached tokens of a single engine, and of two engines behind the gateway with each policy."""
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="fastllm-bench-") as folder,
        engines(slots=4) as pair,
        ScriptedControl() as control,
    ):
        control.publish(snapshot.served({MODEL: [f"{engine.url}/v1" for engine in pair]}))
        with progress.step(DIRECT):
            found[DIRECT] = run_conversations(f"{pair[0].url}/v1", "none", MODEL, size)
        for policy in POLICIES:
            for engine in pair:
                engine.stop()
                engine.start()
            with (
                progress.step(f"two engines, {policy}"),
                Gateway(program, Path(folder), control.url, f"--policy={policy}", name=policy) as gateway,
            ):
                found[policy] = run_conversations(f"{gateway.url}/v1", snapshot.key(0), MODEL, size)
    return found


@contextmanager
def engines(*, slots: int, context: int = 2048) -> Iterator[tuple[Engine, Engine]]:
    """Two engines with the same model name."""
    with (
        Engine("bench-1", alias=MODEL, parallel=slots, context=context) as one,
        Engine("bench-2", alias=MODEL, parallel=slots, context=context) as two,
    ):
        yield one, two
