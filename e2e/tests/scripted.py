"""Runs scripted requests through two gateways with failures, and collects observations and stored usage."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.bench.processes import Program
from e2e.services.lossy_relay import LossyRelay
from tools import progress
from tools.product import Control, Gateway
from tools.services.postgres import Postgres

REQUESTS = 100_000
CLIENTS = 48
# Requests per second. At this rate, the queues of a gateway outlast every outage here.
RATE = 1500

# The gateways in order. The first one is killed.
KILLED, STAYS = "killed", "stays"
REPLICAS = (KILLED, STAYS)

MODELS = {
    "exact-plain": {"input_price_per_mtok": 2_500_000, "output_price_per_mtok": 10_000_000},
    "exact-classes": {
        "input_price_per_mtok": 3_000_000,
        "output_price_per_mtok": 15_000_001,
        "cached_input_price_per_mtok": 300_000,
        "reasoning_price_per_mtok": 7_777_777,
    },
    "exact-cost": {"input_price_per_mtok": 1_000_000, "output_price_per_mtok": 4_000_000},
    "exact-embed": {"input_price_per_mtok": 20_000},
}
# The prices from the middle of the run.
NEW_PRICES = {
    "exact-plain": {"input_price_per_mtok": 2_999_999, "output_price_per_mtok": None},
    "exact-classes": {"cached_input_price_per_mtok": None, "output_price_per_mtok": 11_111_111},
    "exact-embed": {"input_price_per_mtok": 130_000},
}
PRINCIPALS = ("plain-0", "plain-1", "plain-2", "plain-3", "slow", "broke")
LARGE = 10**12


@dataclass(frozen=True)
class Seen:
    """The observations of client and upstream for one request, and the usage that the upstream reported."""

    n: int
    course: str
    form: str
    model: str
    key: int
    gateway: int
    end: str
    status: int
    order: int
    ended_ms: int
    body_bytes: int
    response_bytes: int
    attempts: int
    usage_reported: bool
    events: int
    prompt: int
    completion: int | None
    cached: int | None
    reasoning: int | None
    cost_micros: int | None

    @property
    def rejected(self) -> bool:
        """Whether a limit or a budget rejected it."""
        return self.status in (402, 429)


@dataclass(frozen=True)
class Row:
    """One usage row."""

    id: int
    n: int
    replica: str
    principal: str
    principal_id: int
    key_id: int
    team_id: int | None
    model: str
    endpoint: str
    prompt: int
    completion: int
    cached: int | None
    reasoning: int | None
    reported: bool
    estimated: bool
    refusal: str | None
    status: int
    cost_micros: int | None
    at: int


@dataclass(frozen=True)
class Budget:
    """The subject of a budget, and its stored spending by the start of each window (microseconds)."""

    id: int
    principal_id: int | None
    model: str | None
    key_id: int | None
    team_id: int | None
    spent: dict[int, tuple[int, int]]

    def applies(self, row: Row) -> bool:
        """Whether the row counts against the budget."""
        if self.key_id is not None or self.team_id is not None:
            return row.key_id == self.key_id or (self.team_id is not None and row.team_id == self.team_id)
        return row.principal_id == self.principal_id and self.model in (None, row.model)


@dataclass(frozen=True)
class Found:
    """The results of a run. Prices are by model, each with the time from which it is valid."""

    seen: list[Seen]
    rows: list[Row]
    prices: dict[str, list[tuple[int, dict[str, int | None]]]]
    budgets: list[Budget]
    # GET /admin/usage by model: requests, prompt and completion tokens, cost, requests without a cost.
    totals: dict[str, tuple[int, int, int, int, int]]
    # Batches that were stored, but whose acknowledgement was lost.
    unacknowledged: int

    def price(self, row: Row) -> dict[str, int | None]:
        """The prices at the time of the row."""
        return max((one for one in self.prices[row.model] if one[0] <= row.at), key=lambda one: one[0])[1]


class Run:
    """Both planes, the upstream and the load."""

    # The gateways that keep unsent usage on disk; the others keep it only in memory.
    spilling: Sequence[str] = (STAYS,)

    def __init__(self, programs: Path, folder: Path, postgres: Postgres) -> None:
        self._programs, self._folder, self._postgres = programs, folder, postgres
        self._database = postgres.create_database("exact")
        self.control = Control(programs, folder, self._database)
        self._relay = LossyRelay(self.control.url, b"POST /usage ", every=7)
        self.out = folder / "seen.csv"

    def measure(self, requests: int = REQUESTS, rate: int = RATE) -> Found:
        """Sends the requests while failures happen; returns the results."""
        command = [
            self._programs / "bench-exact",
            f"--requests={requests}",
            f"--rate={rate}",
            f"--clients={CLIENTS}",
            f"--out={self.out}",
        ]
        log = self._folder / "bench-exact.log"
        with Program(command, core=None, log=log, output=True) as load, self.control, self._relay:
            upstreams = load.line().split()
            self.admin = self.control.admin()
            keys = self._configure(upstreams)
            with self._gateway(KILLED, keys) as killed, self._gateway(STAYS, keys) as stays:
                self.gateways = {KILLED: killed, STAYS: stays}
                targets = {"gateways": [f"127.0.0.1:{one.port}" for one in (killed, stays)], "keys": keys}
                load.send(json.dumps(targets))
                self._watch(load, requests)
                self.settle()
                # A graceful stop sends the remaining usage. The killed gateway has exited already.
                killed.stop(seconds=60)
                stays.stop(seconds=60)
            return self._found()

    @contextmanager
    def _gateway(self, name: str, keys: list[str]) -> Iterator[Gateway]:
        folder = self._folder / name
        folder.mkdir()
        words = [
            "--log=warn,fastllm_gateway::access=off,fastllm_gateway::forward=off,fastllm_gateway::upstream::dns=off"
        ]
        words += ["--rate-limit-reconcile-interval=1"]
        if name in self.spilling:
            words.append(f"--usage-spill={folder / 'usage.spill'}")
        with Gateway(self._programs / "fastllm-gateway", folder, self._relay.url, *words, name=name) as gateway:
            progress.wait_until("the snapshot", lambda: gateway.serves(keys[0], "exact-embed"), seconds=10)
            yield gateway

    def _configure(self, upstreams: list[str]) -> list[str]:
        """Creates models, principals, limits and budgets; returns the keys."""
        admin = self.admin
        self._models = {name: admin.model(name, *(f"http://{one}/v1" for one in upstreams)) for name in MODELS}
        self.set_prices(MODELS)
        team = admin.post("/admin/teams", name="team")["id"]
        keys = []
        ids = {name: admin.principal(name, *MODELS) for name in PRINCIPALS}
        for name, principal in ids.items():
            made = admin.post("/admin/keys", name=name, principal_id=principal)
            keys.append(made["key"])
            if name == "plain-1":
                admin.put(f"/admin/keys/{made['id']}/budget", cost_total_micros=LARGE, window="monthly")
        for name in ("plain-0", "plain-1"):
            admin.patch(f"/admin/principals/{ids[name]}", team_id=team)
        admin.put(f"/admin/teams/{team}/budget", tokens_total=LARGE, cost_total_micros=LARGE, window="weekly")
        large = {"tokens_total": LARGE, "cost_total_micros": LARGE, "window": "daily", "time_zone": "UTC"}
        admin.put(f"/admin/principals/{ids['plain-0']}/budget", **large)
        model = self._models["exact-classes"]
        admin.put(f"/admin/principals/{ids['plain-2']}/models/{model}/budget", **large)
        admin.put(f"/admin/principals/{ids['slow']}/limits", requests_per_min=60)
        admin.put(f"/admin/principals/{ids['broke']}/budget", tokens_total=1, window="daily")
        return keys

    def set_prices(self, prices: dict[str, dict[str, int | None]]) -> None:
        """Sets the prices of models."""
        for name, fields in prices.items():
            self.admin.patch(f"/admin/models/{self._models[name]}", **fields)

    def _watch(self, load: Program, requests: int) -> None:
        """Causes each failure at its time, until the load has ended."""
        due = self.failures()
        while (line := load.line()) != "done":
            while due and int(line) >= due[0][0] * requests:
                _, what, act = due.pop(0)
                with progress.step(f"after {line} requests: {what}"):
                    act()
        if due:
            raise progress.StepFailed(f"the load ended before: {due[0][1]}")

    def failures(self) -> list[tuple[float, str, Callable[[], None]]]:
        """The failures in order, each with the fraction of requests after which it happens."""
        control, database = self.control, self._postgres
        return [
            (0.10, "control is stopped", control.stop),
            (0.12, "control is back", control.start),
            (0.25, "prices change", lambda: self.set_prices(NEW_PRICES)),
            (0.35, "Postgres is stopped", database.stop),
            (0.37, "Postgres is back", database.start),
            (0.50, "a gateway is killed", lambda: self.gateways[KILLED].stop(how=signal.SIGKILL)),
            (0.65, "control is killed", lambda: control.stop(how=signal.SIGKILL)),
            (0.69, "control is back", control.start),
        ]

    def settle(self) -> None:
        """Waits for pending work after the last request. Does nothing by default."""

    def _found(self) -> Found:
        return Found(
            seen(self.out), self._rows(), self._prices(), self._budgets(), self._totals(), self._relay.lost_count
        )

    def _totals(self) -> dict[str, tuple[int, int, int, int, int]]:
        fields = ("requests", "prompt_tokens", "completion_tokens", "cost_micros", "unpriced_requests")
        groups = self.admin.get("/admin/usage", group_by="model")
        return {group["key"]: tuple(group[name] for name in fields) for group in groups}

    def _select(self, sql: str) -> list[list[str]]:
        lines = self._postgres.execute(sql, database="exact").splitlines()
        return [line.split("|") for line in lines]

    def _rows(self) -> list[Row]:
        micros = "(extract(epoch FROM at) * 1000000)::bigint"
        rows = self._select(
            "SELECT id, substr(request_id, 3), replica, principal_name, principal_id, key_id, team_id, model,"
            " endpoint, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,"
            f" usage_reported, estimated, refusal, status, cost_micros, {micros} FROM usage_events ORDER BY id"
        )
        return [_row(row) for row in rows]

    def _prices(self) -> dict[str, list[tuple[int, dict[str, int | None]]]]:
        classes = ("input", "output", "cached_input", "reasoning")
        columns = ", ".join(f"p.{name}_price_per_mtok" for name in classes)
        rows = self._select(
            f"SELECT m.name, (extract(epoch FROM valid_from) * 1000000)::bigint, {columns}"
            " FROM model_prices AS p JOIN models AS m ON m.id = p.model_id ORDER BY valid_from"
        )
        prices: dict[str, list] = {}
        for name, since, *values in rows:
            prices.setdefault(name, []).append((int(since), dict(zip(classes, map(_count, values), strict=True))))
        return prices

    def _budgets(self) -> list[Budget]:
        spent: dict[int, dict[int, tuple[int, int]]] = {}
        for budget, start, tokens, cost in self._select(
            "SELECT budget_id, (extract(epoch FROM window_start) * 1000000)::bigint, tokens_used, cost_used_micros"
            " FROM budget_spending"
        ):
            spent.setdefault(int(budget), {})[int(start)] = (int(tokens), int(cost))
        rows = self._select(
            "SELECT b.id, principal_id, m.name, key_id, team_id"
            " FROM budgets AS b LEFT JOIN models AS m ON m.id = b.model_id"
        )
        return [
            Budget(int(id_), _count(principal), model or None, _count(key), _count(team), spent.get(int(id_), {}))
            for id_, principal, model, key, team in rows
        ]


def _count(text: str) -> int | None:
    return int(text) if text else None


def _row(texts: list[str]) -> Row:
    id_, n, replica, principal, principal_id, key_id, team_id, model, endpoint, prompt, completion, *rest = texts
    cached, reasoning, reported, estimated, refusal, status, cost, at = rest
    return Row(
        int(id_),
        int(n),
        replica,
        principal,
        int(principal_id),
        int(key_id),
        _count(team_id),
        model,
        endpoint,
        int(prompt),
        int(completion),
        _count(cached),
        _count(reasoning),
        reported == "t",
        estimated == "t",
        refusal or None,
        int(status),
        _count(cost),
        int(at),
    )


def seen(path: Path) -> list[Seen]:
    """Reads the output of ``bench-exact``."""
    with path.open(newline="") as file:
        return [_seen(line) for line in csv.DictReader(file)]


def _seen(line: dict[str, str]) -> Seen:
    texts = {name: line.pop(name) for name in ("course", "form", "model", "end")}
    usage_reported = line.pop("usage_reported") == "true"
    return Seen(usage_reported=usage_reported, **texts, **{name: _count(value) for name, value in line.items()})
