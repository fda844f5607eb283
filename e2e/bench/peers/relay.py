"""A relay that only copies bytes: the cost of reading and writing without processing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer


class Relay(Peer):
    """tokio on one thread, 8 KiB per copy. Not a lower bound: 64 KiB take eight reads."""

    name = "relay"

    def command(self) -> Sequence[str | Path]:
        """The version of the relay, a program of the load crate."""
        tool = self.rig.tools.program("bench-relay")
        return [tool, f"--listen={self.target}", f"--target={self.rig.upstream}"]
