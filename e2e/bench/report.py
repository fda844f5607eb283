"""Tables of medians and of ratios within a run."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from e2e.bench.measure import Sample
from e2e.bench.quiet import DISTURBED
from tools import paths, progress


def of(samples: Sequence[Sample], peer: str, scenario: str, value: Callable[[Sample], float]) -> list[float]:
    """A value of all windows of a peer in a scenario; only of undisturbed windows if there are any."""
    windows = [one for one in samples if one.peer == peer and one.scenario == scenario]
    undisturbed = [one for one in windows if one.others <= DISTURBED]
    return [value(one) for one in undisturbed or windows]


def median(samples: Sequence[Sample], peer: str, scenario: str, value: Callable[[Sample], float]) -> float:
    """The median of a value. Raises ValueError if there are no windows."""
    found = of(samples, peer, scenario, value)
    if not found:
        raise ValueError(f"{peer} was not measured in {scenario}")
    return statistics.median(found)


def scenarios(samples: Sequence[Sample]) -> list[str]:
    """The measured scenarios, in order."""
    return list(dict.fromkeys(one.scenario for one in samples))


def cpu(sample: Sample) -> float:
    """The CPU time per unit, which is the value to compare."""
    return sample.cpu_us


def cpu_table(samples: Sequence[Sample], baseline: str, peers: Sequence[str]) -> str:
    """CPU microseconds per unit, with the ratio to ``baseline`` and the spread over the rounds."""
    units = {one.scenario: one.unit for one in samples}
    rows = [["CPU µs", *(f"{name} a {unit}" for name, unit in units.items())]]
    for peer in peers:
        row = [peer]
        for scenario in scenarios(samples):
            mid = median(samples, peer, scenario, cpu)
            ratio = ""
            if baseline in peers:
                ratio = f" {mid / median(samples, baseline, scenario, cpu):5.2f}×"
            row.append(f"{mid:.2f}{ratio} ±{spread(of(samples, peer, scenario, cpu)):.0%}")
        rows.append(row)
    return aligned(rows)


def spread(values: Sequence[float]) -> float:
    """Half the distance between the extremes, relative to the median."""
    return (max(values) - min(values)) / 2 / statistics.median(values)


def rest_table(samples: Sequence[Sample], peers: Sequence[str]) -> str:
    """The other values: throughput, latency, memory, switches."""
    rows = [["", "", "req/s", "p50 ms", "p99 ms", "first p50 ms", "first p99 ms", "peak MiB", "switches"]]
    for scenario in scenarios(samples):
        for peer in peers:

            def mid(name: str, peer: str = peer, scenario: str = scenario) -> float:
                return median(samples, peer, scenario, lambda one: getattr(one, name))

            rows.append(
                [
                    scenario,
                    peer,
                    f"{mid('requests_per_second'):.0f}",
                    f"{mid('latency_p50_us') / 1000:.2f}",
                    f"{mid('latency_p99_us') / 1000:.2f}",
                    f"{mid('first_byte_p50_us') / 1000:.2f}",
                    f"{mid('first_byte_p99_us') / 1000:.2f}",
                    f"{mid('peak_bytes') / 2**20:.0f}",
                    f"{mid('switches'):.2f}",
                ]
            )
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def machine() -> dict:
    """The machine and the revision of the measurement."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    head = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=paths.CHECKOUT, capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "processor": model,
        "commit": head.stdout.strip(),
    }


def write(path: Path | None, content: dict) -> None:
    """Writes JSON if a path is given."""
    if path:
        path.write_text(json.dumps({"machine": machine(), **content}, indent=1) + "\n")
        progress.say(f"written: {path}")
