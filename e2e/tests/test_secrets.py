"""Planted secrets appear in no output."""

from __future__ import annotations

import base64
import json
import os
import subprocess

from e2e.tests.caller import Caller
from e2e.tests.conftest import UPSTREAM_KEY
from tools.cluster import Cluster
from tools.product import Admin, Deployment
from tools.services.postgres import Postgres


def places(deployment: Deployment, cluster: Cluster, admin: Admin, postgres: Postgres) -> dict[str, str]:
    """All texts to search, by their place."""
    found = {}
    for namespace in (deployment.namespace, "fastllm-system"):
        for pod in json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]:
            name = pod["metadata"]["name"]
            found[f"log of {name}"] = cluster.kubectl("-n", namespace, "logs", "--all-containers", name)
        kinds = "events,fllm,deployments,replicasets,pods,services,jobs,configmaps,leases"
        found[f"objects in {namespace}"] = cluster.kubectl("-n", namespace, "get", kinds, "-o", "yaml")
    for path in (
        "/admin/audit",
        "/admin/usage/events",
        "/admin/models",
        "/admin/keys",
        "/admin/principals",
        "/admin/fleet",
    ):
        found[path] = admin.request("GET", path).text
    for path in ("/metrics", "/readyz", "/openapi.json"):
        found[f"control {path}"] = admin.request("GET", path).text
    for pod in deployment.pods("proxy"):
        for path in ("metrics", "health", "readyz"):
            found[f"gateway {path}"] = cluster.kubectl(
                "get",
                "--raw",
                f"/api/v1/namespaces/{deployment.namespace}/pods/{pod['metadata']['name']}:4002/proxy/{path}",
            )
    found["audit log of the API server"] = cluster.audit_log.read_text()
    dump = subprocess.run(["pg_dump", postgres.url], check=True, capture_output=True, text=True, env={**os.environ})
    found["the database"] = dump.stdout
    return found


def test_no_planted_secret_appears(
    deployment: Deployment, cluster: Cluster, admin: Admin, postgres: Postgres, caller: Caller
) -> None:
    deployment.wait("Ready=True")
    canaries = {
        "upstream key": UPSTREAM_KEY,
        "API key": caller.key,
        "session": admin.http.cookies["fastllm_session"],
        "proxy token": deployment.values.proxy_token,
        "encryption key": deployment.values.encryption_key,
        "password": deployment.values.password,
        "database URL": deployment.values.database,
    }
    texts = places(deployment, cluster, admin, postgres)
    assert [place for place, text in texts.items() if not text] == [], "every place has content"
    assert [(name, place) for name, value in canaries.items() for place, text in texts.items() if value in text] == []


def test_the_canaries_are_planted(deployment: Deployment) -> None:
    secrets = json.loads(deployment.kubectl("get", "secrets", "-o", "json"))["items"]
    planted = {base64.b64decode(value).decode() for one in secrets for value in one.get("data", {}).values()}
    # Another test adds a parameter to the database URL.
    assert {value.partition("?")[0] for value in planted} >= set(deployment.values.all())


def test_the_operator_reads_secrets_by_name_and_writes_none(cluster: Cluster) -> None:
    entries = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    operator = "system:serviceaccount:fastllm-system:fastllm-operator"
    secrets = [
        e for e in entries if e["user"]["username"] == operator and e.get("objectRef", {}).get("resource") == "secrets"
    ]
    assert {e["verb"] for e in secrets} == {"get", "list", "watch"}
    kinds = {e["responseObject"]["kind"] for e in secrets if e["verb"] == "list"}
    assert kinds == {"PartialObjectMetadataList"}, "lists request only metadata"
