"""Concurrent streams with the arrival time of each token. Uses no HTTP library, whose overhead would be measured."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tools import progress

_CONTENT = re.compile(rb'"content": ?"[^"]')
_DONE = b"data: [DONE]"
_READ = 1 << 16
_TIMEOUT = 120.0


@dataclass
class Stream:
    """Seconds until the first token, and between consecutive tokens."""

    first: float = 0.0
    gaps: list[float] = field(default_factory=list)


def volley(urls: Sequence[str], key: str, bodies: Sequence[dict]) -> list[Stream]:
    """Requests a stream per body concurrently, alternating between the base URLs (without ``/v1``)."""

    async def all_at_once() -> list[Stream]:
        connections = []
        for number, body in enumerate(bodies):
            at = urlsplit(urls[number % len(urls)])
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            connections.append((reader, writer, _request(at.netloc, key, body)))
        streams = (_stream(*connection) for connection in connections)
        return await asyncio.wait_for(asyncio.gather(*streams), timeout=_TIMEOUT)

    return asyncio.run(all_at_once())


def _request(host: str, key: str, body: dict) -> bytes:
    content = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Stream:
    stream, seen, last = Stream(), b"", 0.0
    began = time.perf_counter()
    writer.write(request)
    while _DONE not in seen:
        piece = await reader.read(_READ)
        now = time.perf_counter()
        if not piece:
            raise progress.StepFailed(f"a stream was aborted: {seen[-500:].decode(errors='replace')}")
        # Keeps only the bytes that may contain the start of an event.
        events = (seen + piece).split(b"\n\n")
        seen = events.pop()
        for event in events:
            if _CONTENT.search(event):
                if last:
                    stream.gaps.append(now - last)
                else:
                    stream.first = now - began
                last = now
            elif _DONE in event:
                seen = _DONE
    writer.close()
    if not last:
        raise progress.StepFailed("a stream ended without a token")
    return stream
