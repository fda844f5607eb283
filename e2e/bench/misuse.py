"""What clients and upstreams do wrong: they leave, reset, break off; and TLS to the upstream in between."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time

from e2e.services.faulty_upstream import GOOD, RESET_HEAD, RESET_MIDDLE
from tools import progress

_RESET = struct.pack("ii", 1, 0)
_PAUSE = 0.02


class Misuse:
    """Each kind in turn, one at a time; ``counts`` is told how often."""

    def __init__(self, port: int, key: str, counts: dict[str, int]) -> None:
        self._port, self._key, self._counts = port, key, counts
        self._kinds = {
            "client resets a stream": lambda: self._leave("bench-paced-0000", reset=True),
            "client leaves a stream": lambda: self._leave("bench-paced-0000", reset=False),
            "client breaks off its body": self._half,
            "upstream resets before its answer": lambda: self._whole(RESET_HEAD, stream=False),
            "upstream resets a stream": lambda: self._whole(RESET_MIDDLE, stream=True),
            "TLS to the upstream": lambda: self._good(stream=False),
            "TLS to the upstream, streamed": lambda: self._good(stream=True),
        }

    def once(self) -> None:
        """All kinds, once each. Raises StepFailed where the gateway answers nothing, or a good upstream badly."""
        for name, act in self._kinds.items():
            act()
            self._counts[name] = self._counts.get(name, 0) + 1
            time.sleep(_PAUSE)

    def _connection(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=30)

    def _request(self, model: str, *, stream: bool) -> bytes:
        body = json.dumps({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]})
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode()

    def _leave(self, model: str, *, reset: bool) -> None:
        with self._connection() as connection:
            connection.sendall(self._request(model, stream=True))
            connection.recv(1024)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _half(self) -> None:
        with self._connection() as connection:
            connection.sendall(self._request(GOOD, stream=False)[:-20])

    def _whole(self, model: str, *, stream: bool) -> bytes:
        answer = b""
        # The gateway may pass a reset on.
        with self._connection() as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(self._request(model, stream=stream))
            while piece := connection.recv(65536):
                answer += piece
        if not answer.startswith(b"HTTP/1.1 "):
            raise progress.StepFailed(f"{model}: the gateway answers {answer!r}")
        return answer

    def _good(self, *, stream: bool) -> None:
        answer = self._whole(GOOD, stream=stream)
        if not answer.startswith(b"HTTP/1.1 200 ") or b'"content"' not in answer.replace(b" ", b""):
            raise progress.StepFailed(f"{GOOD}: the gateway answers {answer[:500]!r}")
