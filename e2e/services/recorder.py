"""A TCP relay that keeps what it carried: what did the engine really send?"""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["Exchange", "Recorder"]


class Exchange:
    """One connection: the bytes of both directions so far, and whether the gateway ended it."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.answered = bytearray()
        self.ended = False


class Recorder:
    """Listens on ``address`` (a free port) and carries every connection to ``target`` (a URL)."""

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
            there = threading.Thread(target=_ask, args=(client, engine, exchange), daemon=True)
            there.start()
            _copy(engine, client, exchange.answered)
            there.join(timeout=5)

    def completions(self) -> list[bytes]:
        """The bodies of all chat completions so far, chunked coding removed; each carries an id of its own.

        Health probes pass here, too, and connections are reused, so there is no such thing as the last one.
        """
        bodies = [body for exchange in self.exchanges for body in _bodies(bytes(exchange.answered))]
        return [body for body in bodies if b'"chat.completion' in body]


def _ask(client: socket.socket, engine: socket.socket, exchange: Exchange) -> None:
    _copy(client, engine, exchange.sent)
    exchange.ended = True


def _copy(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            kept += piece
            sink.sendall(piece)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _bodies(answers: bytes) -> list[bytes]:
    bodies = []
    while answers:
        head, whole, rest = answers.partition(b"\r\n\r\n")
        if not whole:
            break
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if headers.get(b"transfer-encoding") == b"chunked":
            body, answers = _unchunked(rest)
        else:
            length = int(headers.get(b"content-length", len(rest)))
            body, answers = rest[:length], rest[length:]
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
