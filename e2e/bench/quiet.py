"""Whether anybody else uses this machine: their caches and their turns are in every figure that is taken meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from e2e.bench import procfs
from tools import progress

# Of all cores together: above this, a window is measured again.
DISTURBED = 0.06

_LOOK = 0.25


class Quiet:
    """How busy others are, and how much longer it is worth waiting for them (seconds, over a whole run)."""

    def __init__(self, patience: float) -> None:
        self._left = patience
        self._cores = os.cpu_count() or 1

    def others(self, ours: Callable[[], Iterable[int]]) -> Callable[[], float]:
        """Begins to watch; what it returns gives the share of all cores that others have used since."""
        began, busy, own = time.monotonic(), procfs.busy(), procfs.counters(ours())

        def share() -> float:
            grown, _ = procfs.counters(ours()).since(own)
            return share_of(procfs.busy() - busy, grown, time.monotonic() - began, self._cores)

        return share

    def wait(self) -> None:
        """Waits until nobody uses the machine, or until patience is at its end. Ours must be at rest."""
        while self._left > 0:
            share = self.others(lambda: ())
            time.sleep(_LOOK)
            if share() <= DISTURBED:
                return
            self._left -= _LOOK
            if self._left <= 0:
                progress.say("patience is at its end: others use this machine, only ratios are worth reading")

    def again(self, others: float, seconds: float) -> bool:
        """Whether a window of this length was disturbed, and there is patience for another one."""
        if others <= DISTURBED or self._left <= 0:
            return False
        self._left -= seconds
        return True


def share_of(busy_ns: int, own_ns: int, seconds: float, cores: int) -> float:
    """Of ``cores`` for ``seconds``, what was busy and not ours; the kernel counts in ticks, so never below 0."""
    return max(0.0, (busy_ns - own_ns) / 1e9 / seconds / cores)
