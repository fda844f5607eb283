"""Programs of a run: pinned to a core, with a log, and gone when the run is."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.bench import procfs
from tools import progress
from tools.cluster.process import end


def cores() -> tuple[int, int]:
    """The core of load and upstream, and the one of the peers. Raises StepFailed where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise progress.StepFailed("two cores are needed: one for the load, one for what is measured")
    return usable[0], usable[1]


def many_files() -> int:
    """Raises the number of files that this process and those it starts may open to what is allowed; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Program:
    """A program on one core (None: on any), with its output in a log.

    A context manager; it ends with this process, too.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        core: int | None,
        log: Path,
        env: Mapping[str, str] | None = None,
        talks: bool = False,
    ) -> None:
        self.log = log
        self._errors = log.open("ab")
        # Nobody is left to stop it when this process is killed.
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        words = ["setpriv", "--pdeathsig", "TERM", *pinned, *map(str, command)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talks else self._errors,
            stderr=self._errors,
            env=None if env is None else {**os.environ, **env},
            text=True,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in reversed(procfs.family(self._process.pid) if self.alive() else []):
            end(pid)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream:
                stream.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def line(self) -> str:
        """The next line that it says. Raises StepFailed with the end of its log when it ends instead."""
        said = self._process.stdout.readline() if self._process.stdout else ""
        if not said:
            self._process.wait()
            raise progress.StepFailed(f"{self.log.stem} ended; the end of {self.log}:\n{progress.tail(self.log)}")
        return said.strip()

    def go_on(self) -> None:
        """Tells it to go on: an empty line."""
        self.tell("")

    def tell(self, line: str) -> None:
        """Tells it a line."""
        if self._process.stdin:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
