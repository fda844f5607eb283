"""What the user sees while things are made: one line a step, with the time it took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_START = time.monotonic()


class StepFailed(Exception):
    """A step failed; the message carries the tail of the log that explains it."""


def say(message: str) -> None:
    """Prints ``[ 12.3s] message``, the seconds counted from the start of this process."""
    print(f"[{time.monotonic() - _START:5.1f}s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Says what was done and how long it took; says so, too, when it failed."""
    began = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{message}: FAILED after {time.monotonic() - began:.1f} s")
        raise
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
    """Runs a command to its end and returns its output; its output also goes to ``log``.

    Raises StepFailed with the tail of the output when it fails.
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
        said = "\n".join((done.stdout + (done.stderr or "")).splitlines()[-25:])
        raise StepFailed(f"`{' '.join(words)}` ended with {done.returncode}:\n{said}")
    return done.stdout


def wait_until(
    what: str, ready: Callable[[], _T], *, seconds: float, log: Path | None = None, every: float = 0.05
) -> _T:
    """Polls ``ready()`` until it returns something true, and returns that.

    Raises StepFailed with the tail of ``log`` when ``seconds`` have gone.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = ready()
        if result:
            return result
        if time.monotonic() >= deadline:
            why = f"; the end of {log}:\n{tail(log)}" if log else ""
            raise StepFailed(f"{what}: not within {seconds:g} s{why}")
        time.sleep(every)
