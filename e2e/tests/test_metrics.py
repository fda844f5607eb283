"""Prometheus' linter accepts the metrics of all three programs."""

from __future__ import annotations

import json
import subprocess

from e2e.tests.caller import Caller
from tools.cluster import Cluster
from tools.product import Admin, Deployment
from tools.setup import ensure, golang


def scrape(cluster: Cluster, namespace: str, pod: str, port: int) -> str:
    """The metrics of a pod."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics"
    return cluster.kubectl("get", "--raw", path)


def operator_pods(cluster: Cluster) -> list[str]:
    """The names of the operator's running pods."""
    pods = json.loads(cluster.kubectl("-n", "fastllm-system", "get", "pods", "-o", "json"))["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def lint(page: str) -> str:
    """The findings of the linter. First verifies that it detects an inserted error."""
    promlint = str(golang.path("promlint"))
    broken = subprocess.run([promlint], input=page + "\nbroken 1\n", capture_output=True, text=True, check=False)
    assert broken.returncode == 3
    assert "broken no help text" in broken.stdout
    return subprocess.run([promlint], input=page, capture_output=True, text=True, check=False).stdout


def test_metrics_pass_the_linter(
    deployment: Deployment, cluster: Cluster, admin: Admin, caller: Caller, tag: str
) -> None:
    ensure("tools")
    assert caller.chat("smollm2", tag).status_code == 200
    pages = {"control": admin.request("GET", "/metrics").text}
    for pod in deployment.pods("proxy"):
        name = pod["metadata"]["name"]
        pages[name] = scrape(cluster, deployment.namespace, name, 4002)
    for name in operator_pods(cluster):
        pages[name] = scrape(cluster, "fastllm-system", name, 8080)
    assert len(pages) >= 3
    for name, page in pages.items():
        assert "fastllm_" in page, name
        assert lint(page) == "", name
