"""Windows: counters before, load, counters after, with nothing under way at either moment."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from e2e import progress
from e2e.bench import procfs
from e2e.bench.peers import Peer
from e2e.bench.scenarios import Scenario


@dataclass(frozen=True)
class Sample:
    """One window of one peer. CPU in microseconds a unit (a request, or a frame of a stream)."""

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

    def as_dict(self) -> dict:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Length:
    """How long is measured."""

    rounds: int = 5
    window_ms: int = 1200
    warm_up_ms: int = 300


def quiet() -> float:
    """The load average of the last minute; says so where others use the machine."""
    load = os.getloadavg()[0]
    if load > 0.7:
        progress.say(f"the load average is {load:.1f}: others use this machine, only ratios are worth reading")
    return load


def rounds(peers: Sequence[Peer], scenarios: Sequence[Scenario], length: Length) -> list[Sample]:
    """Measures every peer in every scenario, in another order each time."""
    samples = []
    for number in range(length.rounds):
        with progress.step(f"round {number + 1} of {length.rounds}"):
            for scenario in scenarios:
                for peer in random.sample(peers, len(peers)):
                    samples.append(window(peer, scenario, length))
    return samples


def window(peer: Peer, scenario: Scenario, length: Length) -> Sample:
    """One window. Raises StepFailed where a request failed or events are missing."""
    times = [f"--window-ms={length.window_ms}", f"--warm-up-ms={length.warm_up_ms}"]
    target = f"--target={peer.target}"
    with peer.rig.load("run", target, *times, *scenario.arguments(), *peer.population.arguments()) as load:
        _ready(load.line(), peer)
        before = procfs.counters(peer.pids())
        load.go_on()
        outcome = json.loads(load.line())
        after = procfs.counters(peer.pids())
    if not peer.rewrites and (wrong := scenario.wrong(outcome)):
        raise progress.StepFailed(f"{peer.name}, {scenario.name}: {wrong}")
    cpu_ns, switches = after.since(before)
    return sample(peer.name, scenario, outcome, cpu_ns, switches, procfs.memory(peer.pids()).peak)


def sample(name: str, scenario: Scenario, outcome: dict, cpu_ns: int, switches: int, peak: int) -> Sample:
    """What the load's outcome and the kernel's counters say."""
    units = scenario.units(outcome["requests"])
    return Sample(
        peer=name,
        scenario=scenario.name,
        unit=scenario.unit,
        requests=outcome["requests"],
        seconds=outcome["seconds"],
        cpu_us=cpu_ns / 1000 / units,
        switches=switches / units,
        requests_per_second=outcome["requests"] / outcome["seconds"],
        latency_p50_us=outcome["latency_us"]["p50"],
        latency_p99_us=outcome["latency_us"]["p99"],
        first_byte_p50_us=outcome["first_byte_us"]["p50"],
        first_byte_p99_us=outcome["first_byte_us"]["p99"],
        peak_bytes=peak,
    )


def _ready(said: str, peer: Peer) -> None:
    if said != "ready":
        raise progress.StepFailed(f"the load in front of {peer.name} said {said!r}")
