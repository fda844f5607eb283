"""Detects other load on the machine, which disturbs measurements by its use of caches and cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from e2e.bench import procfs
from tools import progress

# Share of all cores above which a window counts as disturbed.
DISTURBED = 0.06

_LOOK = 0.25


class Quiet:
    """Measures the load of other processes, and limits the total time to wait for them during a run (seconds)."""

    def __init__(self, max_wait: float) -> None:
        self._left = max_wait
        self._cores = os.cpu_count() or 1

    def others(self, ours: Callable[[], Iterable[int]]) -> Callable[[], float]:
        """Starts a measurement; the returned function gives the share of all cores that others have used since."""
        began, busy, own = time.monotonic(), procfs.busy(), procfs.counters(ours())

        def share() -> float:
            grown, _ = procfs.counters(ours()).since(own)
            return share_of(procfs.busy() - busy, grown, time.monotonic() - began, self._cores)

        return share

    def wait(self) -> None:
        """Waits until the machine is idle, or until the maximum wait is over. Programs of the run must be idle."""
        while self._left > 0:
            share = self.others(lambda: ())
            time.sleep(_LOOK)
            if share() <= DISTURBED:
                return
            self._left -= _LOOK
            if self._left <= 0:
                progress.say("the maximum wait is over: other processes use this machine, only ratios are meaningful")

    def again(self, others: float, seconds: float) -> bool:
        """Whether a window of this length was disturbed and there is time to repeat it."""
        if others <= DISTURBED or self._left <= 0:
            return False
        self._left -= seconds
        return True


def share_of(busy_ns: int, own_ns: int, seconds: float, cores: int) -> float:
    """The share of ``cores`` used by others in ``seconds``. The kernel counts in ticks; negative results become 0."""
    return max(0.0, (busy_ns - own_ns) / 1e9 / seconds / cores)
