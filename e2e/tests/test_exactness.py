"""Usage rows are what upstreams said, to the token and the micro-unit, whatever goes wrong between them and Postgres.

A hundred thousand requests through two gateways, with failovers, answers that break off, clients that hang up and
callers that are refused; meanwhile answers of control are lost, it restarts and is killed, Postgres restarts, prices
change, and one gateway is killed. What the killed gateway held is the only loss, and computed here.
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

# A gateway takes 3.5 bytes of a request for a token, where engines make one of about 4, and an event of a stream for
# one at least, that which ends it too: so far may an estimate be from what an engine counts that sends an event a
# token.
BYTES_PER_TOKEN = 4
PROMPT_ERROR = 0.15
COMPLETION_ERROR = 0.1

# The longest that an event waits to be sent, and what sending takes (milliseconds).
HELD_MS = 5_000 + 1_000


@pytest.fixture(scope="module")
def found(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    with Postgres("exact", "127.0.0.1:0") as postgres:
        run = Run(programs, tmp_path_factory.mktemp("exact"), postgres)
        with progress.step(f"{REQUESTS} requests"):
            yield run.measure()


@pytest.fixture(scope="module")
def stored(found: Found) -> dict[int, Row]:
    """The rows by the numbers of their requests."""
    return {row.n: row for row in found.rows}


def completed(found: Found, gateway: str) -> list[Seen]:
    """What ended through a gateway as it should, in the order in which it ended."""
    place = REPLICAS.index(gateway)
    ended = (one for one in found.seen if one.gateway == place and one.end in ("Complete", "Left"))
    return sorted(ended, key=lambda one: one.order)


def lost(found: Found, stored: dict[int, Row]) -> list[Seen]:
    """What ended as it should and has no row."""
    return [one for name in REPLICAS for one in completed(found, name) if one.n not in stored]


def test_everything_was_asked_and_went_as_it_should(found: Found) -> None:
    assert len(found.seen) == REQUESTS
    ends = Counter(one.end for one in found.seen)
    # What the killed gateway had in flight broke off, and nothing else.
    assert set(ends) <= {"Complete", "Left", "Lost"}
    assert ends["Lost"] <= CLIENTS
    assert {one.gateway for one in found.seen if one.end == "Lost"} <= {REPLICAS.index(KILLED)}
    for one in found.seen:
        if one.end == "Complete":
            assert one.status in {200, 402, 429, 500, 502}, one
    # It would be no wonder if little had happened.
    courses = Counter(one.course for one in found.seen)
    assert len(courses) == 11 and min(courses.values()) >= REQUESTS / 2000, courses
    statuses = Counter(one.status for one in found.seen)
    assert min(statuses[402], statuses[429]) >= REQUESTS / 200, statuses


def test_no_request_has_two_rows_though_batches_were_sent_twice(found: Found) -> None:
    assert found.unheard >= REQUESTS / 500 / 14
    twice = [n for n, count in Counter(row.n for row in found.rows).items() if count > 1]
    assert twice == []


def test_only_what_the_killed_gateway_held_is_lost(found: Found, stored: dict[int, Row]) -> None:
    gone = lost(found, stored)
    assert {one.gateway for one in gone} <= {REPLICAS.index(KILLED)}
    # Refusals have a queue of their own.
    for refused in (False, True):
        ended = [one for one in completed(found, KILLED) if one.refused == refused]
        kept = [one.order for one in ended if one.n in stored]
        held = [one for one in ended if one.n not in stored]
        # Events are sent in the order in which requests end, which clients see within what is under way.
        assert all(one.order >= max(kept) - 2 * CLIENTS for one in held)
        assert kept
        last = max(one.ended_ms for one in ended)
        assert all(last - one.ended_ms <= HELD_MS for one in held)
    in_flight = sum(one.end == "Lost" for one in found.seen)
    progress.say(f"the killed gateway had {in_flight} requests in flight, and {len(gone)} usage events unsent")


def cost(found: Found, row: Row) -> int | None:
    """What a row costs by the prices of its time, rounded once, half up."""
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


def by_whom(one: Seen) -> tuple:
    """What every row says of its request."""
    endpoint = "/embeddings" if one.form == "Embeddings" else "/chat/completions"
    return REPLICAS[one.gateway], PRINCIPALS[one.key], one.model, endpoint


def test_every_row_says_who_asked_for_what(found: Found, stored: dict[int, Row]) -> None:
    for one in found.seen:
        if row := stored.get(one.n):
            assert (row.replica, row.principal, row.model, row.endpoint) == by_whom(one), (one, row)


def test_what_upstreams_said_is_what_is_stored(found: Found, stored: dict[int, Row]) -> None:
    said = Counter()
    kept = Counter()
    for one in found.seen:
        row = stored.get(one.n)
        if row is None or row.estimated or not one.told:
            continue
        assert row.reported and row.refusal is None and row.status == 200, (one, row)
        counts = (row.prompt, row.completion, row.cached, row.reasoning)
        assert counts == (one.prompt, one.completion or 0, one.cached, one.reasoning), (one, row)
        charged = cost(found, row) if one.cost_micros is None else one.cost_micros
        assert row.cost_micros == charged, (one, row, found.price(row))
        said.update(prompt=one.prompt, completion=one.completion or 0, cost=charged or 0)
        kept.update(prompt=row.prompt, completion=row.completion, cost=row.cost_micros or 0)
    assert kept == said
    assert kept["cost"] > 0
    progress.say(f"stored as reported: {dict(kept)}")
    prices = {(row.model, tuple(found.price(row).items())) for row in found.rows}
    assert len(prices) == len(scripted.MODELS) + len(scripted.DEARER), "rows lie on both sides of the change"


def test_what_failed_over_was_asked_twice_and_counts_once(found: Found, stored: dict[int, Row]) -> None:
    over = [one for one in found.seen if one.course.startswith("FailsOver") and one.n in stored]
    assert over and all(one.attempts >= 2 and one.told for one in over)


def nothing(row: Row) -> bool:
    """Whether a row has no tokens and is no estimate."""
    return (row.prompt, row.completion, row.estimated) == (0, 0, False)


def test_refused_requests_cost_nothing(found: Found, stored: dict[int, Row]) -> None:
    kinds = {402: "budget", 429: "rate_limit", 502: "no_backend"}
    for one in found.seen:
        row = stored.get(one.n)
        if row is None or one.end != "Complete" or one.status not in kinds:
            continue
        assert (row.refusal, row.status) == (kinds[one.status], one.status), (one, row)
        assert nothing(row) and row.cost_micros == 0, (one, row)
        assert bool(one.attempts) == (one.status == 502), one
        # Limits and budgets are those of callers who have some.
        assert one.status != 429 or PRINCIPALS[one.key] in ("slow", "broke"), one
        assert one.status != 402 or PRINCIPALS[one.key] == "broke", one


def test_unknown_is_not_zero(found: Found, stored: dict[int, Row]) -> None:
    unknown = ("Fails(Status)", "Fails(Event)")
    rows = [row for one in found.seen if one.course in unknown and (row := stored.get(one.n))]
    rows += [
        row
        for one in found.seen
        if (one.course, one.form, one.end) == ("LeavesBefore", "Stream", "Left") and (row := stored.get(one.n))
    ]
    assert len(rows) > REQUESTS / 200
    for row in rows:
        assert nothing(row) and not row.reported and row.refusal is None and row.cost_micros is None, row


def within_their_error(one: Seen, completion: int) -> bool:
    """Whether so many tokens are an estimate of what an upstream has sent."""
    if one.form == "Embeddings":
        return completion == 0
    if one.answer_bytes:
        # Of a short answer in one piece half is taken for text.
        return completion == (one.answer_bytes + 1) // 2 * 2 // 7
    end = one.course == "Silent"
    return one.events <= completion <= (1 + COMPLETION_ERROR) * one.events + end


def test_estimates_say_so_and_lie_within_their_error(found: Found, stored: dict[int, Row]) -> None:
    worst = Counter()
    for one in found.seen:
        row = stored.get(one.n)
        if row is None:
            continue
        untold = one.course in ("BreaksOff", "LeavesWithin", "Silent")
        unanswered = one.course == "LeavesBefore" and one.form != "Stream"
        assert row.estimated == (untold or unanswered), (one, row)
        if not row.estimated:
            continue
        assert not row.reported and row.refusal is None
        assert row.status == (200 if one.course in ("BreaksOff", "Silent") else 499), (one, row)
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
            if nothing(row) and not row.cost_micros:
                continue
            start = max(start for start in starts if start <= row.at)
            tokens, money = sums[start]
            sums[start] = (tokens + row.prompt + row.completion, money + (row.cost_micros or 0))
        assert budget.spent == sums, budget
