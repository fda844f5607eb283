"""A client that disconnects cancels the engine's work, according to the engine's metrics."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

import httpx
import pytest

from e2e.services.recorder import Recorder
from e2e.tests.caller import Caller
from tools import progress
from tools.services.engine import Engine

LONG = {"text": "Write a very long story about the sea.", "max_tokens": 1800}


def metric(engine: Engine, name: str) -> float:
    """The value of a metric of the engine."""
    text = httpx.get(f"{engine.url}/metrics").text
    found = re.search(rf"^llamacpp:{name} ([0-9.e+]+)$", text, re.MULTILINE)
    assert found, f"the engine has no metric {name}"
    return float(found.group(1))


def busy(engines: list[Engine]) -> bool:
    """Whether an engine is processing a request."""
    return any(metric(engine, "requests_processing") > 0 for engine in engines)


def predicted(engines: list[Engine]) -> float:
    """The number of tokens that the engines have generated."""
    return sum(metric(engine, "tokens_predicted_total") for engine in engines)


@pytest.fixture(autouse=True)
def idle(engines: list[Engine]) -> None:
    progress.wait_until("idle engines", lambda: not busy(engines), seconds=30)


def test_in_the_middle_of_a_stream(caller: Caller, engines: list[Engine]) -> None:
    before = predicted(engines)
    with caller.http.stream("POST", "/v1/chat/completions", json=caller.body(stream=True, **LONG)) as response:
        assert response.status_code == 200, response.read()
        pieces = response.iter_raw()
        next(pieces)
        progress.wait_until("an engine works", lambda: busy(engines), seconds=5)
    progress.wait_until("the engines stop", lambda: not busy(engines), seconds=4)
    assert predicted(engines) - before < LONG["max_tokens"] / 2


def test_before_a_plain_response(caller: Caller, engines: list[Engine], recorder: Recorder) -> None:
    """The engine finishes plain requests of disconnected clients, but the gateway must close its connection."""
    request = caller.http.build_request("POST", "/v1/chat/completions", json=caller.body("recorded", **LONG))
    at = urlsplit(caller.url)
    with socket.create_connection((at.hostname, at.port)) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        progress.wait_until("an engine works", lambda: busy(engines), seconds=5)
        carrying = [exchange for exchange in recorder.exchanges if b"very long story" in exchange.sent]
        assert len(carrying) == 1 and not carrying[0].ended
    progress.wait_until("the gateway disconnects", lambda: carrying[0].ended, seconds=2)
    assert not carrying[0].received.endswith(b"}")
