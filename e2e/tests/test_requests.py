"""Responses to clients, and the usage rows of their requests."""

from __future__ import annotations

import json

import httpx
import pytest

from e2e.services.recorder import Recorder
from e2e.tests.caller import Caller
from tools import progress
from tools.product import Admin


def usage_only(event: bytes) -> bool:
    """Whether an event is the chunk that `include_usage` adds."""
    if not event.startswith(b"data: {"):
        return False
    chunk = json.loads(event[6:])
    return chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


def usage_rows(admin: Admin, caller: Caller, count: int = 1) -> list[dict]:
    """Waits for ``count`` usage rows of a caller and returns all of them."""

    def rows() -> list[dict] | None:
        found = admin.usage(principal_id=caller.principal)
        return found if len(found) >= count else None

    return progress.wait_until("usage rows", rows, seconds=20, every=0.2)


def test_the_official_client_works_plain_and_streamed(caller: Caller) -> None:
    client = caller.openai()
    assert [model.id for model in client.models.list()] == ["recorded", "smollm2", "unreachable"]
    request = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Say hello."}],
        "temperature": 0,
        "max_tokens": 24,
    }
    plain = client.chat.completions.create(**request)
    assert plain.choices[0].message.content
    assert plain.usage.completion_tokens > 0
    streamed = "".join(
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**request, stream=True)
    )
    assert streamed == plain.choices[0].message.content


def test_a_stream_is_unchanged_except_for_the_usage_chunk_that_the_gateway_requested(
    fresh: Caller, recorder: Recorder, admin: Admin
) -> None:
    response = fresh.stream_bytes(model="recorded")
    sent = [[event + b"\n\n" for event in body.split(b"\n\n") if event] for body in recorder.completions()]
    matching = [events for events in sent if response == b"".join(event for event in events if not usage_only(event))]
    assert len(matching) == 1, "the engine sent these bytes"
    events = matching[0]
    assert sum(usage_only(event) for event in events) == 1, "the gateway requested usage"
    assert response.endswith(b"data: [DONE]\n\n")
    usage = next(json.loads(event[6:])["usage"] for event in events if usage_only(event))
    row = usage_rows(admin, fresh)[0]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row["usage_reported"] is True and row["status"] == 200 and row["ttft_ms"] is not None


def test_a_client_that_requests_usage_receives_it(caller: Caller, recorder: Recorder) -> None:
    response = caller.stream_bytes(model="recorded", stream_options={"include_usage": True})
    assert response in recorder.completions()
    assert sum(usage_only(event) for event in response.split(b"\n\n")) == 1


def test_a_plain_response_is_unchanged_and_recorded(fresh: Caller, recorder: Recorder, admin: Admin) -> None:
    response = fresh.chat("recorded")
    assert response.status_code == 200
    assert response.content in recorder.completions()
    row = usage_rows(admin, fresh)[0]
    assert row["model"] == "recorded"
    assert row["prompt_tokens"] == response.json()["usage"]["prompt_tokens"]
    assert row["completion_tokens"] == response.json()["usage"]["completion_tokens"]
    assert row["duration_ms"] is not None
    assert (row["endpoint"], row["attempts"], row["estimated"]) == ("/chat/completions", 1, False)
    assert row["request_id"] == response.headers["x-request-id"]


def error(response: httpx.Response, status: int, kind: str) -> dict:
    """The error of a response, which must have OpenAI's format."""
    assert response.status_code == status, response.text
    details = response.json()["error"]
    assert set(details) == {"message", "type", "param", "code"}
    assert isinstance(details["message"], str) and isinstance(details["code"], str)
    assert details["type"] == kind
    return details


def test_errors_have_one_format_and_reveal_nothing_internal(caller: Caller) -> None:
    body = caller.body()
    url = f"{caller.url}/v1/chat/completions"
    error(httpx.post(url, json=body, headers={"authorization": "Bearer sk-wrong"}), 401, "invalid_api_key")
    error(httpx.post(url, json=body), 401, "invalid_api_key")
    error(caller.chat("secret-model"), 403, "model_access_denied")
    unknown = error(caller.chat("no-such-model"), 404, "model_not_found")
    assert "smollm2" not in unknown["message"] and "secret-model" not in unknown["message"]
    unreachable = error(caller.chat("unreachable"), 502, "upstream_unavailable")
    assert "10.77" not in unreachable["message"] and ":9" not in unreachable["message"]
    assert error(caller.raw(b'{"model": "smollm2"'), 400, "invalid_request_error")["message"]
    assert error(caller.raw(b'{"messages": []}'), 400, "invalid_request_error")["param"] == "model"
    error(caller.raw(b'{"model": "smollm2", "x": "' + b"a" * (64 << 20) + b'"}'), 413, "payload_too_large")
    error(caller.http.get("/v1/nowhere"), 404, "not_found")


def test_a_key_works_as_x_api_key(caller: Caller) -> None:
    response = httpx.get(f"{caller.url}/v1/models", headers={"x-api-key": caller.key})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "smollm2", "model": "secret-model", "messages": []}',
        b'{"model": "smollm2", "mod\\u0065l": "secret-model", "messages": []}',
        b'{"model": "smollm2", "Model": "secret-model", "messages": []}',
        b'{"MODEL": "secret-model", "messages": []}',
    ],
)
def test_a_second_model_member_never_bypasses_the_grant(caller: Caller, body: bytes) -> None:
    details = error(caller.raw(body), 400, "invalid_request_error")
    assert details["param"] == "model"


def test_rejected_requests_are_recorded_with_their_kind(fresh: Caller, admin: Admin) -> None:
    fresh.chat("secret-model")
    fresh.chat("unreachable")
    rows = {row["refusal"]: row for row in usage_rows(admin, fresh, count=2) if row["refusal"]}
    assert set(rows) == {"authorisation", "no_backend"}
    for row in rows.values():
        assert (row["prompt_tokens"], row["completion_tokens"]) == (0, 0)
    assert rows["authorisation"]["status"] == 403
    assert rows["no_backend"]["status"] == 502


def test_a_new_key_works_and_a_revoked_one_is_rejected(caller: Caller, admin: Admin) -> None:
    key = admin.key(caller.principal, "short-lived")
    url = f"{caller.url}/v1/models"

    def status() -> int:
        return httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code

    progress.wait_until("the key works", lambda: status() == 200, seconds=5)
    wanted = next(row for row in admin.get("/admin/keys") if row["name"] == "short-lived")
    admin.request("DELETE", f"/admin/keys/{wanted['id']}")
    progress.wait_until("the key stops", lambda: [status() for _ in range(6)] == [401] * 6, seconds=5)


def test_both_gateways_report_to_the_fleet(deployment, admin: Admin) -> None:
    names = {pod["metadata"]["name"] for pod in deployment.pods("proxy")}

    def reported() -> bool:
        return {report["replica"] for report in admin.get("/admin/fleet")} >= names

    progress.wait_until("health reports", reported, seconds=25)
