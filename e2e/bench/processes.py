"""Programs of a run, pinned to a core, with a log. They exit with the run."""

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
    """The core of load and upstream, and the core of the peers. Raises StepFailed if there is only one core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise progress.StepFailed("two cores are required: one for the load, one for the measured program")
    return usable[0], usable[1]


def many_files() -> int:
    """Raises the limit of open files of this process and its children to the maximum; returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Program:
    """A program on one core (None: on any), with its output in a log.

    A context manager. The program is also stopped when this process exits.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        core: int | None,
        log: Path,
        env: Mapping[str, str] | None = None,
        output: bool = False,
    ) -> None:
        self.log = log
        self._errors = log.open("ab")
        # Stops the program even if this process is killed.
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        words = ["setpriv", "--pdeathsig", "TERM", *pinned, *map(str, command)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE if output else subprocess.DEVNULL,
            stdout=subprocess.PIPE if output else self._errors,
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
        """The process ID."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the program is running."""
        return self._process.poll() is None

    def line(self) -> str:
        """The next line of its output. Raises StepFailed with the end of its log if it has exited."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process.wait()
            raise progress.StepFailed(f"{self.log.stem} has exited; the end of {self.log}:\n{progress.tail(self.log)}")
        return line.strip()

    def resume(self) -> None:
        """Sends an empty line, which resumes the program."""
        self.send("")

    def send(self, line: str) -> None:
        """Sends a line to its standard input."""
        if self._process.stdin:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
