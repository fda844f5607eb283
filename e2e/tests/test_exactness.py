"""Usage rows equal the reports of the upstreams, to the token and the micro-unit, also during failures.

The test sends 100,000 requests through two gateways, with failovers, aborted responses, disconnecting clients and
rejected callers. Meanwhile responses of the control plane are lost, it restarts and is killed, PostgreSQL restarts,
prices change, and one gateway is killed. The only loss is the usage that the killed gateway had not sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.tests import scripted
from e2e.tests.scripted import CLIENTS, KILLED, PRINCIPALS, REPLICAS, REQUESTS, Found, Row, Run, Seen
from tools import progress
from tools.services.postgres import Postgres

# The gateway estimates 3.5 bytes of a request per token, while engines use about 4, and at least one token per event
# of a stream, including the final one. These are the bounds of the error against an engine that sends one event per
# token.
BYTES_PER_TOKEN = 4
PROMPT_ERROR = 0.15
COMPLETION_ERROR = 0.1

# The maximum delay of an event before it is sent, and the duration of sending it (milliseconds).
HELD_MS = 5_000 + 1_000


@pytest.fixture(scope="module")
def found(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    with Postgres("exact", "127.0.0.1:0") as postgres:
        run = Run(programs, tmp_path_factory.mktemp("exact"), postgres)
        with progress.step(f"{REQUESTS} requests"):
            yield run.measure()


@pytest.fixture(scope="module")
def stored(found: Found) -> dict[int, Row]:
    """The rows by request number."""
    return {row.n: row for row in found.rows}


def completed(found: Found, gateway: str) -> list[Seen]:
    """The requests through a gateway that ended as planned, in the order of their ends."""
    place = REPLICAS.index(gateway)
    ended = (one for one in found.seen if one.gateway == place and one.end in ("Complete", "Left"))
    return sorted(ended, key=lambda one: one.order)


def lost(found: Found, stored: dict[int, Row]) -> list[Seen]:
    """The requests that ended as planned and have no row."""
    return [one for name in REPLICAS for one in completed(found, name) if one.n not in stored]


def test_every_request_ended_as_planned(found: Found) -> None:
    assert len(found.seen) == REQUESTS
    ends = Counter(one.end for one in found.seen)
    # Only requests in flight at the killed gateway were aborted.
    assert set(ends) <= {"Complete", "Left", "Lost"}
    assert ends["Lost"] <= CLIENTS
    assert {one.gateway for one in found.seen if one.end == "Lost"} <= {REPLICAS.index(KILLED)}
    for one in found.seen:
        if one.end == "Complete":
            assert one.status in {200, 402, 429, 500, 502}, one
    # The result is meaningful only if every course occurred often.
    courses = Counter(one.course for one in found.seen)
    assert len(courses) == 11 and min(courses.values()) >= REQUESTS / 2000, courses
    statuses = Counter(one.status for one in found.seen)
    assert min(statuses[402], statuses[429]) >= REQUESTS / 200, statuses


def test_no_request_has_two_rows_although_batches_were_sent_twice(found: Found) -> None:
    assert found.unacknowledged >= REQUESTS / 500 / 14
    twice = [n for n, count in Counter(row.n for row in found.rows).items() if count > 1]
    assert twice == []


def test_only_unsent_usage_of_the_killed_gateway_is_lost(found: Found, stored: dict[int, Row]) -> None:
    gone = lost(found, stored)
    assert {one.gateway for one in gone} <= {REPLICAS.index(KILLED)}
    # Rejected requests have a separate queue.
    for rejected in (False, True):
        ended = [one for one in completed(found, KILLED) if one.rejected == rejected]
        stored_orders = [one.order for one in ended if one.n in stored]
        unsent = [one for one in ended if one.n not in stored]
        # Events are sent in the order of request ends; clients observe that order up to the requests in flight.
        assert all(one.order >= max(stored_orders) - 2 * CLIENTS for one in unsent)
        assert stored_orders
        last = max(one.ended_ms for one in ended)
        assert all(last - one.ended_ms <= HELD_MS for one in unsent)
    in_flight = sum(one.end == "Lost" for one in found.seen)
    progress.say(f"the killed gateway had {in_flight} requests in flight, and {len(gone)} usage events unsent")


def cost(found: Found, row: Row) -> int | None:
    """The cost of a row by the prices at its time, rounded once, half up."""
    prices = found.price(row)
    cached, reasoning = min(row.cached or 0, row.prompt), min(row.reasoning or 0, row.completion)
    parts = (
        (row.prompt - cached, prices["input"]),
        (cached, prices["input"] if prices["cached_input"] is None else prices["cached_input"]),
        (row.completion - reasoning, prices["output"]),
        (reasoning, prices["output"] if prices["reasoning"] is None else prices["reasoning"]),
    )
    if any(count and price is None for count, price in parts):
        return None
    return (sum(count * (price or 0) for count, price in parts) + 500_000) // 1_000_000


def identity(one: Seen) -> tuple:
    """The gateway, principal, model and endpoint of a request."""
    endpoint = "/embeddings" if one.form == "Embeddings" else "/chat/completions"
    return REPLICAS[one.gateway], PRINCIPALS[one.key], one.model, endpoint


def test_rows_identify_their_requests(found: Found, stored: dict[int, Row]) -> None:
    for one in found.seen:
        if row := stored.get(one.n):
            assert (row.replica, row.principal, row.model, row.endpoint) == identity(one), (one, row)


def test_reported_usage_is_stored_exactly(found: Found, stored: dict[int, Row]) -> None:
    reported = Counter()
    stored_sums = Counter()
    for one in found.seen:
        row = stored.get(one.n)
        if row is None or row.estimated or not one.usage_reported:
            continue
        assert row.reported and row.refusal is None and row.status == 200, (one, row)
        counts = (row.prompt, row.completion, row.cached, row.reasoning)
        assert counts == (one.prompt, one.completion or 0, one.cached, one.reasoning), (one, row)
        charged = cost(found, row) if one.cost_micros is None else one.cost_micros
        assert row.cost_micros == charged, (one, row, found.price(row))
        reported.update(prompt=one.prompt, completion=one.completion or 0, cost=charged or 0)
        stored_sums.update(prompt=row.prompt, completion=row.completion, cost=row.cost_micros or 0)
    assert stored_sums == reported
    assert stored_sums["cost"] > 0
    progress.say(f"stored as reported: {dict(stored_sums)}")
    prices = {(row.model, tuple(found.price(row).items())) for row in found.rows}
    assert len(prices) == len(scripted.MODELS) + len(scripted.NEW_PRICES), (
        "rows exist before and after the price change"
    )


def test_failovers_are_counted_once(found: Found, stored: dict[int, Row]) -> None:
    over = [one for one in found.seen if one.course.startswith("FailsOver") and one.n in stored]
    assert over and all(one.attempts >= 2 and one.usage_reported for one in over)


def is_empty(row: Row) -> bool:
    """Whether a row has no tokens and is not an estimate."""
    return (row.prompt, row.completion, row.estimated) == (0, 0, False)


def test_rejected_requests_cost_nothing(found: Found, stored: dict[int, Row]) -> None:
    kinds = {402: "budget", 429: "rate_limit", 502: "no_backend"}
    for one in found.seen:
        row = stored.get(one.n)
        if row is None or one.end != "Complete" or one.status not in kinds:
            continue
        assert (row.refusal, row.status) == (kinds[one.status], one.status), (one, row)
        assert is_empty(row) and row.cost_micros == 0, (one, row)
        assert bool(one.attempts) == (one.status == 502), one
        # Only callers with limits or budgets are rejected by them.
        assert one.status != 429 or PRINCIPALS[one.key] in ("slow", "broke"), one
        assert one.status != 402 or PRINCIPALS[one.key] == "broke", one


def test_unknown_usage_is_not_stored_as_zero_cost(found: Found, stored: dict[int, Row]) -> None:
    unknown = ("Fails(Status)", "Fails(Event)")
    rows = [row for one in found.seen if one.course in unknown and (row := stored.get(one.n))]
    rows += [
        row
        for one in found.seen
        if (one.course, one.form, one.end) == ("LeavesBefore", "Stream", "Left") and (row := stored.get(one.n))
    ]
    assert len(rows) > REQUESTS / 200
    for row in rows:
        assert is_empty(row) and not row.reported and row.refusal is None and row.cost_micros is None, row


def within_their_error(one: Seen, completion: int) -> bool:
    """Whether the number of tokens is a correct estimate of what the upstream sent."""
    if one.form == "Embeddings":
        return completion == 0
    if one.response_bytes:
        # For a short response in one piece, half of the bytes count as text.
        return completion == (one.response_bytes + 1) // 2 * 2 // 7
    end = one.course == "Silent"
    return one.events <= completion <= (1 + COMPLETION_ERROR) * one.events + end


def test_estimates_are_marked_and_within_their_error(found: Found, stored: dict[int, Row]) -> None:
    worst = Counter()
    for one in found.seen:
        row = stored.get(one.n)
        if row is None:
            continue
        unreported = one.course in ("Aborts", "LeavesWithin", "Silent")
        disconnected = one.course == "LeavesBefore" and one.form != "Stream"
        assert row.estimated == (unreported or disconnected), (one, row)
        if not row.estimated:
            continue
        assert not row.reported and row.refusal is None
        assert row.status == (200 if one.course in ("Aborts", "Silent") else 499), (one, row)
        sent = one.body_bytes / BYTES_PER_TOKEN
        assert abs(row.prompt - sent) <= PROMPT_ERROR * sent + 1, (one, row)
        assert within_their_error(one, row.completion), (one, row)
        assert row.cost_micros == cost(found, row), (one, row)
        worst["prompt"] = max(worst["prompt"], abs(row.prompt / sent - 1))
        if one.events:
            worst["completion"] = max(worst["completion"], row.completion / one.events - 1)
    progress.say("estimates differ by at most " + ", ".join(f"{what} {part:.1%}" for what, part in worst.items()))
    assert worst


def test_totals_are_the_sums_of_their_rows(found: Found) -> None:
    sums: dict[str, Counter] = defaultdict(Counter)
    for row in found.rows:
        sums[row.model].update(requests=1, prompt=row.prompt, completion=row.completion)
        sums[row.model].update(cost=row.cost_micros or 0, unpriced=row.cost_micros is None)
    names = ("requests", "prompt", "completion", "cost", "unpriced")
    assert found.totals == {model: tuple(sums[model][name] for name in names) for model in scripted.MODELS}


def test_budgets_are_the_sums_of_their_rows(found: Found) -> None:
    assert len(found.budgets) == 5
    for budget in found.budgets:
        rows = sorted((row for row in found.rows if budget.applies(row)), key=lambda row: row.at)
        assert rows and budget.spent
        starts = sorted(budget.spent)
        sums = dict.fromkeys(starts, (0, 0))
        for row in rows:
            if is_empty(row) and not row.cost_micros:
                continue
            start = max(start for start in starts if start <= row.at)
            tokens, money = sums[start]
            sums[start] = (tokens + row.prompt + row.completion, money + (row.cost_micros or 0))
        assert budget.spent == sums, budget
