"""The manifests of CoreDNS. Names outside the cluster do not resolve; no query is forwarded."""

from __future__ import annotations

from typing import Any

from tools.cluster.config import CLUSTER_DOMAIN, COREDNS_IMAGE
from tools.cluster.plan import Plan

_LABELS = {"k8s-app": "kube-dns"}
# Two blocks, because CoreDNS runs the plug-in "template" before "kubernetes", regardless of their order here.
_COREFILE = f"""
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 ip6.arpa:53 {{
    errors
    ready
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        ttl 2
    }}
}}
.:53 {{
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def manifests(plan: Plan) -> dict[str, Any]:
    """A List with all resources of the cluster DNS."""
    items = [_account(), *_rights(), _corefile(), _deployment(), _service(plan)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _named(api: str, kind: str, name: str, *, namespaced: bool = True, **rest: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": _LABELS, **({"namespace": "kube-system"} if namespaced else {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def _account() -> dict[str, Any]:
    return _named("v1", "ServiceAccount", "coredns")


def _rights() -> list[dict[str, Any]]:
    rbac = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        _named(f"{rbac}/v1", "ClusterRole", "coredns", namespaced=False, rules=rules),
        _named(
            f"{rbac}/v1",
            "ClusterRoleBinding",
            "coredns",
            namespaced=False,
            roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": "coredns"},
            subjects=[{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}],
        ),
    ]


def _corefile() -> dict[str, Any]:
    return _named("v1", "ConfigMap", "coredns", data={"Corefile": _COREFILE})


def _deployment() -> dict[str, Any]:
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"containerPort": 53, "protocol": "UDP", "name": "dns"},
            {"containerPort": 53, "protocol": "TCP", "name": "dns-tcp"},
        ],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
        "tolerations": [{"operator": "Exists"}],
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
    return _named("apps/v1", "Deployment", "coredns", spec=spec)


def _service(plan: Plan) -> dict[str, Any]:
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]
    return _named("v1", "Service", "kube-dns", spec={"clusterIP": plan.dns_ip, "selector": _LABELS, "ports": ports})
