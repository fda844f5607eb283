"""``python3 -m e2e.bench soak``: memory and descriptors under mixed load and faults."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx

from e2e.bench import procfs, report, snapshot
from e2e.bench.certificates import Certificates
from e2e.bench.misuse import Misuse
from e2e.bench.rig import Rig, Tools
from e2e.bench.scenarios import BURST, Scenario
from e2e.services.faulty_upstream import FaultyUpstream
from e2e.services.scripted_control import ScriptedControl
from tools import progress
from tools.product import Gateway

LOADS = (
    Scenario("1k", 16),
    Scenario("64k", 4, body_bytes=65_536),
    Scenario("big", 1, body_bytes=4 << 20),
    Scenario("burst", 8, model=BURST.model, frames=BURST.frames),
    Scenario("paced", 32, model="bench-paced", frames=20, stagger_ms=200),
)

# The names of the gateways, by the protocol of their clients.
PLAIN, TLS = "plain", "tls"

# Maximum growth of memory over the last two thirds of the run, by regression, in bytes.
MAX_GROWTH = 8 << 20

_WINDOW_MS = 3_000
_CHANGE_EVERY = 3.0
_MOST_KEYS = 2_000


@dataclass
class Watched:
    """Measurements of a gateway: (seconds, resident bytes, descriptors), and descriptors before and after."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    descriptors: tuple[int, int] = (0, 0)

    def growth(self) -> float:
        """The growth of memory over the last two thirds, by regression, in bytes."""
        seconds = [second for second, _, _ in self.samples]
        later = [one for one in self.samples if one[0] >= seconds[-1] / 3]
        slope = regression([(second, resident) for second, resident, _ in later])
        return slope * (later[-1][0] - later[0][0])

    def flat(self) -> bool:
        """Whether memory and descriptors stayed flat."""
        before, after = self.descriptors
        return self.growth() <= MAX_GROWTH and after <= before


@dataclass
class Soak:
    """Measurements of each gateway by name, and counts of all actions."""

    watched: dict[str, Watched] = field(default_factory=lambda: {PLAIN: Watched(), TLS: Watched()})
    requests: dict[str, int] = field(default_factory=dict)
    misused: dict[str, int] = field(default_factory=dict)
    snapshots: int = 0
    certificates: int = 0
    usage_events: int = 0

    def flat(self) -> bool:
        """Whether all gateways stayed flat."""
        return all(one.flat() for one in self.watched.values())


@dataclass(frozen=True)
class Endpoint:
    """A gateway and its address for the load: its own, or that of a relay that connects to it by TLS."""

    name: str
    gateway: Gateway
    port: int


