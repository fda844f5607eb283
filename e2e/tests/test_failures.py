"""Failures of pods, and an autoscaler, which the operator reports."""

from __future__ import annotations

import base64
import json

from e2e.tests.caller import Caller
from e2e.tests.conftest import still_served
from tools import progress
from tools.product import Deployment

AUTOSCALER = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "traffic"},
    "spec": {"minReplicas": 3, "maxReplicas": 4},
}


def test_another_encryption_key_is_reported_and_restoring_it_recovers(healthy: Deployment, caller: Caller) -> None:
    reference = healthy.resource()["spec"]["encryptionKey"]

    def set_key(value: str) -> None:
        data = {reference["key"]: base64.b64encode(value.encode()).decode()}
        healthy.kubectl("patch", "secret", reference["name"], "-p", json.dumps({"data": data}))

    set_key("f" * 64)
    healthy.wait("Stalled=True/EncryptionKeyChanged", seconds=5)
    # A node is drained meanwhile.
    for pod in healthy.pods("control"):
        healthy.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")

    def reported() -> bool:
        message = healthy.conditions()["Stalled"]["message"]
        return "exits repeatedly with code 2" in message and "encrypt" in message.partition("code 2")[2]

    progress.wait_until("the error of the control plane in the status", reported, seconds=60)
    assert still_served(caller)
    set_key(healthy.values.encryption_key)
    healthy.wait("Ready=True", "Stalled=False", seconds=60)
    events = healthy.kubectl("get", "events.events.k8s.io", "-o", "json")
    assert "EncryptionKeyRestored" in events


def test_an_autoscaler_decides_on_the_number_of_gateways(healthy: Deployment) -> None:
    name = f"{healthy.name}-proxy"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    autoscaler = {**AUTOSCALER, "spec": {**AUTOSCALER["spec"], "scaleTargetRef": target}}

    def replicas() -> int:
        return int(healthy.kubectl("get", "deployment", name, "-o", "jsonpath={.spec.replicas}"))

    def ready_with(count: int) -> bool:
        return healthy.resource()["status"]["proxyReplicas"] == f"{count}/{count}"

    healthy.kubectl("apply", "-f", "-", stdin=json.dumps(autoscaler))
    try:
        progress.wait_until("three gateways", lambda: ready_with(3), seconds=90)
        message = healthy.wait("Ready=True")["Ready"]["message"]
        assert 'HorizontalPodAutoscaler "traffic"' in message
        # Another change of the resource keeps the number.
        healthy.kubectl("annotate", "fllm", healthy.name, "fastllm.io/restart-at=autoscaled", "--overwrite")
        progress.wait_until(
            "the restart",
            lambda: "autoscaled" in healthy.kubectl("get", "deployment", name, "-o", "json"),
            seconds=60,
        )
        assert replicas() == 3
    finally:
        healthy.kubectl("delete", "hpa", "traffic")
    progress.wait_until("two gateways", lambda: replicas() == 2, seconds=10)
    healthy.wait("Ready=True")
