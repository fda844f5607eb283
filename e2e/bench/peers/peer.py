"""The common interface of all peers."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from e2e.bench import procfs
from e2e.bench.processes import Program
from e2e.bench.rig import Rig
from e2e.bench.snapshot import Population, key, model
from tools import progress
from tools.services import address


class Peer:
    """A proxy between load and upstream. A context manager, which starts it and waits until it responds."""

    # The name in tables.
    name: str
    # Whether it re-encodes responses, which may then differ from the upstream's.
    rewrites = False
    # The keys and models of the load.
    population = Population()
    # Maximum seconds until it responds.
    startup_seconds = 30.0

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.port = 0
        # None: any core.
        self.core: int | None = rig.peer_core
        self._open = ExitStack()
        self._program: Program | None = None

    def prepare(self) -> None:
        """Installs its requirements; called before any program starts."""

    def command(self) -> Sequence[str | Path]:
        """The command that serves ``self.port`` on the loopback address."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Additional environment variables."""
        return {}

    def version(self) -> str:
        """Its name and version."""
        return ""

    def __enter__(self) -> Peer:
        with ExitStack() as opened, progress.step(f"{self.name} starts"):
            _, self.port = address.parse("127.0.0.1:0")
            self.folder.mkdir()
            log = self.folder / f"{self.name}.log"
            program = Program(self.command(), core=self.core, log=log, env=self.environment())
            self._program = opened.enter_context(program)
            progress.wait_until(self.name, self._responds, seconds=self.startup_seconds, log=log)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def folder(self) -> Path:
        """The folder of its configuration and its log."""
        return self.rig.folder / self.name

    @property
    def target(self) -> str:
        """The address of its listener."""
        return f"127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        """The IDs of its processes."""
        if self._program is None or not self._program.alive():
            raise progress.StepFailed(f"{self.name} has exited")
        return procfs.family(self._program.pid)

    def _responds(self) -> bool:
        if self._program is None or not self._program.alive():
            raise progress.StepFailed(f"{self.name} has exited:\n{progress.tail(self.folder / f'{self.name}.log')}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        body = {"messages": [{"role": "user", "content": "hello"}], "model": model("bench-json", 0)}
        headers = {"Authorization": f"Bearer {key(0)}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
