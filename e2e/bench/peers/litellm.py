"""LiteLLM's proxy, without a database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from e2e.bench.snapshot import CREDENTIAL, KINDS, key, model
from e2e.setup import venv

_PACKAGE = "litellm[proxy]==1.105.7"


class LiteLlm(Peer):
    """Two workers, as its documentation asks for more than one."""

    name = "litellm"
    rewrites = True
    patience = 120.0

    def prepare(self) -> None:
        """Makes its venv."""
        self._bin = venv.package_venv(_PACKAGE) / "bin"

    def command(self) -> Sequence[str | Path]:
        """Its configuration is JSON, which is YAML."""
        models = [
            {
                "model_name": model(kind, 0),
                "litellm_params": {
                    "model": f"openai/{model(kind, 0)}",
                    "api_base": self.rig.api_base,
                    "api_key": CREDENTIAL,
                },
            }
            for kind in KINDS
        ]
        config = self.folder / "config.yaml"
        config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key(0)}}))
        return [
            self._bin / "litellm",
            f"--config={config}",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--num_workers=2",
        ]

    def environment(self) -> Mapping[str, str]:
        """It asks the network for prices otherwise."""
        return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PATH": f"{self._bin}:/usr/bin:/bin"}

    def version(self) -> str:
        """The package that was asked for."""
        return _PACKAGE
