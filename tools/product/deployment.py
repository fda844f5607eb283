"""The operator in a cluster, and a deployment from ``config/samples``."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tools import paths, progress
from tools.product.admin import Admin

__all__ = ["Deployment", "Secrets", "install_operator", "operator_stopped"]

SYSTEM = "fastllm-system"


@dataclass
class Secrets:
    """The values of a deployment's Secrets; random by default."""

    database: str
    proxy_token: str = field(default_factory=lambda: "pt-" + secrets.token_hex(24))
    encryption_key: str = field(default_factory=lambda: secrets.token_hex(32))
    password: str = field(default_factory=lambda: secrets.token_urlsafe(18))

    def all(self) -> list[str]:
        """All values, none of which may appear in any output."""
        return [self.database, self.proxy_token, self.encryption_key, self.password]


def install_operator(cluster) -> None:
    """Applies ``config/default`` and waits until the operator is ready."""
    cluster.kubectl("apply", "--server-side", "-k", str(paths.CHECKOUT / "config" / "default"))
    try:
        cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment/fastllm-operator", "--timeout=60s")
    except progress.StepFailed as error:
        raise progress.StepFailed(f"{error}\n{_pods(cluster, SYSTEM)}") from error


@contextmanager
def operator_stopped(cluster) -> Iterator[None]:
    """Scales the operator to zero replicas while the body of the ``with`` statement runs."""
    operator = ("-n", SYSTEM, "scale", "deployment/fastllm-operator")
    replicas = cluster.kubectl("-n", SYSTEM, "get", "deployment/fastllm-operator", "-o", "jsonpath={.spec.replicas}")
    cluster.kubectl(*operator, "--replicas=0")
    try:
        cluster.kubectl("-n", SYSTEM, "wait", "pod", "--all", "--for=delete", "--timeout=60s")
        yield
    finally:
        cluster.kubectl(*operator, f"--replicas={replicas}")
        cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment/fastllm-operator", "--timeout=60s")


def _pods(cluster, namespace: str) -> str:
    output = [cluster.kubectl("-n", namespace, "get", "pods,events", "-o", "wide")]
    names = cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()
    for name in names:
        try:
            output.append(cluster.kubectl("-n", namespace, "logs", "--tail=20", "--all-containers", name))
        except progress.StepFailed as error:
            output.append(f"{name}: {error}")
    return "\n".join(output)


class Deployment:
    """A FastllmProxy from ``config/samples`` in its own namespace."""

    def __init__(self, cluster, namespace: str, values: Secrets, name: str = "fastllm") -> None:
        self.cluster, self.namespace, self.values, self.name = cluster, namespace, values, name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Runs kubectl in the namespace of this deployment."""
        return self.cluster.kubectl("-n", self.namespace, *words, stdin=stdin)

    def apply(self, folder: Path, spec: dict | None = None) -> None:
        """Applies ``config/samples`` with this deployment's values, through an overlay in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        samples = os.path.relpath(paths.CHECKOUT / "config" / "samples", folder.resolve())
        patches = [_secret(name, data) for name, data in self._secret_data().items()]
        if spec:
            patches.append(
                {
                    "target": {"kind": "FastllmProxy"},
                    "patch": json.dumps(
                        [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]
                    ),
                }
            )
        overlay = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.namespace,
            "resources": [samples],
            "patches": patches,
        }
        path = folder / "kustomization.yaml"
        path.touch(mode=0o600)
        path.write_text(json.dumps(overlay))
        self.cluster.kubectl(
            "apply",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}),
        )
        self.cluster.kubectl("apply", "--server-side", "-k", str(folder))

    def _secret_data(self) -> dict[str, dict[str, str]]:
        return {
            "fastllm-database": {"uri": self.values.database},
            "fastllm-proxy-token": {"token": self.values.proxy_token},
            "fastllm-encryption-key": {"key": self.values.encryption_key},
            "fastllm-bootstrap": {"password": self.values.password},
        }

    def resource(self) -> dict:
        """The FastllmProxy, from the API server."""
        return json.loads(self.kubectl("get", "fllm", self.name, "-o", "json"))

    def conditions(self) -> dict[str, dict]:
        """The status conditions of its current generation, by type."""
        resource = self.resource()
        generation = resource["metadata"]["generation"]
        conditions = resource.get("status", {}).get("conditions", [])
        return {c["type"]: c for c in conditions if c.get("observedGeneration") == generation}

    def wait(self, *wanted: str, seconds: float = 90) -> dict[str, dict]:
        """Waits for conditions given as ``Type=Status`` or ``Type=Status/Reason``; returns all conditions."""
        deadline = time.monotonic() + seconds
        while True:
            conditions = self.conditions()
            if all(_holds(conditions, want) for want in wanted):
                return conditions
            if time.monotonic() >= deadline:
                current = "\n".join(
                    f"  {c['type']}={c['status']}/{c['reason']}: {c['message']}" for c in conditions.values()
                )
                raise progress.StepFailed(
                    f"{', '.join(wanted)}: not reached within {seconds:g} s; current conditions:\n{current}\n"
                    f"{_pods(self.cluster, self.namespace)}\n"
                    f"{self.cluster.kubectl('-n', SYSTEM, 'logs', '--tail=40', 'deployment/fastllm-operator')}"
                )
            time.sleep(0.2)

    def url(self, plane: str) -> str:
        """The address of a plane's Service (``control`` or ``proxy``), reachable from this machine."""
        service = json.loads(self.kubectl("get", "service", f"{self.name}-{plane}", "-o", "json"))["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    def admin(self) -> Admin:
        """An admin API session as the bootstrap admin."""
        return Admin(self.url("control"), "admin", self.values.password)

    def pods(self, plane: str) -> list[dict]:
        """The pods of a plane, except those being deleted."""
        label = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={plane}"
        pods = json.loads(self.kubectl("get", "pods", "-l", label, "-o", "json"))["items"]
        return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _holds(conditions: dict[str, dict], want: str) -> bool:
    kind, _, rest = want.partition("=")
    status, _, reason = rest.partition("/")
    condition = conditions.get(kind)
    return bool(condition) and condition["status"] == status and (not reason or condition["reason"] == reason)


def _secret(name: str, data: dict[str, str]) -> dict:
    return {
        "target": {"kind": "Secret", "name": name},
        "patch": json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}),
    }
