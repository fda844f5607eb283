"""What is asked of every peer."""

from __future__ import annotations

from dataclasses import dataclass

# As in the load's crate: events that end a stream after its content, and bytes of an answer that is no stream.
CLOSING_EVENTS = 2
JSON_BYTES = 602


@dataclass(frozen=True)
class Scenario:
    """A kind of load. ``frames`` are the events with content of one answer, 0 where it is no stream."""

    name: str
    connections: int
    model: str = "bench-json"
    body_bytes: int = 1024
    frames: int = 0
    stagger_ms: int = 0

    @property
    def unit(self) -> str:
        """What the CPU time is divided by."""
        return "frame" if self.frames else "request"

    def units(self, requests: int) -> int:
        """How many units so many requests are."""
        return requests * (self.frames or 1)

    def wrong(self, outcome: dict) -> str | None:
        """What is wrong with the answers of a window, or None: nothing may be missing, nothing added."""
        requests = outcome["requests"]
        if not self.frames:
            seen, due, what = outcome["content_bytes"], requests * JSON_BYTES, "bytes of JSON"
        else:
            seen, due, what = outcome["events"], requests * (self.frames + CLOSING_EVENTS), "events"
        return None if seen == due else f"{seen} {what} instead of {due}"

    def arguments(self) -> list[str]:
        """For the load generator."""
        words = [f"--connections={self.connections}", f"--model={self.model}", f"--body-bytes={self.body_bytes}"]
        words.append(f"--stagger-ms={self.stagger_ms}")
        return [*words, "--stream"] if self.frames else words


BURST = Scenario("burst-c16", 16, model="bench-burst", frames=200)

# Its events reach the peer faster than it reads, so that one read brings many.
CLUMP = Scenario("clump-c16", 16, model="bench-clump", frames=200)

# Starts are spread over the length of a stream: together, they would be bursts that no real load has.
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
