"""Measurement windows: counters before and after a load, with no request in flight at either time."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from e2e.bench import procfs
from e2e.bench.peers import Peer
from e2e.bench.quiet import DISTURBED, Quiet
from e2e.bench.scenarios import Scenario
from tools import progress


@dataclass(frozen=True)
class Sample:
    """One window of one peer. CPU is in microseconds per unit (a request, or a frame of a stream)."""

    peer: str
    scenario: str
    unit: str
    requests: int
    seconds: float
    cpu_us: float
    switches: float
    requests_per_second: float
    latency_p50_us: float
    latency_p99_us: float
    first_byte_p50_us: float
    first_byte_p99_us: float
    peak_bytes: int
    # Share of all cores that other processes used during the window.
    others: float

    def as_dict(self) -> dict:
        """The JSON representation."""
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """The kernel's counters of a window."""

    cpu_ns: int
    switches: int
    peak_bytes: int
    others: float


@dataclass(frozen=True)
class Length:
    """The lengths of a measurement."""

    rounds: int = 5
    window_ms: int = 1200
    warm_up_ms: int = 300
    # Total seconds to wait for other processes and to repeat disturbed windows.
    max_wait: float = 120.0


def rounds(peers: Sequence[Peer], scenarios: Sequence[Scenario], length: Length) -> list[Sample]:
    """Measures every peer in every scenario, in random order per round; repeats disturbed windows."""
    samples = []
    quiet = Quiet(length.max_wait)
    for number in range(length.rounds):
        with progress.step(f"round {number + 1} of {length.rounds}"):
            for scenario in scenarios:
                for peer in random.sample(peers, len(peers)):
                    samples.append(_undisturbed(peer, scenario, length, quiet))
    disturbed = sum(one.others > DISTURBED for one in samples)
    progress.say(f"windows disturbed by other processes: {disturbed} of {len(samples)}")
    return samples


def _undisturbed(peer: Peer, scenario: Scenario, length: Length, quiet: Quiet) -> Sample:
    """The first undisturbed window, or the least disturbed one after the maximum wait."""
    best = None
    while True:
        quiet.wait()
        one = window(peer, scenario, length)
        best = one if best is None or one.others < best.others else best
        if not quiet.again(one.others, one.seconds):
            return best


def window(peer: Peer, scenario: Scenario, length: Length) -> Sample:
    """One window. Raises StepFailed if a request failed or events are missing."""
    times = [f"--window-ms={length.window_ms}", f"--warm-up-ms={length.warm_up_ms}"]
    target = f"--target={peer.target}"
    with peer.rig.load("run", target, *times, *scenario.arguments(), *peer.population.arguments()) as load:
        _ready(load.line(), peer)
        # The processes of this run: the peer, its surroundings, and this process.
        ours = [*peer.rig.beside(), load.pid, os.getpid()]
        others = Quiet(0).others(lambda: [*peer.pids(), *ours])
        before = procfs.counters(peer.pids())
        load.resume()
        outcome = json.loads(load.line())
        after = procfs.counters(peer.pids())
        disturbed = others()
    if not peer.rewrites and (wrong := scenario.wrong(outcome)):
        raise progress.StepFailed(f"{peer.name}, {scenario.name}: {wrong}")
    cpu_ns, switches = after.since(before)
    peak = procfs.memory(peer.pids()).peak
    return sample(peer.name, scenario, outcome, Measured(cpu_ns, switches, peak, disturbed))


def sample(name: str, scenario: Scenario, outcome: dict, measured: Measured) -> Sample:
    """The sample of a window, from the outcome of the load and the counters."""
    units = scenario.units(outcome["requests"])
    return Sample(
        peer=name,
        scenario=scenario.name,
        unit=scenario.unit,
        requests=outcome["requests"],
        seconds=outcome["seconds"],
        cpu_us=measured.cpu_ns / 1000 / units,
        switches=measured.switches / units,
        requests_per_second=outcome["requests"] / outcome["seconds"],
        latency_p50_us=outcome["latency_us"]["p50"],
        latency_p99_us=outcome["latency_us"]["p99"],
        first_byte_p50_us=outcome["first_byte_us"]["p50"],
        first_byte_p99_us=outcome["first_byte_us"]["p99"],
        peak_bytes=measured.peak_bytes,
        others=measured.others,
    )


def _ready(line: str, peer: Peer) -> None:
    if line != "ready":
        raise progress.StepFailed(f"the load generator for {peer.name} printed {line!r}, not ready")
