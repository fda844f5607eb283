"""The FastLLM gateway with keys, grants, usage events, metrics and health checks; the access log is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from e2e.bench.rig import Rig
from e2e.bench.snapshot import Population
from tools import progress


class FastLlm(Peer):
    """The gateway with the scripted control plane.

    ``access_log`` writes a line per request, as by default. With more than one worker, the gateway uses all cores and
    shares them with the load.
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
        """The command line, with a worker per core."""
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
        """The proxy token; the scripted control plane accepts any."""
        return {"FASTLLM_PROXY_TOKEN": "bench"}

    def version(self) -> str:
        """The version that the program prints."""
        return progress.run([self.rig.tools.gateway, "--version"]).strip()
