"""The serving threads use only the sockets of clients and upstreams, according to strace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from e2e.bench import snapshot
from e2e.bench.rig import Rig, Tools
from e2e.services import strace
from e2e.services.scripted_control import ScriptedControl
from tools import progress
from tools.product import Gateway
from tools.setup import debian

# The names of the serving threads.
SERVING = re.compile(r"worker-\d+")


@dataclass(frozen=True)
class Trace:
    """The system calls of the gateway under load, with the names of its threads and the ports involved."""

    calls: list[strace.Call]
    names: dict[int, str]
    listener: int
    upstream: int
    control: int

    def unexpected(self, *peers: int) -> list[str]:
        """The calls of serving threads other than traffic with clients and these ports."""
        serving = strace.serving(self.calls, self.listener)
        return [
            f"{self.names[call.thread]}: {call.name}({call.words}"
            for call in self.calls
            if call.thread in serving and not strace.harmless(call, self.listener, peers)
        ]


@pytest.fixture(scope="module")
def trace(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    debian.install_missing({"trace"})
    folder = tmp_path_factory.mktemp("no-io")
    with Rig(Tools()) as rig, ScriptedControl() as control:
        # A host name, which requires a lookup.
        base = rig.api_base.replace("127.0.0.1", "localhost")
        control.publish(snapshot.snapshot(snapshot.Population(), base))
        with Gateway(programs / "fastllm-gateway", folder, control.url) as gateway:
            with strace.traced(gateway.pid, folder / "trace"):
                load(gateway.url, 120)
                control.publish(snapshot.snapshot(snapshot.Population(), base, version=2))
                progress.wait_until("usage", lambda: control.usage_events() >= 100, seconds=20)
                load(gateway.url, 40)
                names = strace.threads(gateway.pid)
            yield Trace(
                strace.calls((folder / "trace").read_text()),
                names,
                gateway.port,
                int(rig.upstream.rpartition(":")[2]),
                urlsplit(control.url).port or 0,
            )


def load(url: str, count: int) -> None:
    """Sends ``count`` plain requests and a fifth as many streams, some of which the client aborts."""
    headers = {"authorization": f"Bearer {snapshot.key(0)}"}
    body = {"messages": [{"role": "user", "content": "hello"}]}
    chats = "/v1/chat/completions"
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client, ThreadPoolExecutor(8) as threads:

        def plain(_: int) -> int:
            return client.post(chats, json={**body, "model": snapshot.model("bench-json", 0)}).status_code

        def stream(number: int) -> int:
            request = {**body, "model": snapshot.model("bench-burst", 0), "stream": True}
            with client.stream("POST", chats, json=request) as response:
                for _ in response.iter_raw():
                    if number % 4 == 0:
                        break
                return response.status_code

        statuses = [*threads.map(plain, range(count)), *threads.map(stream, range(count // 5))]
    assert statuses == [200] * (count + count // 5)


def test_the_trace_contains_serving_threads_and_file_access_of_others(trace: Trace) -> None:
    serving = strace.serving(trace.calls, trace.listener)
    assert serving
    assert all(SERVING.fullmatch(trace.names[thread]) for thread in serving)
    others = [call for call in trace.calls if call.thread not in serving]
    assert any(call.name == "fsync" for call in others), "the snapshot is written to disk"
    assert any(call.name == "write" and "gateway.log" in call.words for call in others), "log lines are written"
    assert any(call.name == "openat" and "/etc/hosts" in call.words for call in others), "the host name is resolved"


def test_serving_threads_use_no_files_and_no_resolver(trace: Trace) -> None:
    assert trace.unexpected(trace.upstream, trace.control) == []


def test_serving_threads_do_not_talk_to_control(trace: Trace) -> None:
    assert trace.unexpected(trace.upstream) == []
