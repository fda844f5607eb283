"""Faulty clients and upstreams: disconnects, resets, aborted bodies; also TLS connections to an upstream."""

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
    """Causes each kind of fault in turn and counts it in ``counts``."""

    def __init__(self, port: int, key: str, counts: dict[str, int]) -> None:
        self._port, self._key, self._counts = port, key, counts
        self._kinds = {
            "client resets a stream": lambda: self._disconnect("bench-paced-0000", reset=True),
            "client disconnects from a stream": lambda: self._disconnect("bench-paced-0000", reset=False),
            "client aborts its body": self._half,
            "upstream resets before its response": lambda: self._whole(RESET_HEAD, stream=False),
            "upstream resets a stream": lambda: self._whole(RESET_MIDDLE, stream=True),
            "TLS to the upstream": lambda: self._good(stream=False),
            "TLS to the upstream, streamed": lambda: self._good(stream=True),
        }

    def once(self) -> None:
        """Causes all kinds once. Raises StepFailed if the gateway does not respond, or a good response is wrong."""
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

    def _disconnect(self, model: str, *, reset: bool) -> None:
        with self._connection() as connection:
            connection.sendall(self._request(model, stream=True))
            connection.recv(1024)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _half(self) -> None:
        with self._connection() as connection:
            connection.sendall(self._request(GOOD, stream=False)[:-20])

    def _whole(self, model: str, *, stream: bool) -> bytes:
        response = b""
        # The gateway may forward a reset.
        with self._connection() as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(self._request(model, stream=stream))
            while piece := connection.recv(65536):
                response += piece
        if not response.startswith(b"HTTP/1.1 "):
            raise progress.StepFailed(f"{model}: the gateway responds {response!r}")
        return response

    def _good(self, *, stream: bool) -> None:
        response = self._whole(GOOD, stream=stream)
        if not response.startswith(b"HTTP/1.1 200 ") or b'"content"' not in response.replace(b" ", b""):
            raise progress.StepFailed(f"{GOOD}: the gateway responds {response[:500]!r}")
