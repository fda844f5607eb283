"""Starts etcd, kube-apiserver and kube-controller-manager: on the machine (profile ``api``) or in the first node."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from tools import progress
from tools.cluster import config
from tools.cluster.certs import Certs
from tools.cluster.plan import Plan
from tools.cluster.process import Daemon
from tools.setup import golang

Starter = Callable[[str, Sequence[str | Path]], Daemon]


def free_ports(count: int) -> list[int]:
    """Distinct free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def write_kubeconfigs(plan: Plan, certs: Certs) -> None:
    """Writes a kubeconfig for the administrator, each component and each kubelet."""
    certificate_names = {"kubeconfig": "admin"}
    for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy", *(node.name for node in plan.nodes)):
        certificate_names[f"{component}.kubeconfig"] = component
    for file, user in certificate_names.items():
        write_kubeconfig(plan, certs, user, plan.folder / file)


def write_kubeconfig(plan: Plan, certs: Certs, user: str, path: Path) -> None:
    """Writes one kubeconfig, readable only by its owner."""
    content = config.kubeconfig(
        plan,
        user,
        certs.path("ca.crt").read_bytes(),
        certs.path(f"{user}.crt").read_bytes(),
        certs.path(f"{user}.key").read_bytes(),
    )
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))


def start(plan: Plan, certs: Certs, starter: Starter) -> None:
    """Starts etcd and the API server, which waits for etcd."""
    (plan.folder / "audit-policy.json").write_text(json.dumps(config.audit_policy()))
    starter("etcd", [golang.path("etcd"), *config.etcd_flags(plan)])
    starter("kube-apiserver", [golang.path("kube-apiserver"), *config.apiserver_flags(plan, certs.folder)])


def wait_until_ready(plan: Plan, certs: Certs, etcd: Daemon, apiserver: Daemon) -> None:
    """Waits until the API server and its default roles are ready. Raises StepFailed with its log."""
    context = ssl.create_default_context(cafile=str(certs.path("ca.crt")))
    context.load_cert_chain(certs.path("admin.crt"), certs.path("admin.key"))

    def ready() -> bool:
        etcd.alive()
        apiserver.alive()
        connection = http.client.HTTPSConnection(plan.api_ip, plan.api_port, context=context, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    progress.wait_until("kube-apiserver", ready, seconds=60, log=apiserver.log)


def start_controller_manager(plan: Plan, certs: Certs, starter: Starter) -> Daemon:
    """Starts the controllers: Deployments, Jobs, garbage collection, namespace deletion, service accounts."""
    return starter(
        "kube-controller-manager",
        [golang.path("kube-controller-manager"), *config.controller_manager_flags(plan, certs.folder)],
    )


def start_scheduler(plan: Plan, starter: Starter) -> Daemon:
    """Starts the scheduler."""
    return starter("kube-scheduler", [golang.path("kube-scheduler"), *config.scheduler_flags(plan)])
