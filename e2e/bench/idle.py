"""``python3 -m e2e.bench idle``: memory of an idle stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from e2e.bench import measure, peers, procfs, report
from e2e.bench.peers import Peer
from e2e.bench.processes import many_files
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import BURST, Scenario
from tools import progress

# File descriptors that a gateway needs besides streams: log, listener, timers, connections to control.
_OTHER_FILES = 500


def fitting(streams: int, files: int) -> int:
    """The number of streams that fit, at two sockets each. Raises ValueError if none fits."""
    most = (files - _OTHER_FILES) // 2
    if most < 1:
        raise ValueError(f"{files} open files are too few for any stream")
    return min(streams, most)


def run(names: Sequence[str], streams: int, tools: Tools, out: Path | None) -> None:
    """Measures the peers in sequence, prints bytes per stream, writes the JSON."""
    streams = fitting(streams, many_files())
    rows = [["", "streams", "MiB before", "MiB with them", "KiB per stream", "CPU ms per second"]]
    results = []
    for name in names:
        with Rig(tools) as rig:
            made = peers.make(name, rig)
            made.prepare()
            with made as peer:
                one = _hold(peer, streams)
        results.append({"peer": name, **one})
        before, after = one["before_bytes"], one["with_streams_bytes"]
        rows.append(
            [
                name,
                str(streams),
                f"{before / 2**20:.1f}",
                f"{after / 2**20:.1f}",
                f"{(after - before) / streams / 1024:.2f}",
                f"{one['cpu_ms_per_second']:.1f}",
            ]
        )
    print(report.aligned(rows))
    report.write(out, {"samples": results})


def _hold(peer: Peer, streams: int) -> dict:
    """Resident memory before and with the streams; excludes the socket buffers of the kernel."""
    # A warm-up fills pools and tables first.
    measure.window(peer, BURST, measure.Length(window_ms=500))
    before = procfs.memory(peer.pids()).resident
    held = Scenario("hold", streams, model="bench-hold", frames=1)
    with peer.rig.load("hold", f"--target={peer.target}", *held.arguments(), *peer.population.arguments()) as load:
        with progress.step(f"{peer.name}: {streams} streams"):
            load.line()
        resident = procfs.memory(peer.pids()).resident
        cpu_ms = _cpu_of_a_second(peer)
        load.resume()
        if lost := int(load.line()):
            raise progress.StepFailed(f"{peer.name} ended {lost} of {streams} streams")
    return {
        "streams": streams,
        "before_bytes": before,
        "with_streams_bytes": resident,
        "cpu_ms_per_second": cpu_ms,
    }


def _cpu_of_a_second(peer: Peer, seconds: float = 3.0) -> float:
    """CPU milliseconds per second while all streams are idle."""
    before, began = procfs.counters(peer.pids()), time.monotonic()
    time.sleep(seconds)
    cpu_ns, _ = procfs.counters(peer.pids()).since(before)
    return cpu_ns / 1e6 / (time.monotonic() - began)
