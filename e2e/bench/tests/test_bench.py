"""Parsing and arithmetic of the benchmarks. Nothing is timed here."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace

import pytest

from e2e.bench import (
    engines,
    idle,
    intervals,
    measure,
    micro,
    peers,
    procfs,
    quiet,
    report,
    scale,
    scenarios,
    snapshot,
    soak,
    streams,
    syscalls,
)
from tools import progress

STATUS = """\
Name:\tfastllm-gateway
VmHWM:\t    2048 kB
VmRSS:\t    1024 kB
Threads:\t3
TracerPid:\t0
voluntary_ctxt_switches:\t17
"""

STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 61.20    0.001224           6       200           writev
 38.80    0.000776           3       202         2 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.002000           4       402         2 total
"""

OUTCOME = {
    "requests": 100,
    "events": 0,
    "seconds": 2.0,
    "latency_us": {"p50": 300.0, "p99": 900.0},
    "first_byte_us": {"p50": 200.0, "p99": 800.0},
}


def sample(peer: str, cpu_us: float, scenario: scenarios.Scenario = scenarios.PATH[0]) -> measure.Sample:
    return replace(measure.sample(peer, scenario, OUTCOME, measure.Measured(0, 0, 0, 0.0)), cpu_us=cpu_us)


def test_cpu_time_and_memory_are_parsed_from_procfs() -> None:
    assert procfs.on_cpu("123456789 42 7\n") == 123456789
    found = procfs.fields(STATUS)
    assert (found["VmRSS"], found["VmHWM"]) == (1 << 20, 2 << 20)
    assert (found["voluntary_ctxt_switches"], found["TracerPid"]) == (17, 0)
    assert "Name" not in found


def test_new_threads_count_fully_and_exited_threads_do_not_count() -> None:
    before = procfs.Counters({1: 100, 2: 500}, {1: 5, 2: 9})
    after = procfs.Counters({1: 130, 3: 7}, {1: 6, 3: 1})
    assert after.since(before) == (37, 2)


def test_this_process_has_counters_memory_and_descendants() -> None:
    own = os.getpid()
    assert procfs.family(own)[0] == own
    assert sum(procfs.counters([own]).cpu_ns.values()) > 0
    memory = procfs.memory([own])
    assert 0 < memory.resident <= memory.peak


def test_busy_time_excludes_idle_wait_and_steal() -> None:
    assert procfs.busy_ns("cpu  1 2 3 1000 1000 4 5 1000 0 0\ncpu0 9 9 9 9 9 9 9\n", 100) == 15 * 10_000_000


def test_busy_time_of_others_excludes_the_run() -> None:
    assert quiet.share_of(3_000_000_000, 1_000_000_000, 2.0, 2) == 0.5
    assert quiet.share_of(990_000_000, 1_000_000_000, 1.0, 2) == 0.0


def test_a_disturbed_window_is_repeated_only_within_the_maximum_wait() -> None:
    waiting = quiet.Quiet(2.0)
    assert not waiting.again(quiet.DISTURBED, 1.2)
    assert waiting.again(0.5, 1.2)
    assert waiting.again(0.5, 1.2)
    assert not waiting.again(0.5, 1.2)


def test_cpu_is_divided_by_requests_or_by_frames_with_content() -> None:
    whole = measure.sample("nginx", scenarios.PATH[0], OUTCOME, measure.Measured(2_000_000, 50, 9, 0.0))
    assert (whole.cpu_us, whole.switches, whole.requests_per_second) == (20.0, 0.5, 50.0)
    stream = measure.sample("nginx", scenarios.BURST, OUTCOME, measure.Measured(2_000_000, 50, 9, 0.0))
    assert stream.cpu_us == 2_000_000 / 1000 / (100 * 200)


def test_missing_and_additional_data_are_reported() -> None:
    assert scenarios.PATH[0].wrong({"requests": 7, "events": 0, "content_bytes": 7 * 602}) is None
    assert scenarios.PATH[0].wrong({"requests": 7, "events": 0, "content_bytes": 7 * 602 - 1})
    assert scenarios.BURST.wrong({"requests": 7, "events": 7 * 202, "content_bytes": 1}) is None
    assert scenarios.BURST.wrong({"requests": 7, "events": 7 * 203, "content_bytes": 1})
    assert scenarios.PACED.wrong({"requests": 7, "events": 7 * 22, "content_bytes": 1}) is None


def test_only_stream_scenarios_request_streams() -> None:
    assert "--stream" in scenarios.PACED.arguments()
    assert "--stream" not in scenarios.PATH[0].arguments()


def test_medians_are_compared() -> None:
    samples = [sample("nginx", 10), sample("nginx", 99), sample("nginx", 12), sample("fastllm", 6)]
    assert report.median(samples, "nginx", "1k-c16", report.cpu) == 12
    table = report.cpu_table(samples, "nginx", ["nginx", "fastllm"])
    assert "12.00  1.00×" in table
    assert "6.00  0.50×" in table
    with pytest.raises(ValueError, match="haproxy was not measured"):
        report.median(samples, "haproxy", "1k-c16", report.cpu)


def test_disturbed_windows_count_only_if_all_are_disturbed() -> None:
    samples = [sample("nginx", 10), replace(sample("nginx", 50), others=0.5)]
    assert report.of(samples, "nginx", "1k-c16", report.cpu) == [10]
    assert report.of(samples[1:], "nginx", "1k-c16", report.cpu) == [50]


def test_a_run_without_the_baseline_has_no_ratios() -> None:
    assert "×" not in report.cpu_table([sample("fastllm", 6)], "nginx", ["fastllm"])


