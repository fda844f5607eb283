"""A TCP relay that records both directions, to compare them with what a client received."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["Exchange", "Recorder"]


class Exchange:
    """One connection: the bytes of both directions so far, and whether the gateway closed it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.received = bytearray()
        self.ended = False


class Recorder:
    """Listens on ``address`` (a free port) and relays every connection to ``target`` (a URL)."""

    def __init__(self, address: str, target: str) -> None:
        to = urlsplit(target)
        self._target = (to.hostname, to.port)
        self._listener = socket.create_server((address, 0))
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        self.exchanges: list[Exchange] = []

    def __enter__(self) -> Recorder:
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
        exchange = Exchange()
        self.exchanges.append(exchange)
        with client, socket.create_connection(self._target) as engine:
            there = threading.Thread(target=_forward, args=(client, engine, exchange), daemon=True)
            there.start()
            _copy(engine, client, exchange.received)
            there.join(timeout=5)

    def completions(self) -> list[bytes]:
        """The decoded bodies of all chat completions so far; each has a unique ID.

        There is no method for the last one, because connections are reused and also carry health probes.
        """
        bodies = [body for exchange in self.exchanges for body in _bodies(bytes(exchange.received))]
        return [body for body in bodies if b'"chat.completion' in body]


def _forward(client: socket.socket, engine: socket.socket, exchange: Exchange) -> None:
    _copy(client, engine, exchange.sent)
    exchange.ended = True


def _copy(source: socket.socket, sink: socket.socket, recorded: bytearray) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            recorded += piece
            sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _bodies(responses: bytes) -> list[bytes]:
    bodies = []
    while responses:
        head, whole, rest = responses.partition(b"\r\n\r\n")
        if not whole:
            break
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if headers.get(b"transfer-encoding") == b"chunked":
            body, responses = _unchunked(rest)
        else:
            length = int(headers.get(b"content-length", len(rest)))
            body, responses = rest[:length], rest[length:]
        bodies.append(body)
    return bodies


def _unchunked(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0] or b"0", 16)
        if length == 0:
            return body, rest.removeprefix(b"\r\n")
        body, rest = body + rest[:length], rest[length + 2 :]
