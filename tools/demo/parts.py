"""The parts of the demo, by name, shared by ``up`` and ``down``."""

from __future__ import annotations

from tools.cluster import Cluster
from tools.services.engine import Engine
from tools.services.postgres import Postgres

NAMESPACE = "fastllm"
MODEL = "smollm2"


def cluster() -> Cluster:
    """The Kubernetes cluster."""
    return Cluster("fastllm", profile="full")


def postgres(machine_ip: str) -> Postgres:
    """The database, at an address that pods can reach."""
    return Postgres("fastllm", f"{machine_ip}:5432")


def engines(machine_ip: str) -> list[Engine]:
    """Two model servers with the same model: one pool."""
    return [Engine(f"fastllm-{number}", f"{machine_ip}:{8100 + number}", MODEL) for number in (1, 2)]
