"""Both planes as local processes on the loopback address, without Kubernetes."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tools import progress
from tools.cluster.process import Daemon
from tools.product.admin import Admin
from tools.services.address import parse

__all__ = ["Control", "Gateway", "Process"]

# One token per test run; only this machine can reach the loopback address.
_TOKEN = "pt-" + secrets.token_hex(24)


class Process:
    """A program of the product on a free port. A context manager, which waits until the program is ready."""

    def __init__(self, program: Path, name: str, folder: Path) -> None:
        self.program, self.folder = program, folder
        self._daemon = Daemon(name, folder)
        _, self.port = parse("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        """The command line."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """The environment variables, which carry the secrets."""
        return {"FASTLLM_PROXY_TOKEN": _TOKEN}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts or restarts the program and waits until it is ready."""
        self._daemon.start(self.command(), env=self.environment())
        try:
            progress.wait_until(self._daemon.name, self.ready, seconds=30, log=self.log)
        except BaseException:
            self._daemon.stop(seconds=3)
            raise

    def stop(self, *, how: int = signal.SIGTERM, seconds: float = 10) -> None:
        """Stops the program with a signal and waits until it has exited. Idempotent."""
        self._daemon.stop(how=how, seconds=seconds)

    @property
    def pid(self) -> int:
        """The process ID. Raises StepFailed with the end of the log if the program has exited."""
        self._daemon.alive()
        return self._daemon.pid or 0

    @property
    def log(self) -> Path:
        """The log file."""
        return self._daemon.log

    def ready(self) -> bool:
        """Whether /readyz returns 200."""
        self._daemon.alive()
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False


class Control(Process):
    """The control plane with one administrator."""

    def __init__(self, programs: Path, folder: Path, database: str) -> None:
        super().__init__(programs / "fastllm-control", "control", folder)
        self._password = secrets.token_urlsafe(18)
        self._key = secrets.token_hex(32)
        self._database = database

    def command(self) -> Sequence[str | Path]:
        """The command line: the port; everything else has a default."""
        return [self.program, f"--admin-port={self.port}"]

    def environment(self) -> Mapping[str, str]:
        """The proxy token, the database URL, the encryption key and the password of the bootstrap admin."""
        return {
            **super().environment(),
            "FASTLLM_DATABASE_URL": self._database,
            "FASTLLM_ENCRYPTION_KEY": self._key,
            "FASTLLM_BOOTSTRAP_PASSWORD": self._password,
        }

    def admin(self) -> Admin:
        """An admin API session. The first call creates the administrator."""
        progress.run([self.program, "set-password", "--name", "admin", "--create-only"], env=self.environment())
        return Admin(self.url, "admin", self._password)


class Gateway(Process):
    """A gateway connected to a control plane, real or scripted."""

    def __init__(self, program: Path, folder: Path, control: str, *arguments: str, name: str = "gateway") -> None:
        super().__init__(program, name, folder)
        self._words = [f"--control-url={control}", f"--replica={name}", *arguments]

    def command(self) -> Sequence[str | Path]:
        """The command line, with a separate snapshot cache."""
        cache = self.folder / f"{self._daemon.name}-snapshot.json"
        return [self.program, f"--port={self.port}", f"--snapshot-cache={cache}", *self._words]

    def serves(self, key: str, model: str) -> bool:
        """Whether the key can use the model, according to the current snapshot."""
        models = httpx.get(f"{self.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=5)
        return models.status_code == 200 and any(one["id"] == model for one in models.json()["data"])
