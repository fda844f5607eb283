"""A virtual model through both planes: from the admin API to the engine, and back as a usage row."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from e2e.services.recorder import Recorder
from e2e.tests.caller import Caller
from tools import progress
from tools.product import Admin


@pytest.fixture
def auto(admin: Admin, caller: Caller) -> Iterator[str]:
    """A virtual model: streams go to ``recorded``, everything else to an unreachable model, then to ``smollm2``."""
    ids = {model["name"]: model["id"] for model in admin.get("/admin/models")}
    made = admin.post("/admin/virtual-models", name="auto")["id"]
    admin.post(f"/admin/virtual-models/{made}/rules", position=0, stream=True, targets=[{"model_id": ids["recorded"]}])
    for position, model in enumerate(("unreachable", "smollm2")):
        admin.post(f"/admin/virtual-models/{made}/defaults", model_id=ids[model], position=position)
    caller.wait_until_served("auto")
    yield "auto"
    admin.request("DELETE", f"/admin/virtual-models/{made}")


def rows(admin: Admin, caller: Caller) -> list[dict]:
    """The caller's usage rows of requests for the virtual model."""
    return [row for row in admin.usage(principal_id=caller.principal) if row["requested_model"] == "auto"]


def test_rules_apply_and_defaults_fail_over(auto: str, admin: Admin, caller: Caller, recorder: Recorder) -> None:
    streamed = caller.stream_bytes(model=auto)
    assert streamed.endswith(b"data: [DONE]\n\n")
    first = streamed.split(b"\n\n")[0]
    assert any(body.startswith(first) for body in recorder.completions()), "the response is from the rule's target"
    responses = [caller.chat(auto, text=f"Say hello to number {number}.", max_tokens=1) for number in range(6)]
    assert {response.status_code for response in responses} == {200}
    progress.wait_until("usage rows", lambda: len(rows(admin, caller)) >= 7, seconds=20, every=0.2)
    assert sorted(row["model"] for row in rows(admin, caller)) == ["recorded"] + ["smollm2"] * 6


def test_a_grant_for_the_virtual_model_alone_is_not_sufficient(
    auto: str, admin: Admin, caller: Caller, tag: str
) -> None:
    principal = admin.principal(f"virtual-{tag}", auto)
    key = admin.key(principal)

    def status() -> int:
        body = caller.body(auto, max_tokens=1)
        return httpx.post(
            f"{caller.url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ).status_code

    progress.wait_until("the gateways accept the key", lambda: status() != 401, seconds=5)
    assert [status() for _ in range(4)] == [403] * 4
