"""LiteLLM's proxy, without a database."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from e2e.bench.peers.peer import Peer
from e2e.bench.processes import Program
from e2e.bench.snapshot import CREDENTIAL, KINDS, key, model
from tools import progress
from tools.services import address
from tools.setup import venv

_PACKAGE = "litellm[proxy]==1.105.7"


class LiteLlm(Peer):
    """Two workers, as its documentation recommends more than one."""

    name = "litellm"
    rewrites = True
    startup_seconds = 120.0

    def prepare(self) -> None:
        """Creates its virtual environment."""
        self._bin = venv.package_venv(_PACKAGE) / "bin"

    def command(self) -> Sequence[str | Path]:
        """The command line, with all models on the mock upstream."""
        models = [(model(kind, 0), self.rig.api_base) for kind in KINDS]
        return _command(self._bin, self.folder, self.port, models)

    def environment(self) -> Mapping[str, str]:
        """The environment variables, common to all configurations."""
        return _environment(self._bin)

    def version(self) -> str:
        """The pinned package."""
        return _PACKAGE


class LiteLlmPool:
    """LiteLLM in front of several engines with one model, chosen at random. A context manager."""

    def __init__(self, folder: Path, name: str, urls: Sequence[str]) -> None:
        self._folder, self._models = folder, [(name, f"{url}/v1") for url in urls]
        _, self._port = address.parse("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self._port}"
        self._open = ExitStack()

    def __enter__(self) -> LiteLlmPool:
        programs = venv.package_venv(_PACKAGE) / "bin"
        log = self._folder / "litellm.log"
        command = _command(programs, self._folder, self._port, self._models)
        with ExitStack() as opened, progress.step("litellm starts"):
            opened.enter_context(Program(command, core=None, log=log, env=_environment(programs)))
            progress.wait_until("litellm", self._responds, seconds=LiteLlm.startup_seconds, log=log)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _responds(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/liveliness", timeout=5) as response:
                return response.status == 200
        except (OSError, urllib.error.URLError):
            return False


def _command(programs: Path, folder: Path, port: int, models: Sequence[tuple[str, str]]) -> list[str | Path]:
    """The configuration, as JSON, which is valid YAML."""
    served = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": base, "api_key": CREDENTIAL}}
        for name, base in models
    ]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"model_list": served, "general_settings": {"master_key": key(0)}}))
    return [programs / "litellm", f"--config={config}", "--host=127.0.0.1", f"--port={port}", "--num_workers=2"]


def _environment(programs: Path) -> dict[str, str]:
    """Environment variables that prevent a download of price lists."""
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PATH": f"{programs}:/usr/bin:/bin"}
