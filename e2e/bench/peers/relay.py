"""A relay that copies bytes: what reading and writing cost where nothing is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer


class Relay(Peer):
    """tokio on one thread, 8 KiB a copy. It is no floor: 64 KiB take eight reads."""

    name = "relay"

    def command(self) -> Sequence[str | Path]:
        """From the load's crate."""
        tool = self.rig.tools.program("bench-relay")
        return [tool, f"--listen={self.target}", f"--target={self.rig.upstream}"]