def test_the_table_names_the_unit() -> None:
    head = report.cpu_table([sample("nginx", 10), sample("nginx", 2, scenarios.BURST)], "nginx", ["nginx"])
    assert head.splitlines()[0].split()[2:] == ["1k-c16", "a", "request", "burst-c16", "a", "frame"]


def test_the_spread_is_half_the_distance_of_the_extremes() -> None:
    assert report.spread([9.0, 10.0, 12.0]) == pytest.approx(0.15)


def test_calls_are_parsed_from_strace_with_and_without_errors() -> None:
    assert syscalls.calls(STRACE) == {"writev": 200, "recvfrom": 202}
    assert syscalls.calls("strace: Process 1 attached\n") == {}


def test_a_snapshot_grants_the_models_of_the_load() -> None:
    population = snapshot.Population(keys=40, principals=4, models=30, kinds=("bench-json",))
    made = json.loads(snapshot.snapshot(population, "http://127.0.0.1:1/v1"))
    principals = {one["id"]: set(one["allowed_models"]) for one in made["principals"]["items"]}
    served = {one["name"] for one in made["models"]["items"]}
    keys = {hashed: entry for shard in made["key_shards"] for hashed, entry in shard["items"].items()}
    assert (len(principals), len(served), len(keys)) == (4, 30, 40)
    for number in range(40):
        entry = keys[hashlib.sha256(snapshot.key(number).encode()).hexdigest()]
        for grant in range(10):
            model = snapshot.model("bench-json", (number % 4 * 10 + grant) % 30)
            assert model in served
            assert model in principals[entry["principal"]]


def test_sections_of_a_snapshot_are_sorted() -> None:
    made = json.loads(snapshot.snapshot(snapshot.Population(keys=600, models=3), "http://127.0.0.1:1/v1"))
    prefixes = [shard["prefix"] for shard in made["key_shards"]]
    assert prefixes == sorted(prefixes)
    assert all(hashed.startswith(shard["prefix"]) for shard in made["key_shards"] for hashed in shard["items"])
    names = [one["name"] for one in made["models"]["items"]]
    assert names == sorted(names)
    backends = [one["backends"][0]["id"] for one in made["models"]["items"]]
    assert len(set(backends)) == len(backends)
    assert made["principals"]["items"][0]["allowed_models"] == names


def test_peers_are_selected_by_name() -> None:
    assert peers.chosen("all") == peers.ALL
    assert peers.chosen("fastllm, nginx,fastllm") == ("fastllm", "nginx")
    with pytest.raises(ValueError, match="unknown peer: envoy"):
        peers.chosen("nginx,envoy")


def test_streams_have_two_sockets_each() -> None:
    assert idle.fitting(9_500, 20_000) == 9_500
    assert idle.fitting(9_500, 1_024) == 262
    with pytest.raises(ValueError, match="too few"):
        idle.fitting(9_500, 500)


def test_names_of_sizes_are_valid_file_names() -> None:
    assert scale.label(100_000, 1_000, 1) == "100k-keys-1000-models"
    assert scale.label(1_000, 10, 2) == "1k-keys-10-models-2-workers"


def test_every_measured_step_has_a_row_in_the_table() -> None:
    output = 'running 1 test\ntest x ... {"step":"read-head","ns":1.0}\n{"step":"hash-key","ns":2.0}\nok'
    assert [one["step"] for one in micro.figures(output)] == ["read-head", "hash-key"]
    timed = {step.name: {"ns": 458.0, "low": 1.0, "high": 9.0} for step in micro.STEPS}
    micro.check(timed)
    assert "2.00×" in micro.table(timed), "a body of 1 KiB takes the original 229 ns"
    with pytest.raises(progress.StepFailed, match="hash-key"):
        micro.check({name: one for name, one in timed.items() if name != "hash-key"})


def test_the_interval_of_a_median_is_determined_by_ranks() -> None:
    assert intervals.interval([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]) == (1.0, 6.0)
    # 15 tosses: at most 3 heads have a probability of 0.0176, at most 4 of 0.059.
    assert intervals.interval([float(value) for value in range(1, 16)]) == (4.0, 12.0)
    assert intervals.interval([1.0] * 99 + [1e9]) == (1.0, 1.0)
    with pytest.raises(ValueError, match="6"):
        intervals.interval([1.0] * 5)


def test_a_quantile_is_an_observed_value() -> None:
    assert intervals.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert intervals.quantile([float(value) for value in range(1, 101)], 0.99) == 99.0
    assert intervals.quantile([7.0], 0.99) == 7.0


def test_added_latency_is_paired_by_volley() -> None:
    direct = engines.Arm([[streams.Stream(1.0)], [streams.Stream(5.0), streams.Stream(7.0)]])
    ours = engines.Arm([[streams.Stream(1.5)], [streams.Stream(6.0), streams.Stream(8.0)]])
    assert ours.added(direct) == [0.5, 1.0]


def test_growing_memory_or_remaining_descriptors_are_not_flat() -> None:
    def soaked(bytes_a_second: int, after: int, early: int = 0) -> soak.Watched:
        samples = [(float(at), 10**7 + bytes_a_second * at + (early if at > 5 else 0), 50) for at in range(91)]
        return soak.Watched(samples, (20, after))

    assert soaked(0, 20).flat()
    assert soaked(0, 20, early=10**8).flat(), "what is taken once at the beginning is no leak"
    assert soaked(1 << 18, 20).growth() == pytest.approx(60 * (1 << 18))
    assert not soaked(1 << 18, 20).flat()
    assert not soaked(0, 21).flat()