def regression(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line. Raises ValueError for fewer than two points."""
    if len(points) < 2:
        raise ValueError("a regression needs two points")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def run(tools: Tools, seconds: float, out: Path | None) -> bool:
    """Runs, prints the tables, writes the JSON; returns whether everything stayed flat."""
    soak = measure(tools, seconds)
    for name, watched in soak.watched.items():
        print(_table(name, watched))
    for what, counts in (("requests", soak.requests), ("misuse", soak.misused)):
        print(f"{what}: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    print(f"snapshots {soak.snapshots}, certificates {soak.certificates}, usage events {soak.usage_events}")
    print("flat" if soak.flat() else "NOT FLAT")
    growth = {name: watched.growth() for name, watched in soak.watched.items()}
    report.write(out, {**asdict(soak), "growth_bytes": growth, "flat": soak.flat()})
    return soak.flat()


def _table(name: str, watched: Watched) -> str:
    rows = [[name, "MiB", "descriptors"]]
    step = max(1, len(watched.samples) // 30)
    rows += [[f"{at:.0f} s", f"{rss / 2**20:.1f}", str(files)] for at, rss, files in watched.samples[::step]]
    grown, most = watched.growth() / 2**20, MAX_GROWTH / 2**20
    return "\n".join(
        [
            report.aligned(rows),
            f"memory over the last two thirds: {grown:+.2f} MiB by regression, at most {most:.0f}",
            "descriptors: {} before, {} after".format(*watched.descriptors),
        ]
    )


def measure(tools: Tools, seconds: float) -> Soak:
    """Runs load, faults and changes for this time. Raises StepFailed if an undisturbed response is wrong."""
    soak = Soak()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="fastllm-soak-")))
        control = opened.enter_context(ScriptedControl())
        certificates = Certificates(folder / "clients")
        upstreams = opened.enter_context(ExitStack())
        rig = upstreams.enter_context(Rig(tools))
        faulty = upstreams.enter_context(FaultyUpstream(folder))
        publish = _publisher(control, rig, faulty, soak)
        publish()
        words = ("--log=warn,fastllm_gateway::access=off", f"--ca-bundle={faulty.authority}", "--health-interval=2")
        endpoints = []
        for name in soak.watched:
            more = certificates.words() if name == TLS else ()
            gateway = Gateway(tools.gateway, folder, control.url, *words, *more, name=name)
            if name == TLS:
                gateway.url = f"http://{rig.relay_tls(f'127.0.0.1:{gateway.port}', certificates.authority)}"
            opened.enter_context(gateway)
            endpoints.append(Endpoint(name, gateway, int(gateway.url.rpartition(":")[2])))
            progress.wait_until(
                "a snapshot",
                lambda gateway=gateway: gateway.serves(snapshot.key(0), LOADS[0].model + "-0000"),
                seconds=10,
            )
            soak.watched[name].descriptors = (_settled(gateway), 0)
        with progress.step(f"{seconds:.0f} seconds of mixed load"):
            _mixed_load(endpoints, rig, _changes(publish, certificates), soak, seconds)
        port = endpoints[-1].gateway.port
        progress.wait_until("the last certificate", lambda: certificates.shown(port), seconds=20)
        soak.certificates = certificates.renewed
        # Idle upstream connections are not a leak; without upstreams there are none.
        upstreams.close()
        for endpoint in endpoints:
            before, _ = soak.watched[endpoint.name].descriptors
            soak.watched[endpoint.name].descriptors = (before, _fewest(endpoint.gateway, before))
        soak.usage_events = control.usage_events()
    return soak


def _changes(publish: Callable[[], None], certificates: Certificates) -> Iterator[None]:
    """Publishes a new snapshot at each step, and a new certificate at every second one."""
    for number in itertools.count():
        publish()
        if number % 2:
            certificates.renew()
        yield


def _publisher(control: ScriptedControl, rig: Rig, faulty: FaultyUpstream, soak: Soak) -> Callable[[], None]:
    """A function that publishes a new snapshot per call, with other models and keys besides those of the load."""
    names = {f"{one.model}-0000" for one in LOADS}

    def publish() -> None:
        number = soak.snapshots
        soak.snapshots += 1
        coming = {f"soak-{number % 50}-{index}": [rig.api_base] for index in range(number % 20)}
        models = {**{name: [rig.api_base] for name in names}, **faulty.api_bases(), **coming}
        control.publish(snapshot.served(models, version=number + 1, keys=1 + number * 97 % _MOST_KEYS))

    return publish


def _mixed_load(endpoints: Sequence[Endpoint], rig: Rig, changes: Iterator[None], soak: Soak, seconds: float) -> None:
    """Runs load, faults and changes until the time is over, alternating between endpoints; one sample per second."""
    stop = threading.Event()
    broken: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def whole() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001 - reported by the waiting thread
                broken.append(error)
                stop.set()

        return whole

    misuses = itertools.cycle([Misuse(endpoint.port, snapshot.key(0), soak.misused) for endpoint in endpoints])
    turns = {one: itertools.cycle(endpoints) for one in LOADS}
    works = [lambda one=one: _window(next(turns[one]), rig, one, soak) for one in LOADS]
    works += [lambda: next(misuses).once(), lambda: (next(changes), stop.wait(_CHANGE_EVERY))]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while (at := time.monotonic() - began) < seconds and not stop.wait(1.0):
        for endpoint in endpoints:
            pid = endpoint.gateway.pid
            seen = (at, procfs.memory([pid]).resident, procfs.descriptors(pid))
            soak.watched[endpoint.name].samples.append(seen)
    stop.set()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]


def _window(endpoint: Endpoint, rig: Rig, scenario: Scenario, soak: Soak) -> None:
    """One window of a load on new connections. Raises StepFailed if a response is wrong."""
    times = [f"--window-ms={_WINDOW_MS}", "--warm-up-ms=1"]
    with rig.load("run", f"--target=127.0.0.1:{endpoint.port}", *times, *scenario.arguments()) as load:
        load.line()
        load.resume()
        outcome = json.loads(load.line())
    name = f"{endpoint.name} {scenario.name}"
    if wrong := scenario.wrong(outcome):
        raise progress.StepFailed(f"{name}: {wrong}")
    soak.requests[name] = soak.requests.get(name, 0) + outcome["requests"]


def _settled(gateway: Gateway) -> int:
    """Descriptors after a first request and the end of its connection."""
    headers = {"authorization": f"Bearer {snapshot.key(0)}"}
    body = {"model": "bench-json-0000", "messages": [{"role": "user", "content": "hello"}]}
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    return procfs.descriptors(gateway.pid)


def _fewest(gateway: Gateway, wanted: int) -> int:
    """Waits until there are at most ``wanted`` descriptors, or for a limited time; returns their number."""
    with contextlib.suppress(progress.StepFailed):
        progress.wait_until("descriptors", lambda: procfs.descriptors(gateway.pid) <= wanted, seconds=30)
    return procfs.descriptors(gateway.pid)
