"""The test bed of the peers: mock upstream, scripted control plane and load generator."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from e2e.bench.processes import Program, cores, many_files
from e2e.bench.snapshot import Population, snapshot
from tools import cargo, paths, progress

_BUILT = paths.CHECKOUT / "target" / "release"


@dataclass(frozen=True)
class Tools:
    """The paths of the gateway and the benchmark programs."""

    folder: Path = _BUILT
    gateway: Path = _BUILT / "fastllm-gateway"

    def program(self, name: str) -> Path:
        """The path of a program. Raises StepFailed if it is not built."""
        path = self.folder / name
        if not path.exists():
            raise progress.StepFailed(f"{path} does not exist; omit --no-build to build it")
        return path


def build() -> None:
    """Builds the gateway and the benchmark programs."""
    cargo.build([f"fastllm-{name}" for name in ("gateway", "bench", "steps")])


class Rig:
    """The running upstream and control plane, with a temporary folder. A context manager."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.load_core, self.peer_core = cores()
        self._beside_peers: list[Program] = []
        self._open = ExitStack()

    def __enter__(self) -> Rig:
        many_files()
        with ExitStack() as opened:
            self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="fastllm-bench-")))
            self._snapshots = self.folder / "snapshots"
            self._snapshots.mkdir()
            self.upstream = self._start(opened, "bench-upstream")
            self.control = self._start(opened, "bench-control", f"--snapshots={self._snapshots}")
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start(self, opened: ExitStack, name: str, *arguments: str) -> str:
        log = self.folder / f"{name}.log"
        command = [self.tools.program(name), *arguments]
        program = opened.enter_context(Program(command, core=self.load_core, log=log, output=True))
        self._beside_peers.append(program)
        return program.line()

    def relay_tls(self, target: str, authority: Path) -> str:
        """Starts a relay that connects to ``target`` by TLS; returns its address."""
        return self._start(self._open, "bench-relay", f"--target={target}", f"--tls-ca={authority}")

    def beside(self) -> list[int]:
        """The processes of upstream and control plane."""
        return [program.pid for program in self._beside_peers]

    @property
    def api_base(self) -> str:
        """The address of the mock upstream, for backends."""
        return f"http://{self.upstream}/v1"

    def publish(self, name: str, population: Population) -> str:
        """Makes the control plane serve a snapshot; returns the address for a gateway."""
        (self._snapshots / f"{name}.json").write_text(snapshot(population, self.api_base))
        return f"http://{self.control}/{name}"

    def usage_events(self) -> int:
        """The number of usage events that the control plane received."""
        with urllib.request.urlopen(f"http://{self.control}/events", timeout=10) as response:
            return json.load(response)

    def load(self, *arguments: str) -> Program:
        """Starts the load generator."""
        log = self.folder / "bench-load.log"
        return Program([self.tools.program("bench-load"), *arguments], core=self.load_core, log=log, output=True)
