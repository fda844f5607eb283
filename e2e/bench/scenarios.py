"""What is asked of every peer."""

from __future__ import annotations

from dataclasses import dataclass

# As in the load's crate: events that end a stream after its content.
CLOSING_EVENTS = 2


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

    def events(self, requests: int) -> int:
        """How many events clients must have seen after so many requests."""
        return requests * (self.frames + CLOSING_EVENTS) if self.frames else 0

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
