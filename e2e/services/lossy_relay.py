"""A TCP relay that drops responses: the server has processed the request, but the client gets no response."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["LossyRelay"]


class LossyRelay:
    """Relays connections to ``target`` (a URL). Drops every ``every``-th successful response to requests that start
    with ``lost``, and closes the connection instead. A context manager.
    """

    def __init__(self, target: str, lost: bytes, every: int) -> None:
        to = urlsplit(target)
        self._target = (to.hostname, to.port)
        self._lost, self._every = lost, every
        self._responses = itertools.count(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost_count = 0

    def __enter__(self) -> LossyRelay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        # A target that is down closes the connection.
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            request = [b""]
            there = threading.Thread(target=_forward, args=(client, server, request), daemon=True)
            there.start()
            with contextlib.suppress(OSError):
                while piece := server.recv(65536):
                    if self._drops(request[0], piece):
                        break
                    client.sendall(piece)
            _end(client, server)
            there.join(timeout=5)

    def _drops(self, request: bytes, response: bytes) -> bool:
        """Whether to drop the response that starts with these bytes."""
        if not request.startswith(self._lost) or not response.startswith(b"HTTP/1.1 200 "):
            return False
        if next(self._responses) % self._every:
            return False
        self.lost_count += 1
        return True


def _forward(client: socket.socket, server: socket.socket, request: list[bytes]) -> None:
    """Relays requests and records the first bytes of the latest one. Requests are not pipelined."""
    with contextlib.suppress(OSError):
        while piece := client.recv(65536):
            if piece.startswith((b"GET ", b"POST ")):
                request[0] = piece[:64]
            server.sendall(piece)
    _end(client, server)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
