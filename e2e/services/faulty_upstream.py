"""A fake upstream whose models respond correctly over TLS, or reset connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

from tools.cluster.certs import Keys
from tools.setup import debian

__all__ = ["GOOD", "MODELS", "RESETS", "RESET_HEAD", "RESET_MIDDLE", "FaultyUpstream"]

GOOD, RESET_HEAD, RESET_MIDDLE = "faulty-good", "faulty-reset-head", "faulty-reset-middle"
RESETS = (RESET_HEAD, RESET_MIDDLE)
MODELS = (GOOD, *RESETS)

_RESET = struct.pack("ii", 1, 0)
_EVENT = b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
_RESPONSE = {
    "id": "1",
    "object": "chat.completion",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


class FaultyUpstream:
    """Listens on two ports of the loopback address, plain and TLS, in its own thread. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._keys = Keys(folder / "pki", folder / "openssl.log")
        self._loop = asyncio.new_event_loop()
        self._ports = {"http": 0, "https": 0}
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> FaultyUpstream:
        debian.install_missing({"certificates"})
        self._keys.begin()
        self._keys.authority("ca", "faulty")
        self._keys.signed("server", "/CN=faulty", dns=["localhost"], ips=["127.0.0.1"])
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    @property
    def authority(self) -> Path:
        """The certificate authority for clients."""
        return self._keys.path("ca.crt")

    def api_bases(self) -> Mapping[str, list[str]]:
        """The backend addresses of each model: TLS for the good one."""
        plain, tls = (f"{scheme}://127.0.0.1:{port}/v1" for scheme, port in self._ports.items())
        return {GOOD: [tls], **{name: [plain] for name in RESETS}}

    async def _listen(self) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._keys.path("server.crt"), self._keys.path("server.key"))
        for scheme, context in (("http", None), ("https", tls)):
            server = await asyncio.start_server(_serve, "127.0.0.1", 0, ssl=context)
            self._servers.append(server)
            self._ports[scheme] = server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Stopping the server cancels connections that wait for a request.
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while await _respond(reader, writer):
            pass
    writer.close()


async def _respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Handles one request; returns whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, length, rest = head.partition(b"content-length: ")
    body = await reader.readexactly(int(rest.split(b"\r\n")[0])) if length else b"{}"
    request = json.loads(body)
    if request.get("model") == RESET_HEAD:
        return _reset(writer)
    if request.get("stream") or request.get("model") == RESET_MIDDLE:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
        await writer.drain()
        if request.get("model") == RESET_MIDDLE:
            # A reset discards unsent data, and the data so far must arrive.
            await asyncio.sleep(0.02)
            return _reset(writer)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        content = json.dumps(_RESPONSE).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
    await writer.drain()
    return True


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Closes the connection with a RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
    return False
