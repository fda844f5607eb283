"""Behavior during outages of single components."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx

from e2e.tests.caller import Caller
from tools import progress
from tools.product import Admin, Deployment, operator_stopped
from tools.services.address import parse
from tools.services.postgres import Postgres


def rows(deployment: Deployment, caller: Caller) -> int:
    """The number of usage rows of the caller (at most one page)."""
    return len(deployment.admin().usage(principal_id=caller.principal, limit=1000))


def send(caller: Caller, count: int) -> None:
    """Sends requests, all of which must succeed."""
    for _ in range(count):
        assert caller.chat(max_tokens=1).status_code == 200


def test_without_the_control_plane_known_keys_are_served_and_usage_arrives_later(
    healthy: Deployment, fresh: Caller
) -> None:
    # The operator would restore the replicas.
    with operator_stopped(healthy.cluster):
        healthy.kubectl("scale", "deployment", f"{healthy.name}-control", "--replicas=0")
        progress.wait_until("control is gone", lambda: not healthy.pods("control"), seconds=30)
        send(fresh, 7)
        ready = [pod for pod in healthy.pods("proxy") if is_ready(pod)]
        assert len(ready) == 2, "the readiness of gateways does not depend on control"
    progress.wait_until("control is back", lambda: any(map(is_ready, healthy.pods("control"))), seconds=60)
    healthy.wait("Ready=True", seconds=90)
    progress.wait_until("usage of the outage", lambda: rows(healthy, fresh) >= 7, seconds=40, every=0.5)
    assert rows(healthy, fresh) == 7


def test_a_deleted_control_pod_is_replaced_without_an_outage(healthy: Deployment, caller: Caller) -> None:
    old = [pod["metadata"]["name"] for pod in healthy.pods("control")]
    healthy.kubectl("delete", "pod", *old, "--wait=false")
    send(caller, 3)
    progress.wait_until(
        "a new control pod",
        lambda: any(pod["metadata"]["name"] not in old and is_ready(pod) for pod in healthy.pods("control")),
        seconds=60,
    )


def is_ready(pod: dict) -> bool:
    """Whether the pod is ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])


def test_without_postgres_both_planes_stay_ready(healthy: Deployment, fresh: Caller, postgres: Postgres) -> None:
    control = healthy.url("control")
    postgres.stop()
    try:
        send(fresh, 5)

        def reports_it() -> bool:
            response = httpx.get(f"{control}/readyz")
            return response.status_code == 200 and "unreachable" in response.text

        progress.wait_until("control reports the missing database", reports_it, seconds=15)
        assert healthy.values.database not in httpx.get(f"{control}/readyz").text
        send(fresh, 1)
        assert all(is_ready(pod) for pod in healthy.pods("control") + healthy.pods("proxy"))
    finally:
        postgres.start()
    progress.wait_until("usage of the outage", lambda: rows(healthy, fresh) >= 6, seconds=40, every=0.5)
    assert rows(healthy, fresh) == 6


def gateway(
    programs: Path, deployment: Deployment, control: str, cache: Path, log: Path
) -> tuple[subprocess.Popen, str]:
    """Starts a gateway on this machine."""
    _, port = parse("127.0.0.1:0")
    environment = {"PATH": os.environ["PATH"], "FASTLLM_PROXY_TOKEN": deployment.values.proxy_token}
    command = [programs / "fastllm-gateway", "--port", str(port), "--control-url", control, "--snapshot-cache", cache]
    process = subprocess.Popen(
        [str(word) for word in command], env=environment, stdout=log.open("ab"), stderr=subprocess.STDOUT
    )
    return process, f"http://127.0.0.1:{port}"


def ready(url: str) -> bool:
    """Whether /readyz returns 200."""
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_gateway_started_without_control_serves_from_its_snapshot_file(
    healthy: Deployment, caller: Caller, programs: Path, tmp_path: Path, admin: Admin
) -> None:
    cache, log = tmp_path / "snapshot.json", tmp_path / "gateway.log"
    process, url = gateway(programs, healthy, healthy.url("control"), cache, log)
    try:
        progress.wait_until("ready from control", lambda: ready(url) and cache.exists(), seconds=10, log=log)
    finally:
        process.terminate()
        assert process.wait(timeout=40) == 0
    assert cache.stat().st_mode & 0o777 == 0o600
    process, url = gateway(programs, healthy, "http://127.0.0.1:9", cache, log)
    try:
        progress.wait_until("ready from the file", lambda: ready(url), seconds=10, log=log)
        assert Caller(url, caller.key, caller.principal).chat(max_tokens=1).status_code == 200
    finally:
        process.terminate()
        process.wait(timeout=40)


def test_a_gateway_without_any_snapshot_is_not_ready(healthy: Deployment, programs: Path, tmp_path: Path) -> None:
    process, url = gateway(programs, healthy, "http://127.0.0.1:9", tmp_path / "none.json", tmp_path / "gateway.log")
    try:

        def responds() -> bool:
            try:
                return httpx.get(f"{url}/health").status_code == 503
            except httpx.TransportError:
                return False

        progress.wait_until("status 503", responds, seconds=10)
        assert not ready(url)
        assert httpx.get(f"{url}/livez").status_code == 200
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(timeout=40)


def test_a_terminated_gateway_finishes_its_streams(
    healthy: Deployment, caller: Caller, programs: Path, tmp_path: Path
) -> None:
    process, url = gateway(programs, healthy, healthy.url("control"), tmp_path / "s.json", tmp_path / "gateway.log")
    try:
        progress.wait_until("ready", lambda: ready(url), seconds=10)
        mine = Caller(url, caller.key, caller.principal)
        body = mine.body(text="Count to one hundred.", max_tokens=300, stream=True)
        with mine.http.stream("POST", "/v1/chat/completions", json=body) as response:
            pieces = response.iter_raw()
            got = next(pieces)
            process.terminate()
            got += b"".join(pieces)
        assert got.endswith(b"data: [DONE]\n\n")
    finally:
        process.terminate()
        assert process.wait(timeout=40) == 0
