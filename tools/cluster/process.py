"""Background processes that outlive their parent, identified by pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.progress import StepFailed, tail


def started_at(pid: int) -> str | None:
    """The start time of a process, which distinguishes reused pids, or None if the process has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Daemon:
    """A process with a pid file and a log, in one folder."""

    def __init__(self, name: str, folder: Path, log: Path | None = None) -> None:
        self.name = name
        self.pid_file = folder / f"{name}.pid"
        self.log = log or folder / f"{name}.log"

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: int | None = None,
    ) -> int:
        """Starts the process in a new session, so that it outlives this one, and returns its pid."""
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        identity = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=cwd,
                env=None if env is None else {**os.environ, **env},
                **identity,
            )
        self.pid_file.write_text(f"{process.pid} {started_at(process.pid)}\n")
        # The process is left running on purpose: prevents the ResourceWarning of Popen.
        process.returncode = 0
        return process.pid

    @property
    def pid(self) -> int | None:
        """The pid while the process runs, else None."""
        try:
            pid, since = self.pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if started_at(int(pid)) == since else None

    def alive(self) -> bool:
        """Returns True while the process runs. Raises StepFailed with the end of its log otherwise."""
        if self.pid is None:
            raise StepFailed(f"{self.name} has exited; the end of {self.log}:\n{tail(self.log)}")
        return True

    def stop(self, *, how: int = signal.SIGTERM, seconds: float = 10) -> None:
        """Stops the process and waits until it has exited; sends SIGKILL after ``seconds``."""
        pid = self.pid
        if pid is not None:
            end(pid, how=how, seconds=seconds)
        self.pid_file.unlink(missing_ok=True)


def end(pid: int, *, how: int = signal.SIGTERM, seconds: float = 10) -> None:
    """Signals a process and waits until it has exited; sends SIGKILL after ``seconds``."""
    since = started_at(pid)
    for number, timeout in ((how, seconds), (signal.SIGKILL, 10.0)):
        if since is None or started_at(pid) != since:
            break
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + timeout
        while started_at(pid) == since and time.monotonic() < deadline:
            _reap(pid)
            time.sleep(0.02)
    if since is not None and started_at(pid) == since:
        raise StepFailed(f"process {pid} does not exit")


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def with_argument(mark: str) -> list[int]:
    """The processes with exactly this argument."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found
