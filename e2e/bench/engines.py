"""``python3 -m e2e.bench engines``: time to first token and between tokens of real engines."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from e2e.bench import report, snapshot
from e2e.bench.affinity import MODEL, engines
from e2e.bench.intervals import interval, quantile
from e2e.bench.peers.litellm import LiteLlmPool
from e2e.bench.rig import Tools
from e2e.bench.streams import Stream, volley
from e2e.services.scripted_control import ScriptedControl
from tools import progress
from tools.product import Gateway

DIRECT, OURS = "direct", "fastllm"

# Concurrent streams, and the number of volleys per round.
VOLLEYS = {1: 24, 8: 8, 32: 4}

# Maximum latency that the gateway may add, in milliseconds.
MARK_MS = 1.0

_SLOTS = 16
_TOKENS = 12


@dataclass
class Arm:
    """The measurements of one target with a number of concurrent streams; one entry per volley."""

    volleys: list[list[Stream]] = field(default_factory=list)

    def first(self) -> list[float]:
        """Seconds to the first token of every stream."""
        return [stream.first for streams in self.volleys for stream in streams]

    def gaps(self) -> list[float]:
        """Seconds between tokens, of all streams."""
        return [gap for streams in self.volleys for stream in streams for gap in stream.gaps]

    def added(self, to: Arm) -> list[float]:
        """The mean time to first token minus the other arm's, per volley."""
        return [
            statistics.fmean(one.first for one in mine) - statistics.fmean(one.first for one in other)
            for mine, other in zip(self.volleys, to.volleys, strict=True)
        ]


def run(tools: Tools, rounds: int, out: Path | None, *, litellm: bool) -> bool:
    """Measures, prints the table, writes the JSON; returns whether the added latency is insignificant or low enough."""
    found = measure(tools.gateway, rounds, litellm=litellm)
    rows = [["streams", "", "first p50 ms", "p99", "gap p50 ms", "p99", "first, above direct ms", "95 %"]]
    samples, missed = [], []
    for (streams, name), arm in found.items():
        one = _summary(arm, found[streams, DIRECT] if name != DIRECT else None)
        between = one.get("added_ms")
        # Either the interval contains 0, or the added latency is below the limit.
        if name == OURS and between and between[0] > 0 and between[1] >= MARK_MS:
            missed.append(streams)
        rows.append(
            [
                str(streams),
                name,
                *(f"{one[key]:.2f}" for key in ("first_p50_ms", "first_p99_ms", "gap_p50_ms", "gap_p99_ms")),
                f"{one['added_p50_ms']:+.2f}" if between else "",
                "{:+.2f} … {:+.2f}".format(*between) if between else "",
            ]
        )
        samples.append({"streams": streams, "arm": name, **one})
    print(report.aligned(rows))
    verdict = f"NOT with {', '.join(map(str, missed))} streams" if missed else "yes"
    progress.say(f"latency added by the gateway is below 1 ms or insignificant: {verdict}")
    report.write(out, {"rounds": rounds, "samples": samples})
    return not missed


def _summary(arm: Arm, direct: Arm | None) -> dict:
    found: dict = {
        "first_p50_ms": quantile(arm.first(), 0.5) * 1000,
        "first_p99_ms": quantile(arm.first(), 0.99) * 1000,
        "gap_p50_ms": quantile(arm.gaps(), 0.5) * 1000,
        "gap_p99_ms": quantile(arm.gaps(), 0.99) * 1000,
    }
    if direct:
        added = arm.added(direct)
        low, high = interval(added)
        found["added_p50_ms"] = statistics.median(added) * 1000
        found["added_ms"] = (low * 1000, high * 1000)
    return found


def measure(program: Path, rounds: int, *, litellm: bool) -> Mapping[tuple[int, str], Arm]:
    """The arms by number of streams and target. Targets take turns in random order, with the same prompts."""
    with tempfile.TemporaryDirectory(prefix="fastllm-bench-") as folder, ExitStack() as opened:
        pair = opened.enter_context(engines(slots=_SLOTS, context=512))
        control = opened.enter_context(ScriptedControl())
        direct = [engine.url for engine in pair]
        control.publish(snapshot.served({MODEL: [f"{url}/v1" for url in direct]}))
        # Equal shares, as with direct streams.
        words = ("--policy=round-robin", "--log=warn")
        ours = opened.enter_context(Gateway(program, Path(folder), control.url, *words))
        places = {DIRECT: direct, OURS: [ours.url]}
        if litellm:
            places["litellm"] = [opened.enter_context(LiteLlmPool(Path(folder), MODEL, direct)).url]
        found = {(streams, name): Arm() for streams in VOLLEYS for name in places}
        for urls in places.values():
            volley(urls, snapshot.key(0), _bodies("warm up", 2))
        for number in range(rounds):
            with progress.step(f"round {number + 1} of {rounds}"):
                for streams, times in VOLLEYS.items():
                    for turn in range(times):
                        bodies = _bodies(f"{number} {turn}", streams)
                        for name in random.sample(list(places), len(places)):
                            # Single streams also use both engines.
                            urls = random.sample(places[name], len(places[name]))
                            found[streams, name].volleys.append(volley(urls, snapshot.key(0), bodies))
    return found


def _bodies(about: str, streams: int) -> list[dict]:
    """Short prompts of similar length that are in no cache; the computation of engines is noise here."""
    return [
        {
            "messages": [
                {"role": "system", "content": "."},
                {"role": "user", "content": f"Count on: {about} {number}"},
            ],
            "model": MODEL,
            "temperature": 0,
            "max_tokens": _TOKENS,
            "cache_prompt": False,
        }
        for number in range(streams)
    ]
