"""``python3 -m e2e.bench syscalls``: system calls per request, counted by strace, which slows programs down."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from e2e.bench import measure, peers, procfs, report
from e2e.bench.peers import Peer
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import PATH, Scenario
from tools import progress
from tools.cluster.process import end

_ROW = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+([a-z_0-9]+)$")


def calls(summary: str) -> dict[str, int]:
    """The calls by name, from the output of ``strace -c``."""
    found = {}
    for line in summary.splitlines():
        row = _ROW.match(line)
        if row and row.group(2) != "total":
            found[row.group(2)] = int(row.group(1))
    return found


def run(names: Sequence[str], length: measure.Length, tools: Tools, out: Path | None) -> None:
    """Counts, prints calls per unit by name, writes the JSON."""
    results = []
    with Rig(tools) as rig, ExitStack() as opened:
        made = [peers.make(name, rig) for name in names]
        for peer in made:
            peer.prepare()
        for peer in [opened.enter_context(peer) for peer in made]:
            for scenario in PATH:
                with progress.step(f"{peer.name}, {scenario.name}"):
                    results.append(_counted(peer, scenario, length))
    rows = [["", "", "calls", "of which"]]
    for one in results:
        per_unit = sorted(one["calls"].items(), key=lambda item: -item[1])
        most = ", ".join(f"{name} {value:.2f}" for name, value in per_unit if value >= 0.01)
        rows.append([one["scenario"], one["peer"], f"{sum(one['calls'].values()):.2f}", most])
    rows[1:] = sorted(rows[1:], key=lambda row: [scenario.name for scenario in PATH].index(row[0]))
    print(report.aligned(rows))
    report.write(out, {"samples": results})


def _counted(peer: Peer, scenario: Scenario, length: measure.Length) -> dict:
    """The calls per unit of one window under strace, by name."""
    times = [f"--window-ms={length.window_ms}", f"--warm-up-ms={length.warm_up_ms}"]
    target = f"--target={peer.target}"
    summary = peer.folder / f"{scenario.name}.strace"
    with peer.rig.load("run", target, *times, *scenario.arguments(), *peer.population.arguments()) as load:
        load.line()
        pids = peer.pids()
        attach = [word for pid in pids for word in ("-p", str(pid))]
        with subprocess.Popen(["strace", "-q", "-c", "-f", "-o", summary, *attach]) as tracer:
            try:
                progress.wait_until("strace", lambda: procfs.traced(pids), seconds=10)
                load.resume()
                outcome = json.loads(load.line())
            finally:
                end(tracer.pid, how=signal.SIGINT)
    units = scenario.units(outcome["requests"])
    return {
        "peer": peer.name,
        "scenario": scenario.name,
        "unit": scenario.unit,
        "requests": outcome["requests"],
        "calls": {name: count / units for name, count in calls(summary.read_text()).items()},
    }
