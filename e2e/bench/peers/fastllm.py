"""Ours, with everything on: keys, grants, usage events, metrics, health checks. The access log is a peer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from e2e.bench.rig import Rig
from e2e.bench.snapshot import Population
from tools import progress


class FastLlm(Peer):
    """The data plane, fed by the scripted control plane.

    ``access_log`` writes a line a request, as by default. With more than one worker it has all cores, which it
    shares with the load.
    """

    def __init__(
        self,
        rig: Rig,
        name: str = "fastllm",
        population: Population | None = None,
        *,
        access_log: bool = False,
        workers: int = 1,
    ) -> None:
        super().__init__(rig)
        self._workers = workers
        if workers > 1:
            self.core = None
        self.name = name
        self.population = population or Population()
        self._log = "info" if access_log else "info,fastllm_gateway::access=off"

    def command(self) -> Sequence[str | Path]:
        """As many workers as it has cores."""
        return [
            self.rig.tools.program(str(self.rig.tools.gateway)),
            f"--port={self.port}",
            f"--workers={self._workers}",
            f"--log={self._log}",
            f"--control-url={self.rig.publish(self.name, self.population)}",
            f"--snapshot-cache={self.folder / 'snapshot.json'}",
            f"--replica={self.name}",
            *(["--metadata-labels=team"] if self.population.metadata else []),
        ]

    def environment(self) -> Mapping[str, str]:
        """The shared secret of both planes; the scripted one takes any."""
        return {"FASTLLM_PROXY_TOKEN": "bench"}

    def version(self) -> str:
        """As the program says it."""
        return progress.run([self.rig.tools.gateway, "--version"]).strip()
