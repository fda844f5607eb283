from __future__ import annotations

import http.client
import http.server
import threading
import urllib.request

import pytest

from e2e.services.lossy_relay import LossyRelay


class Counting(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    done = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Counting.done += 1
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


def test_a_request_is_processed_although_its_response_is_lost() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with LossyRelay(f"http://127.0.0.1:{server.server_port}", b"POST /usage ", every=2) as relay:

            def post(path: str) -> bytes:
                with urllib.request.urlopen(f"{relay.url}{path}", data=b"{}", timeout=5) as response:
                    return response.read()

            assert [post("/other"), post("/usage"), post("/other")] == [b"ok"] * 3
            with pytest.raises((OSError, http.client.HTTPException)):
                post("/usage")
            assert (Counting.done, relay.lost_count) == (4, 1)
            assert post("/usage") == b"ok"
        server.shutdown()
