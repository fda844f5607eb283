"""Ours, with everything on: keys, grants, usage events, metrics, health checks. The access log is a peer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e import progress
from e2e.bench.peers.peer import Peer
from e2e.bench.rig import Rig
from e2e.bench.snapshot import Population


class FastLlm(Peer):
    """The data plane, fed by the scripted control plane. ``access_log`` writes a line a request, as by default."""

    def __init__(
        self, rig: Rig, name: str = "fastllm", population: Population | None = None, *, access_log: bool = False
    ) -> None:
        super().__init__(rig)
        self.name = name
        self.population = population or Population()
        self._log = "info" if access_log else "info,fastllm_gateway::access=off"

    def command(self) -> Sequence[str | Path]:
        """One worker, since it has one core."""
        return [
            self.rig.tools.program(str(self.rig.tools.gateway)),
            f"--port={self.port}",
            "--workers=1",
            f"--log={self._log}",
            f"--control-url={self.rig.publish(self.name, self.population)}",
            f"--snapshot-cache={self.folder / 'snapshot.json'}",
            f"--replica={self.name}",
        ]

    def environment(self) -> Mapping[str, str]:
        """The shared secret of both planes; the scripted one takes any."""
        return {"FASTLLM_PROXY_TOKEN": "bench"}

    def version(self) -> str:
        """As the program says it."""
        return progress.run([self.rig.tools.gateway, "--version"]).strip()
