"""``python3 -m e2e.bench micro``: what each step of a request costs, beside what the original published of it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.bench import processes, report
from e2e.bench.rig import Tools
from tools import paths, progress

_TEST = "steps::costs"

_BEGINNING = '{"step":'


@dataclass(frozen=True)
class Step:
    """A step and what it is; ``original`` is the original's published figure in nanoseconds."""

    name: str
    about: str
    original: int | None = None
    # On the path of each usual request; the rest is something's alternative, or off the path.
    usual: bool = False


STEPS = (
    Step("read-head", "read a request's head: 10 fields, 430 bytes", usual=True),
    Step("members-1k", "find the members of a body of 1 KiB", 229, usual=True),
    Step("members-64k", "find the members of a body of 64 KiB"),
    Step("hash-key", "hash a key"),
    Step("identify-1k-keys", "who asks: hash and look up, 1,000 keys in turn", usual=True),
    Step("identify-100k-keys", "the same, 100,000 keys"),
    Step("route-10-models", "resolve and route, 10 models in turn", usual=True),
    Step("route-1000-models", "the same, 1,000 models"),
    Step("route-virtual", "resolve and route a virtual model: 3 rules, 2 targets"),
    Step("take-place", "take a place at a backend, and give it back", usual=True),
    Step("find-kept-1k", "find a kept answer: hash a request of 1 KiB, and look up"),
    Step("find-kept-64k", "the same, 64 KiB"),
    Step("keep-answer-1k", "keep an answer of 850 bytes, the key included"),
    Step("prompt-1k", "hash the prompt's beginnings, 1 KiB (for a policy or rule that asks)", 108),
    Step("prompt-64k", "the same, 64 KiB"),
    # URL, paths, credential and headers.
    Step("write-upstream-head", "write the upstream's head", 156 + 41 + 92 + 97, usual=True),
    Step("splice-model-1k", "another model's name into a body of 1 KiB"),
    Step("read-answer-head", "read an answer's head", usual=True),
    Step("write-answer-head", "write it for the client", usual=True),
    Step("tail-json-small", "usage of a JSON answer of 600 bytes", 2_550, usual=True),
    Step("tail-json-22k", "the same, 22 KiB", 8_400),
    Step("tail-json-none", "602 bytes without usage", 210),
    Step("frame-event", "frame an event that comes alone", 68),
    Step("frame-event-of-60", "an event of 60 that come together", 11),
    Step("frame-event-in-two-reads", "an event that comes in two reads"),
    Step("chunk-line", "the line before its chunk"),
    Step("tail-stream", "usage of a stream, from its last events", 1_330),
    Step("metrics", "count a request: 5 counters, 3 histograms", 80),
    Step("usage-event", "make, queue and take a usage event"),
    Step("account", "the account of a request, with both", usual=True),
    Step("access-line", "write its line into the log's queue"),
    Step("parse-1k-keys", "read a snapshot of 100,000 keys, a thousand of them"),
    Step("build-1k-keys", "build its tables, a thousand keys"),
    Step("build-one-shard", "build them again after one of 256 shards has changed"),
)


def run(tools: Tools, rounds: int, out: Path | None) -> None:
    """Times all steps on one core, prints the table, writes the JSON."""
    _, core = processes.cores()
    before = os.getloadavg()[0]
    with progress.step("steps of the crates without sockets"):
        said = _lines([tools.program("bench-steps"), f"--rounds={rounds}"], core)
    with progress.step("steps of the gateway's own"):
        said += _lines([_test_program(), "--ignored", "--exact", _TEST], core)
    timed = {one["step"]: one for one in said}
    check(timed)
    print(table(timed))
    total = sum(timed[step.name]["ns"] for step in STEPS if step.usual)
    print(f"\n* these of a request of 1 KiB with a JSON answer: {total / 1000:.1f} µs; load average {before:.1f}")
    report.write(out, {"load_average": before, "steps": list(timed.values())})


def check(timed: dict[str, dict]) -> None:
    """Raises StepFailed where a step is missing, or has no place in the table."""
    if wrong := {step.name for step in STEPS} ^ timed.keys():
        raise progress.StepFailed(f"timed and told are not the same steps: {', '.join(sorted(wrong))}")


def table(timed: dict[str, dict]) -> str:
    """Median, extremes, and the ratio to the original's figure."""
    rows = [["step", "ns", "lowest", "highest", "original", "ours to it"]]
    for step in STEPS:
        one = timed[step.name]
        row = [f"{'*' if step.usual else ' '} {step.about}", *(f"{one[part]:,.0f}" for part in ("ns", "low", "high"))]
        original = [f"{step.original:,}", f"{one['ns'] / step.original:.2f}×"] if step.original else ["", ""]
        rows.append([*row, *original])
    return report.aligned(rows)


def _lines(command: list[str | Path], core: int) -> list[dict]:
    """The figures that a program tells, on one core; a test's name may stand before the first one."""
    words = ["taskset", "--cpu-list", str(core), *map(str, command)]
    # The access lines that are timed go to standard error.
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise progress.StepFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return figures(done.stdout)


def figures(said: str) -> list[dict]:
    """Those among the lines that a program says."""
    found = (line.partition(_BEGINNING) for line in said.splitlines())
    return [json.loads(_BEGINNING + rest) for _, mark, rest in found if mark]


def _test_program() -> Path:
    """The gateway's unit tests, of which one times what no other crate can see."""
    command = ["cargo", "test", "--release", "--locked", "-p", "fastllm-gateway", "--lib", "--no-run"]
    done = subprocess.run(
        [*command, "--message-format=json"],
        cwd=paths.CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    programs = [one["executable"] for one in messages if one.get("executable")]
    if done.returncode or len(programs) != 1:
        raise progress.StepFailed("the gateway's unit tests cannot be built; cargo's errors stand above")
    return Path(programs[0])
