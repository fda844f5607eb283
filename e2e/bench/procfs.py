"""Process statistics of the kernel: CPU time, memory, context switches."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Counters:
    """CPU nanoseconds and voluntary context switches of each thread since its start, by thread ID."""

    cpu_ns: dict[int, int]
    switches: dict[int, int]

    def since(self, before: Counters) -> tuple[int, int]:
        """CPU nanoseconds and voluntary switches since ``before``; threads that have exited are excluded."""
        return grown(before.cpu_ns, self.cpu_ns), grown(before.switches, self.switches)


@dataclass(frozen=True)
class Memory:
    """Resident memory in bytes, over all processes: current, and the sum of the peaks."""

    resident: int
    peak: int


def grown(before: dict[int, int], after: dict[int, int]) -> int:
    """The growth of the counters in ``after``; new ones start at 0."""
    return sum(value - before.get(key, 0) for key, value in after.items())


def on_cpu(schedstat: str) -> int:
    """The nanoseconds on a CPU: the first field of a ``schedstat``."""
    return int(schedstat.split()[0])


def fields(status: str) -> dict[str, int]:
    """The numbers of a ``status``: ``VmRSS`` and its kind in bytes, the others unchanged."""
    found = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def counters(pids: Iterable[int]) -> Counters:
    """Reads the counters of every thread of these processes."""
    cpu, switches = {}, {}
    for pid in pids:
        for thread in (_PROC / str(pid) / "task").iterdir():
            try:
                cpu[int(thread.name)] = on_cpu((thread / "schedstat").read_text())
                switches[int(thread.name)] = fields((thread / "status").read_text())["voluntary_ctxt_switches"]
            except (FileNotFoundError, ProcessLookupError):
                continue  # It exited after the listing.
    return Counters(cpu, switches)


def busy_ns(stat: str, hertz: int) -> int:
    """Busy nanoseconds of all cores, from ``/proc/stat``: all time except idle, I/O wait and steal."""
    user, nice, system, _idle, _waiting, irq, softirq = (int(word) for word in stat.split()[1:8])
    return (user + nice + system + irq + softirq) * 1_000_000_000 // hertz


def busy() -> int:
    """The busy nanoseconds of this machine."""
    return busy_ns((_PROC / "stat").read_text(), os.sysconf("SC_CLK_TCK"))


def memory(pids: Iterable[int]) -> Memory:
    """Reads the memory of these processes. Shared pages count once per process."""
    found = [fields((_PROC / str(pid) / "status").read_text()) for pid in pids]
    return Memory(sum(one["VmRSS"] for one in found), sum(one["VmHWM"] for one in found))


def descriptors(pid: int) -> int:
    """The number of open files and sockets of a process."""
    return len(list((_PROC / str(pid) / "fd").iterdir()))


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for known in found:
        for thread in (_PROC / str(known) / "task").glob("*/children"):
            try:
                found.extend(int(child) for child in thread.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def traced(pids: Iterable[int]) -> bool:
    """Whether a tracer is attached to every thread of these processes."""
    threads = [thread for pid in pids for thread in (_PROC / str(pid) / "task").iterdir()]
    return bool(threads) and all(fields((thread / "status").read_text())["TracerPid"] for thread in threads)
