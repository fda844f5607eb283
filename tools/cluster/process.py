"""Long-running processes: started apart from us, found again by pid and start time, ended by pid."""

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
    """The kernel's start time of a process (so that a reused pid is told apart), or None when it is gone."""
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
        """Starts it in a session of its own, so that it outlives us, and returns its pid at once."""
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
        # It outlives us: nobody waits for it, and that is no mistake to warn of.
        process.returncode = 0
        return process.pid

    @property
    def pid(self) -> int | None:
        """Its pid while it runs, else None."""
        try:
            pid, since = self.pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if started_at(int(pid)) == since else None

    def alive(self) -> bool:
        """Whether it runs. Raises StepFailed with the end of its log when it was started and is gone."""
        if self.pid is None:
            raise StepFailed(f"{self.name} ended; the end of {self.log}:\n{tail(self.log)}")
        return True

    def stop(self, *, how: int = signal.SIGTERM, seconds: float = 10) -> None:
        """Ends it, by force when it does not go within ``seconds``; it is gone afterwards."""
        pid = self.pid
        if pid is not None:
            end(pid, how=how, seconds=seconds)
        self.pid_file.unlink(missing_ok=True)


def end(pid: int, *, how: int = signal.SIGTERM, seconds: float = 10) -> None:
    """Signals one process and waits until it is gone; SIGKILL when it takes longer than ``seconds``."""
    since = started_at(pid)
    for what, patience in ((how, seconds), (signal.SIGKILL, 10.0)):
        if since is None or started_at(pid) != since:
            break
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while started_at(pid) == since and time.monotonic() < deadline:
            _reap(pid)
            time.sleep(0.02)
    if since is not None and started_at(pid) == since:
        raise StepFailed(f"process {pid} does not end")


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def with_argument(mark: str) -> list[int]:
    """The processes that have exactly this among their arguments."""
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
