"""What all peers have in common."""

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
    """A program between load and upstream; a context manager that starts it and waits until it answers."""

    # What the tables call it.
    name: str
    # Whether it writes answers anew, so that they may differ from the upstream's.
    rewrites = False
    # Who asks for what of it.
    population = Population()
    # Seconds until it answers.
    patience = 30.0

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.port = 0
        # None: on any.
        self.core: int | None = rig.peer_core
        self._open = ExitStack()
        self._program: Program | None = None

    def prepare(self) -> None:
        """Installs what it needs; called before anything is started."""

    def command(self) -> Sequence[str | Path]:
        """The command that serves ``self.port`` on the loopback address."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Variables that it needs."""
        return {}

    def version(self) -> str:
        """What it calls itself."""
        return ""

    def __enter__(self) -> Peer:
        with ExitStack() as opened, progress.step(f"{self.name} starts"):
            _, self.port = address.parse("127.0.0.1:0")
            self.folder.mkdir()
            log = self.folder / f"{self.name}.log"
            program = Program(self.command(), core=self.core, log=log, env=self.environment())
            self._program = opened.enter_context(program)
            progress.wait_until(self.name, self._answers, seconds=self.patience, log=log)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def folder(self) -> Path:
        """For its configuration and its log."""
        return self.rig.folder / self.name

    @property
    def target(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def pids(self) -> list[int]:
        """Its processes."""
        if self._program is None or not self._program.alive():
            raise progress.StepFailed(f"{self.name} has ended")
        return procfs.family(self._program.pid)

    def _answers(self) -> bool:
        if self._program is None or not self._program.alive():
            raise progress.StepFailed(f"{self.name} ended:\n{progress.tail(self.folder / f'{self.name}.log')}")
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
