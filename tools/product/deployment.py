"""The operator in a cluster, and one deployment that it makes from ``config/samples``."""

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

__all__ = ["Deployment", "Secrets", "install_operator", "operator_away"]

SYSTEM = "fastllm-system"


@dataclass
class Secrets:
    """The values that a deployment's Secrets hold; random unless given."""

    database: str
    proxy_token: str = field(default_factory=lambda: "pt-" + secrets.token_hex(24))
    encryption_key: str = field(default_factory=lambda: secrets.token_hex(32))
    password: str = field(default_factory=lambda: secrets.token_urlsafe(18))

    def all(self) -> list[str]:
        """Every value that may appear nowhere."""
        return [self.database, self.proxy_token, self.encryption_key, self.password]


def install_operator(cluster) -> None:
    """Applies ``config/default`` and waits until the operator is ready."""
    cluster.kubectl("apply", "--server-side", "-k", str(paths.CHECKOUT / "config" / "default"))
    try:
        cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment/fastllm-operator", "--timeout=60s")
    except progress.StepFailed as error:
        raise progress.StepFailed(f"{error}\n{_pods(cluster, SYSTEM)}") from error


@contextmanager
def operator_away(cluster) -> Iterator[None]:
    """Stops the operator meanwhile."""
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
    said = [cluster.kubectl("-n", namespace, "get", "pods,events", "-o", "wide")]
    names = cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()
    for name in names:
        try:
            said.append(cluster.kubectl("-n", namespace, "logs", "--tail=20", "--all-containers", name))
        except progress.StepFailed as error:
            said.append(f"{name}: {error}")
    return "\n".join(said)


class Deployment:
    """One FastllmProxy, from ``config/samples``, in a namespace of its own."""

    def __init__(self, cluster, namespace: str, values: Secrets, name: str = "fastllm") -> None:
        self.cluster, self.namespace, self.values, self.name = cluster, namespace, values, name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """kubectl in this deployment's namespace."""
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
        """The FastllmProxy as the API server has it."""
        return json.loads(self.kubectl("get", "fllm", self.name, "-o", "json"))

    def conditions(self) -> dict[str, dict]:
        """The conditions of its status by type, as far as they are of its newest generation."""
        resource = self.resource()
        generation = resource["metadata"]["generation"]
        conditions = resource.get("status", {}).get("conditions", [])
        return {c["type"]: c for c in conditions if c.get("observedGeneration") == generation}

    def wait(self, *wanted: str, seconds: float = 90) -> dict[str, dict]:
        """Waits for conditions given as ``Type=Status`` or ``Type=Status/Reason``; the conditions then."""
        deadline = time.monotonic() + seconds
        while True:
            conditions = self.conditions()
            if all(_holds(conditions, want) for want in wanted):
                return conditions
            if time.monotonic() >= deadline:
                told = "\n".join(
                    f"  {c['type']}={c['status']}/{c['reason']}: {c['message']}" for c in conditions.values()
                )
                raise progress.StepFailed(
                    f"{', '.join(wanted)}: not within {seconds:g} s; the resource says\n{told}\n"
                    f"{_pods(self.cluster, self.namespace)}\n"
                    f"{self.cluster.kubectl('-n', SYSTEM, 'logs', '--tail=40', 'deployment/fastllm-operator')}"
                )
            time.sleep(0.2)

    def url(self, plane: str) -> str:
        """The address of a plane's Service (``control`` or ``proxy``), which this machine reaches."""
        service = json.loads(self.kubectl("get", "service", f"{self.name}-{plane}", "-o", "json"))["spec"]
        return f"http://{service['clusterIP']}:{service['ports'][0]['port']}"

    def admin(self) -> Admin:
        """A session as the bootstrapped administrator."""
        return Admin(self.url("control"), "admin", self.values.password)

    def pods(self, plane: str) -> list[dict]:
        """The pods of a plane that are not being deleted."""
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
