"""``python3 -m e2e.bench micro``: CPU time of each step of a request, next to the published figures of the original."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.bench import processes, report
from e2e.bench.rig import Tools
from tools import paths, progress

_BEGINNING = '{"step":'


@dataclass(frozen=True)
class Step:
    """A step and its description; ``original`` is the published figure of the original, in nanoseconds."""

    name: str
    description: str
    original: int | None = None
    # Whether every typical request includes the step.
    usual: bool = False


STEPS = (
    Step("read-head", "read a request's head: 10 fields, 430 bytes", usual=True),
    Step("members-1k", "find the members of a body of 1 KiB", 229, usual=True),
    Step("members-64k", "find the members of a body of 64 KiB"),
    Step("hash-key", "hash a key"),
    Step("identify-1k-keys", "identify the caller: hash and look up, 1,000 keys in turn", usual=True),
    Step("identify-100k-keys", "the same, 100,000 keys"),
    Step("route-10-models", "resolve and route, 10 models in turn", usual=True),
    Step("route-1000-models", "the same, 1,000 models"),
    Step("route-virtual", "resolve and route a virtual model: 3 rules, 2 targets"),
    Step("take-place", "acquire and release a slot of a backend", usual=True),
    Step("find-kept-1k", "look up a cached response: hash a request of 1 KiB, and search"),
    Step("find-kept-64k", "the same, 64 KiB"),
    Step("keep-answer-1k", "cache a response of 850 bytes, with its key"),
    Step("prompt-1k", "hash the prefixes of a prompt, 1 KiB (for policies or rules that need it)", 108),
    Step("prompt-64k", "the same, 64 KiB"),
    # Sum of URL, paths, credential and headers.
    Step("write-upstream-head", "write the head of the upstream request", 156 + 41 + 92 + 97, usual=True),
    Step("splice-model-1k", "replace the model in a body of 1 KiB"),
    Step("read-answer-head", "read the head of a response", usual=True),
    Step("write-answer-head", "write it for the client", usual=True),
    Step("tail-json-small", "usage of a JSON response of 600 bytes", 2_550, usual=True),
    Step("tail-json-22k", "the same, 22 KiB", 8_400),
    Step("tail-json-none", "602 bytes without usage", 210),
    Step("frame-event", "frame an event that arrives alone", 68),
    Step("frame-event-of-60", "an event of 60 that arrive together", 11),
    Step("frame-event-in-two-reads", "an event that arrives in two reads"),
    Step("chunk-line", "the chunk size line"),
    Step("tail-stream", "usage of a stream, from its last events", 1_330),
    Step("metrics", "count a request: 5 counters, 3 histograms", 80),
    Step("usage-event", "create, enqueue and dequeue a usage event"),
    Step("account", "the request log, with both", usual=True),
    Step("access-line", "enqueue its access log line"),
    Step("parse-1k-keys", "parse a snapshot of 100,000 keys, per 1,000 keys"),
    Step("build-1k-keys", "build its tables, per 1,000 keys"),
    Step("build-one-shard", "rebuild them after one of 256 shards has changed"),
)


def run(tools: Tools, rounds: int, out: Path | None) -> None:
    """Times all steps on one core, prints the table, writes the JSON."""
    _, core = processes.cores()
    before = os.getloadavg()[0]
    with progress.step("steps in the crates without sockets"):
        lines = _lines([tools.program("bench-steps"), f"--rounds={rounds}"], core)
    with progress.step("steps in the gateway crate"):
        lines += _lines([_gateway_program()], core)
    timed = {one["step"]: one for one in lines}
    check(timed)
    print(table(timed))
    total = sum(timed[step.name]["ns"] for step in STEPS if step.usual)
    print(f"\n* sum, for a request of 1 KiB with a JSON response: {total / 1000:.1f} µs; load average {before:.1f}")
    report.write(out, {"load_average": before, "steps": list(timed.values())})


def check(timed: dict[str, dict]) -> None:
    """Raises StepFailed if a step is missing, or is not in the table."""
    if wrong := {step.name for step in STEPS} ^ timed.keys():
        raise progress.StepFailed(f"steps that are either not measured or not in the table: {', '.join(sorted(wrong))}")


def table(timed: dict[str, dict]) -> str:
    """Median, extremes, and the ratio to the figure of the original."""
    rows = [["step", "ns", "lowest", "highest", "original", "ratio"]]
    for step in STEPS:
        one = timed[step.name]
        row = [
            f"{'*' if step.usual else ' '} {step.description}",
            *(f"{one[part]:,.0f}" for part in ("ns", "low", "high")),
        ]
        original = [f"{step.original:,}", f"{one['ns'] / step.original:.2f}×"] if step.original else ["", ""]
        rows.append([*row, *original])
    return report.aligned(rows)


def _lines(command: list[str | Path], core: int) -> list[dict]:
    """The measurements that a program prints, on one core."""
    words = ["taskset", "--cpu-list", str(core), *map(str, command)]
    # Standard error contains only the access log lines of the measurement.
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise progress.StepFailed(f"{command[0]} exited with status {done.returncode}:\n{done.stdout[-2000:]}")
    return figures(done.stdout)


def figures(output: str) -> list[dict]:
    """The measurements in the output of a program."""
    found = (line.partition(_BEGINNING) for line in output.splitlines())
    return [json.loads(_BEGINNING + rest) for _, mark, rest in found if mark]


def _gateway_program() -> Path:
    """The benchmark of the gateway's own crate, which measures what no other crate can access."""
    command = ["cargo", "build", "--release", "--locked", "-p", "fastllm-gateway", "--features=bench", "--bench=steps"]
    done = subprocess.run(
        [*command, "--message-format=json"],
        cwd=paths.CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    programs = [one["executable"] for one in messages if one.get("target", {}).get("kind") == ["bench"]]
    if done.returncode or len(programs) != 1:
        raise progress.StepFailed("the gateway's benchmark cannot be built; the errors of cargo are above")
    return Path(programs[0])
