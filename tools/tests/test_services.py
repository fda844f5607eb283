"""PostgreSQL and the model server: start, restart and complete removal. ``-m services``."""

from __future__ import annotations

import subprocess
import urllib.request

import openai
import pytest

from tools.progress import StepFailed
from tools.services.engine import Engine
from tools.services.postgres import Postgres

pytestmark = pytest.mark.services


def test_postgres_keeps_its_data_over_a_restart_and_requires_the_password() -> None:
    with Postgres("unit") as server:
        server.execute("create table t (n int); insert into t values (7)")
        assert server.url.endswith("/fastllm")
        server.stop()
        with pytest.raises(StepFailed):
            server.execute("select 1")
        server.start()
        assert server.execute("select n from t") == "7\n"
        other = server.create_database("second")
        assert subprocess.run(["psql", other, "-Atc", "select 1"], capture_output=True, check=True).stdout == b"1\n"
        wrong = server.url.replace("postgres://fastllm:", "postgres://fastllm:x")
        refused = subprocess.run(["psql", wrong, "-c", "select 1"], capture_output=True, text=True, check=False)
        assert "authentication failed" in refused.stderr
        folder, data = server._folder, server._data()
    assert not folder.exists()
    assert not data.exists()


def test_two_engines_share_a_name_and_report_usage() -> None:
    with Engine("unit-1") as first, Engine("unit-2") as second:
        assert first.url != second.url
        for engine in (first, second):
            client = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none")
            assert [model.id for model in client.models.list()] == ["smollm2"]
            response = client.chat.completions.create(
                model="smollm2", max_tokens=8, messages=[{"role": "user", "content": "Say hello."}]
            )
            assert response.usage.completion_tokens > 0
            with urllib.request.urlopen(f"{engine.url}/metrics", timeout=5) as metrics:
                assert b"llamacpp:prompt_tokens_total" in metrics.read()
        first.stop()
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{first.url}/health", timeout=1)
        first.start()
    assert not first._folder.exists()
