"""The scenarios of load."""

from __future__ import annotations

from dataclasses import dataclass

# Same values as in the load crate: events after the content of a stream, and bytes of a plain response.
CLOSING_EVENTS = 2
JSON_BYTES = 602


@dataclass(frozen=True)
class Scenario:
    """A kind of load. ``frames`` is the number of content events of a streamed response, 0 for plain responses."""

    name: str
    connections: int
    model: str = "bench-json"
    body_bytes: int = 1024
    frames: int = 0
    stagger_ms: int = 0

    @property
    def unit(self) -> str:
        """The unit of CPU times."""
        return "frame" if self.frames else "request"

    def units(self, requests: int) -> int:
        """The number of units of a number of requests."""
        return requests * (self.frames or 1)

    def wrong(self, outcome: dict) -> str | None:
        """Describes an error in the responses of a window, or None. Missing and additional data are errors."""
        requests = outcome["requests"]
        if not self.frames:
            seen, due, what = outcome["content_bytes"], requests * JSON_BYTES, "bytes of JSON"
        else:
            seen, due, what = outcome["events"], requests * (self.frames + CLOSING_EVENTS), "events"
        return None if seen == due else f"{seen} {what} instead of {due}"

    def arguments(self) -> list[str]:
        """The arguments of the load generator."""
        words = [f"--connections={self.connections}", f"--model={self.model}", f"--body-bytes={self.body_bytes}"]
        words.append(f"--stagger-ms={self.stagger_ms}")
        return [*words, "--stream"] if self.frames else words


BURST = Scenario("burst-c16", 16, model="bench-burst", frames=200)

# Events arrive faster than the peer reads, so that a read returns many.
CLUMP = Scenario("clump-c16", 16, model="bench-clump", frames=200)

# Starts are spread over the length of a stream; simultaneous starts would cause unrealistic bursts.
PACED = Scenario("paced-c256", 256, model="bench-paced", frames=20, stagger_ms=200)

PATH = (
    Scenario("1k-c16", 16),
    Scenario("1k-c64", 64),
    Scenario("64k-c16", 16, body_bytes=65_536),
    Scenario("64k-c64", 64, body_bytes=65_536),
    BURST,
    CLUMP,
    PACED,
)
