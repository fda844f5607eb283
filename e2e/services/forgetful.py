"""A TCP relay that loses answers on their way back: what was done is done, and its caller does not know."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["Forgetful"]


class Forgetful:
    """Carries every connection to ``target`` (a URL), but every so many a good answer to requests that begin with
    ``lost`` does not come through: their connection ends instead. A context manager.
    """

    def __init__(self, target: str, lost: bytes, every: int) -> None:
        to = urlsplit(target)
        self._target = (to.hostname, to.port)
        self._lost, self._every = lost, every
        self._answers = itertools.count(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.forgotten = 0

    def __enter__(self) -> Forgetful:
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
        # Whoever is not there is not reached through a relay either.
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            asked = [b""]
            there = threading.Thread(target=_ask, args=(client, server, asked), daemon=True)
            there.start()
            with contextlib.suppress(OSError):
                while piece := server.recv(65536):
                    if self._forgets(asked[0], piece):
                        break
                    client.sendall(piece)
            _end(client, server)
            there.join(timeout=5)

    def _forgets(self, asked: bytes, answer: bytes) -> bool:
        """Whether these first bytes of an answer are not carried on."""
        if not asked.startswith(self._lost) or not answer.startswith(b"HTTP/1.1 200 "):
            return False
        if next(self._answers) % self._every:
            return False
        self.forgotten += 1
        return True


def _ask(client: socket.socket, server: socket.socket, asked: list[bytes]) -> None:
    """Carries requests, and notes how the latest begins: one comes after the answer to the one before it."""
    with contextlib.suppress(OSError):
        while piece := client.recv(65536):
            if piece.startswith((b"GET ", b"POST ")):
                asked[0] = piece[:64]
            server.sendall(piece)
    _end(client, server)


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
