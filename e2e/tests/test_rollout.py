"""The operator's changes to a running deployment."""

from __future__ import annotations

import base64
import json
import secrets
import threading

from e2e.tests.caller import Caller
from e2e.tests.conftest import NEXT, still_served
from tools import progress
from tools.cluster import Cluster
from tools.product import Deployment, Secrets, operator_stopped
from tools.services.postgres import Postgres

MISSING = "fastllm/fastllm-proxy:9.9.9-missing"


def uids(deployment: Deployment, plane: str) -> set[str]:
    """The UIDs of a plane's pods."""
    return {pod["metadata"]["uid"] for pod in deployment.pods(plane)}


def generations(deployment: Deployment) -> dict[str, int]:
    """The generations of both Deployments, which increase with every change of their spec."""
    found = json.loads(deployment.kubectl("get", "deployments", "-o", "json"))["items"]
    return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}


def patch(deployment: Deployment, spec: dict) -> None:
    """Patches the resource."""
    deployment.kubectl("patch", "fllm", deployment.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def test_kubectl_get_shows_the_state(healthy: Deployment) -> None:
    header, row = healthy.kubectl("get", "fllm").strip().splitlines()
    assert header.split() == ["NAME", "PHASE", "GATEWAY", "CONTROL", "IMAGE", "AGE"]
    assert row.split()[1:3] == ["Ready", "2/2"]
    described = healthy.kubectl("explain", "fllm.spec.proxy.replicas")
    assert "DESCRIPTION" in described


def test_every_condition_type_is_present(healthy: Deployment) -> None:
    assert set(healthy.conditions()) == {
        "Ready",
        "Reconciling",
        "Stalled",
        "Available",
        "SecretsResolved",
        "Upgrading",
        "Bootstrapped",
        "ModelsServed",
        "Paused",
    }


def test_a_missing_image_does_not_cause_an_outage_and_reverting_recovers(
    healthy: Deployment, caller: Caller, admin
) -> None:
    gateways, controls = uids(healthy, "proxy"), uids(healthy, "control")
    good = healthy.resource()["spec"].get("image")
    patch(healthy, {"image": MISSING})
    conditions = healthy.wait("Stalled=True/ImagePullFailed", "Available=True", "Ready=False")
    assert MISSING in conditions["Stalled"]["message"]
    stuck = [pod for pod in healthy.pods("control") if pod["metadata"]["uid"] not in controls]
    assert len(stuck) == 1 and stuck[0]["metadata"]["name"] in conditions["Stalled"]["message"]
    assert MISSING not in healthy.resource()["status"]["observedImage"]
    assert still_served(caller)
    assert admin.get("/admin/models")
    assert uids(healthy, "proxy") == gateways
    patch(healthy, {"image": good})
    healthy.wait("Ready=True", "Stalled=False")
    progress.wait_until("removal of the stuck pod", lambda: uids(healthy, "control") == controls, seconds=30)
    assert uids(healthy, "proxy") == gateways


def test_an_upgrade_rolls_control_first_and_serves_throughout(healthy: Deployment, caller: Caller) -> None:
    good = healthy.resource()["spec"].get("image")
    failed, done = [], threading.Event()

    def send() -> None:
        while not done.is_set():
            if not still_served(caller):
                failed.append(1)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        seen = watch_order(healthy, f"fastllm/fastllm-proxy:{NEXT}")
    finally:
        done.set()
        thread.join()
    assert seen, "the gateway's template had the new image before control was complete"
    assert not failed
    assert healthy.resource()["status"]["observedImage"].endswith(NEXT)
    patch(healthy, {"image": good})
    healthy.wait("Ready=True", seconds=120)


def watch_order(deployment: Deployment, image: str) -> bool:
    """Upgrades; returns whether control was complete whenever the gateway's template had the new image."""
    in_order = []

    def planes() -> dict[str, dict]:
        found = json.loads(deployment.kubectl("get", "deployments", "-o", "json"))["items"]
        return {one["metadata"]["name"].removeprefix(f"{deployment.name}-"): one for one in found}

    def has(one: dict) -> bool:
        return any(c["image"] == image for c in one["spec"]["template"]["spec"]["containers"])

    def complete(one: dict) -> bool:
        status, wanted = one["status"], one["spec"]["replicas"]
        return (
            has(one)
            and status.get("observedGeneration") == one["metadata"]["generation"]
            and all(status.get(field, 0) == wanted for field in ("replicas", "updatedReplicas", "readyReplicas"))
        )

    def finished() -> bool:
        now = planes()
        if has(now["proxy"]):
            in_order.append(complete(now["control"]))
        return complete(now["proxy"])

    patch(deployment, {"image": image})
    progress.wait_until("the upgrade", finished, seconds=120, every=0.1)
    deployment.wait("Ready=True", seconds=60)
    return bool(in_order) and all(in_order)


def test_a_deleted_secret_is_reported_and_changes_nothing(healthy: Deployment, caller: Caller) -> None:
    before = generations(healthy), uids(healthy, "proxy"), uids(healthy, "control")
    name = healthy.resource()["spec"]["proxyToken"]["name"]
    secret = json.loads(healthy.kubectl("get", "secret", name, "-o", "json"))
    healthy.kubectl("delete", "secret", name)
    conditions = healthy.wait("SecretsResolved=False/SecretNotFound", "Stalled=True", "Available=True", seconds=5)
    message = conditions["SecretsResolved"]["message"]
    assert name in message and "proxyToken" in message and healthy.resource()["spec"]["proxyToken"]["key"] in message
    assert still_served(caller)
    kept = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": secret["data"]}
    healthy.kubectl("apply", "-f", "-", stdin=json.dumps(kept))
    healthy.wait("SecretsResolved=True/Resolved", "Ready=True", seconds=10)
    assert (generations(healthy), uids(healthy, "proxy"), uids(healthy, "control")) == before


def test_a_new_database_url_restarts_only_control_and_only_once(healthy: Deployment) -> None:
    gateways, before = uids(healthy, "proxy"), generations(healthy)
    reference = healthy.resource()["spec"]["database"]
    value = base64.b64encode(f"{healthy.values.database}?application_name=rotated".encode()).decode()
    healthy.kubectl("patch", "secret", reference["name"], "-p", json.dumps({"data": {reference["key"]: value}}))
    control, proxy = f"{healthy.name}-control", f"{healthy.name}-proxy"
    progress.wait_until("the rollout", lambda: generations(healthy)[control] == before[control] + 1, seconds=10)
    healthy.wait("Ready=True")
    progress.wait_until("one control pod", lambda: len(uids(healthy, "control")) == 1, seconds=60)
    assert generations(healthy) == {control: before[control] + 1, proxy: before[proxy]}
    assert uids(healthy, "proxy") == gateways
    events = healthy.kubectl("get", "events.events.k8s.io", "-o", "json")
    assert f"SecretChanged({reference['name']}/{reference['key']})" in events


def test_a_new_proxy_token_loses_no_request_and_no_usage(
    healthy: Deployment, fresh: Caller, postgres: Postgres
) -> None:
    before = generations(healthy)
    reference = healthy.resource()["spec"]["proxyToken"]
    token = f"pt-{secrets.token_hex(24)}"
    value = base64.b64encode(token.encode()).decode()
    sent, done = [], threading.Event()

    def send() -> None:
        while not done.is_set():
            sent.append(still_served(fresh))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        healthy.kubectl("patch", "secret", reference["name"], "-p", json.dumps({"data": {reference["key"]: value}}))
        healthy.values.proxy_token = token
        proxy = f"{healthy.name}-proxy"
        progress.wait_until("the gateways' rollout", lambda: generations(healthy)[proxy] > before[proxy], seconds=90)
        healthy.wait("Ready=True", seconds=120)
    finally:
        done.set()
        thread.join()
    assert sent and all(sent)
    sql = f"SELECT count(*) FROM usage_events WHERE principal_id = {fresh.principal}"
    progress.wait_until("the usage of all requests", lambda: int(postgres.execute(sql)) == len(sent), seconds=40)


def test_a_deleted_and_recreated_resource_starts_clean(cluster: Cluster, postgres: Postgres, tmp_path) -> None:
    again = Deployment(cluster, "again", Secrets(postgres.create_database("again")))
    again.apply(tmp_path, {"proxy": {"replicas": 1}})
    first = again.wait("Ready=True") and again.resource()
    assert not first["metadata"].get("finalizers")
    again.kubectl("delete", "fllm", again.name)
    again.apply(tmp_path, {"proxy": {"replicas": 1}})
    second = again.wait("Ready=True") and again.resource()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    owners = json.loads(again.kubectl("get", "deployments,services", "-o", "json"))["items"]
    assert {o["uid"] for one in owners for o in one["metadata"]["ownerReferences"]} == {second["metadata"]["uid"]}
    with operator_stopped(cluster):
        cluster.kubectl("delete", "namespace", "again", "--timeout=90s")
