"""A fake control plane: serves a given snapshot by long polling and counts usage events."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading

__all__ = ["ScriptedControl"]

_HOLD = 20.0


class ScriptedControl:
    """Serves a snapshot to any number of gateways, with any token. A context manager."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._snapshot = b""
        self._events = 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedControl:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.publish("")
        self._server.shutdown()
        self._server.server_close()

    def publish(self, snapshot: str) -> None:
        """Replaces the snapshot and completes pending polls."""
        with self._changed:
            self._version += 1
            self._snapshot = snapshot.encode()
            self._changed.notify_all()

    def usage_events(self) -> int:
        """The number of usage events received so far."""
        with self._changed:
            return self._events

    def _poll(self, known: str | None) -> tuple[str, bytes]:
        """Waits for a snapshot other than the known one, at most ``_HOLD`` seconds; returns its ETag and content."""
        with self._changed:
            self._changed.wait_for(lambda: self._etag() != known, timeout=_HOLD)
            return self._etag(), b"" if self._etag() == known else self._snapshot

    def _etag(self) -> str:
        return f'"{self._version}-scripted"'

    def _count(self, events: int) -> None:
        with self._changed:
            self._events += events


def _handler(control: ScriptedControl) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            etag, snapshot = control._poll(self.headers.get("if-none-match"))
            self._respond(200 if snapshot else 304, snapshot, etag)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.endswith("/usage"):
                self._respond(204, b"")
                return
            events = body.count(b'"principal_id":')
            control._count(events)
            self._respond(200, json.dumps({"accepted": events, "dropped": 0}).encode())

        def _respond(self, status: int, body: bytes, etag: str = "") -> None:
            # Gateways may disconnect while they poll.
            with contextlib.suppress(OSError):
                self.send_response(status)
                if etag:
                    self.send_header("etag", etag)
                if status == 200:
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return Handler
