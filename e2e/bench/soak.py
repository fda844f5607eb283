"""``python3 -m e2e.bench soak``: whether memory and descriptors stay flat under everything at once."""

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

# The names of the gateways, by what clients speak to them.
PLAIN, TLS = "plain", "tls"

# Bytes by which memory may seem to grow over the last two thirds, by regression.
MOST_GROWTH = 8 << 20

_WINDOW_MS = 3_000
_CHANGE_EVERY = 3.0
_MOST_KEYS = 2_000


@dataclass
class Watched:
    """What was seen of a gateway: (seconds, resident bytes, descriptors), and descriptors before and after."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    descriptors: tuple[int, int] = (0, 0)

    def growth(self) -> float:
        """Bytes by which memory grew over the last two thirds, by regression."""
        seconds = [second for second, _, _ in self.samples]
        later = [one for one in self.samples if one[0] >= seconds[-1] / 3]
        slope = regression([(second, resident) for second, resident, _ in later])
        return slope * (later[-1][0] - later[0][0])

    def flat(self) -> bool:
        """Whether memory and descriptors are."""
        before, after = self.descriptors
        return self.growth() <= MOST_GROWTH and after <= before


@dataclass
class Soak:
    """What was seen of each gateway, by its name, and what was done meanwhile."""

    watched: dict[str, Watched] = field(default_factory=lambda: {PLAIN: Watched(), TLS: Watched()})
    requests: dict[str, int] = field(default_factory=dict)
    misused: dict[str, int] = field(default_factory=dict)
    snapshots: int = 0
    certificates: int = 0
    usage_events: int = 0

    def flat(self) -> bool:
        """Whether all gateways are."""
        return all(one.flat() for one in self.watched.values())


@dataclass(frozen=True)
class Place:
    """A gateway, and where the load finds it: itself, or a relay that speaks TLS to it."""

    name: str
    gateway: Gateway
    port: int


def regression(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line with the least squares. Raises ValueError for fewer than two points."""
    if len(points) < 2:
        raise ValueError("a line needs two points")
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def run(tools: Tools, seconds: float, out: Path | None) -> bool:
    """Runs, prints the tables, writes the JSON; whether everything stayed flat."""
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
    grown, most = watched.growth() / 2**20, MOST_GROWTH / 2**20
    return "\n".join(
        [
            report.aligned(rows),
            f"memory over the last two thirds: {grown:+.2f} MiB by regression, at most {most:.0f}",
            "descriptors: {} before, {} after".format(*watched.descriptors),
        ]
    )


def measure(tools: Tools, seconds: float) -> Soak:
    """Everything at once for so long. Raises StepFailed where an answer that nobody disturbed is wrong."""
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
        places = []
        for name in soak.watched:
            more = certificates.words() if name == TLS else ()
            gateway = Gateway(tools.gateway, folder, control.url, *words, *more, name=name)
            if name == TLS:
                gateway.url = f"http://{rig.relay_tls(f'127.0.0.1:{gateway.port}', certificates.authority)}"
            opened.enter_context(gateway)
            places.append(Place(name, gateway, int(gateway.url.rpartition(":")[2])))
            progress.wait_until(
                "a snapshot",
                lambda gateway=gateway: gateway.serves(snapshot.key(0), LOADS[0].model + "-0000"),
                seconds=10,
            )
            soak.watched[name].descriptors = (_settled(gateway), 0)
        with progress.step(f"{seconds:.0f} seconds of everything"):
            _everything(places, rig, _changes(publish, certificates), soak, seconds)
        port = places[-1].gateway.port
        progress.wait_until("the last certificate", lambda: certificates.shown(port), seconds=20)
        soak.certificates = certificates.renewed
        # Connections that are kept for later are no leak: without upstreams there are none to keep.
        upstreams.close()
        for place in places:
            before, _ = soak.watched[place.name].descriptors
            soak.watched[place.name].descriptors = (before, _fewest(place.gateway, before))
        soak.usage_events = control.usage_events()
    return soak


def _changes(publish: Callable[[], None], certificates: Certificates) -> Iterator[None]:
    """Another snapshot each time, and every other time another certificate."""
    for number in itertools.count():
        publish()
        if number % 2:
            certificates.renew()
        yield


def _publisher(control: ScriptedControl, rig: Rig, faulty: FaultyUpstream, soak: Soak) -> Callable[[], None]:
    """Publishes another snapshot each time: models and keys come and go beside those that are used."""
    names = {f"{one.model}-0000" for one in LOADS}

    def publish() -> None:
        number = soak.snapshots
        soak.snapshots += 1
        coming = {f"soak-{number % 50}-{index}": [rig.api_base] for index in range(number % 20)}
        models = {**{name: [rig.api_base] for name in names}, **faulty.api_bases(), **coming}
        control.publish(snapshot.served(models, version=number + 1, keys=1 + number * 97 % _MOST_KEYS))

    return publish


def _everything(places: Sequence[Place], rig: Rig, changes: Iterator[None], soak: Soak, seconds: float) -> None:
    """Load, misuse and changes until the time is over, each place in turn; a sample each second."""
    stop = threading.Event()
    broken: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def whole() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                broken.append(error)
                stop.set()

        return whole

    misuses = itertools.cycle([Misuse(place.port, snapshot.key(0), soak.misused) for place in places])
    turns = {one: itertools.cycle(places) for one in LOADS}
    works = [lambda one=one: _window(next(turns[one]), rig, one, soak) for one in LOADS]
    works += [lambda: next(misuses).once(), lambda: (next(changes), stop.wait(_CHANGE_EVERY))]
    threads = [threading.Thread(target=guarded(work)) for work in works]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while (at := time.monotonic() - began) < seconds and not stop.wait(1.0):
        for place in places:
            pid = place.gateway.pid
            seen = (at, procfs.memory([pid]).resident, procfs.descriptors(pid))
            soak.watched[place.name].samples.append(seen)
    stop.set()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]


def _window(place: Place, rig: Rig, scenario: Scenario, soak: Soak) -> None:
    """One window of a load on new connections. Raises StepFailed where an answer is wrong."""
    times = [f"--window-ms={_WINDOW_MS}", "--warm-up-ms=1"]
    with rig.load("run", f"--target=127.0.0.1:{place.port}", *times, *scenario.arguments()) as load:
        load.line()
        load.go_on()
        outcome = json.loads(load.line())
    name = f"{place.name} {scenario.name}"
    if wrong := scenario.wrong(outcome):
        raise progress.StepFailed(f"{name}: {wrong}")
    soak.requests[name] = soak.requests.get(name, 0) + outcome["requests"]


def _settled(gateway: Gateway) -> int:
    """Descriptors after a first request on a connection that is gone again."""
    headers = {"authorization": f"Bearer {snapshot.key(0)}"}
    body = {"model": "bench-json-0000", "messages": [{"role": "user", "content": "hello"}]}
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    return procfs.descriptors(gateway.pid)


def _fewest(gateway: Gateway, wanted: int) -> int:
    """Descriptors once they are as few as wanted, or after a while."""
    with contextlib.suppress(progress.StepFailed):
        progress.wait_until("descriptors", lambda: procfs.descriptors(gateway.pid) <= wanted, seconds=30)
    return procfs.descriptors(gateway.pid)
