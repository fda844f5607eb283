"""A real inference engine: llama.cpp's OpenAI-compatible server with SmolLM2-135M, ready in under 2 s."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from tools import progress
from tools.cluster.process import Daemon
from tools.paths import CHECKOUT, checked_name, state_dir
from tools.services.address import parse
from tools.setup import venv


class Engine:
    """A model server. Several servers with the same ``alias`` form a load-balanced pool.

    ``parallel`` is the number of concurrent requests (others are queued), ``context`` the maximum number of tokens of
    each, ``threads`` the number of threads. ``/metrics`` is enabled. A server for ``embeddings`` serves only those.
    """

    def __init__(
        self,
        name: str = "engine",
        listen: str = "127.0.0.1:0",
        alias: str = "smollm2",
        *,
        parallel: int = 2,
        context: int = 2048,
        threads: int = 1,
        embeddings: bool = False,
    ) -> None:
        self.name = checked_name(name)
        self.alias = alias
        self._listen = listen
        self._sizes = {"parallel": parallel, "context": context, "threads": threads}
        self._more = ["--embeddings"] if embeddings else []
        self._folder = state_dir() / "services" / f"engine-{self.name}"
        self._daemon = Daemon("engine", self._folder)

    def __enter__(self) -> Engine:
        try:
            return self.up()
        except BaseException:
            self.down()
            raise

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def log(self) -> Path:
        """The server's log."""
        return self._daemon.log

    @property
    def url(self) -> str:
        """The base URL without ``/v1``. Raises StepFailed if the server is not up."""
        try:
            address = json.loads((self._folder / "about.json").read_text())
        except OSError as error:
            raise progress.StepFailed(f"engine {self.name} is not up") from error
        return f"http://{address['host']}:{address['port']}"

    def up(self) -> Engine:
        """Starts a new server and waits until the model is loaded."""
        venv.tests_venv()
        self.down()
        with progress.step(f"engine {self.name} ({self.alias})"):
            self._folder.mkdir(parents=True)
            host, port = parse(self._listen)
            (self._folder / "about.json").write_text(json.dumps({"host": host, "port": port}))
            self.start()
        return self

    def start(self) -> None:
        """Starts the server on its address, also after ``stop``, and waits until the model is loaded."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        flags = [
            f"--{name}={value}"
            for name, value in {"host": host, "port": port, "alias": self.alias, **self._sizes}.items()
        ]
        self._daemon.start(
            [venv.tests_venv() / "bin" / "python", "-m", "tools.services.engine_server", *flags, *self._more],
            cwd=CHECKOUT,
        )

        def ready() -> bool:
            self._daemon.alive()
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                    return response.status == 200
            except (OSError, urllib.error.URLError):
                return False

        progress.wait_until(f"engine {self.name}", ready, seconds=60, log=self.log)

    def stop(self) -> None:
        """Stops the server; ``start`` restarts it on the same address with an empty KV cache."""
        self._daemon.stop(seconds=3)

    def down(self) -> None:
        """Stops the server and removes its state. Idempotent."""
        self.stop()
        if self._folder.exists():
            shutil.rmtree(self._folder)
