"""SGLang's router in front of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from tools.setup import venv

_PACKAGE = "sglang-router==0.3.2"


class SgLang(Peer):
    """Round robin over a single worker, the mock upstream."""

    name = "sglang"
    startup_seconds = 60.0

    def prepare(self) -> None:
        """Creates its virtual environment."""
        self._bin = venv.package_venv(_PACKAGE) / "bin"

    def command(self) -> Sequence[str | Path]:
        """The command line of its launcher."""
        return [
            self._bin / "python",
            "-m",
            "sglang_router.launch_router",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--policy=round_robin",
            "--log-level=warn",
            "--worker-urls",
            f"http://{self.rig.upstream}",
        ]

    def version(self) -> str:
        """The pinned package."""
        return _PACKAGE
