"""Progress output of the tools: one line per step, with its duration."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_START = time.monotonic()
# Seconds between two reports of a step that is still running.
_INTERVAL = 15.0


class StepFailed(Exception):
    """A step failed; the message ends with the tail of the log that explains it."""


def say(message: str) -> None:
    """Prints ``[ 12.3s] message``, with the seconds since the start of this process."""
    print(f"[{time.monotonic() - _START:5.1f}s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str, status: Callable[[], str] | None = None, *, heartbeat: bool = True) -> Iterator[None]:
    """Prints the message with the duration when the step ends, also when it fails.

    While it runs, a line every few seconds shows ``status()`` and the elapsed time. ``heartbeat=False`` turns that
    off, for steps whose programs print progress of their own.
    """
    began = time.monotonic()
    done = threading.Event()

    def report() -> None:
        while not done.wait(_INTERVAL):
            detail = f"{status()}, " if status else ""
            say(f"  {message.strip()}: {detail}{time.monotonic() - began:.0f} s so far")

    if heartbeat:
        threading.Thread(target=report, daemon=True).start()
    try:
        yield
    except BaseException:
        done.set()
        say(f"{message}: FAILED after {time.monotonic() - began:.1f} s")
        raise
    finally:
        done.set()
    say(f"{message} ({time.monotonic() - began:.1f} s)")


def tail(path: Path, lines: int = 25) -> str:
    """The last ``lines`` lines of a log, or a note that there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 64 * 1024))
            text = log.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


def run(
    command: Sequence[str | Path],
    *,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Runs a command to completion and returns its output, which is also appended to ``log``.

    Raises StepFailed with the tail of the output if the command fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        input=stdin,
        env=None if env is None else {**os.environ, **env},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if log else subprocess.PIPE,
        text=True,
        check=False,
        errors="replace",
    )
    if log:
        with log.open("a") as out:
            out.write(f"$ {' '.join(words)}\n{done.stdout}")
    if done.returncode:
        output = "\n".join((done.stdout + (done.stderr or "")).splitlines()[-25:])
        raise StepFailed(f"`{' '.join(words)}` exited with status {done.returncode}:\n{output}")
    return done.stdout


def wait_until(
    what: str, ready: Callable[[], _T], *, seconds: float, log: Path | None = None, every: float = 0.05
) -> _T:
    """Polls ``ready()`` until it returns a true value, and returns that value.

    Raises StepFailed with the tail of ``log`` after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = ready()
        if result:
            return result
        if time.monotonic() >= deadline:
            why = f"; the end of {log}:\n{tail(log)}" if log else ""
            raise StepFailed(f"{what}: not ready within {seconds:g} s{why}")
        time.sleep(every)
