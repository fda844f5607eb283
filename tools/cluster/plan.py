"""Which names and addresses a cluster has: pure, and the same every time for the same name and index.

Two clusters side by side differ in their index (0 to 31), and every range follows from it:

==============  ======================  ==========================================
what            range                   who reaches it
==============  ======================  ==========================================
bridge, nodes   10.77.<index>.0/24      the machine is .1, nodes are .2, .3, …
pods            10.88.<8*index>.0/21    a /24 for each node; the machine by a route
services        10.96.<8*index>.0/21    pods and nodes; the machine by a route
==============  ======================  ==========================================

Profile ``api`` listens on 127.0.0.1 and needs none of this but its two ports.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.paths import checked_name, state_dir

PROFILES = ("full", "api")
INDEXES = 32
MOST_NODES = 8
DEFAULT_NAME = "fastllm"


@dataclass(frozen=True)
class Node:
    """One node: a set of namespaces with a veth into the cluster's bridge."""

    cluster: str
    index: int
    number: int

    @property
    def name(self) -> str:
        """The name of the Kubernetes object and of the folder."""
        return f"node{self.number}"

    @property
    def mark(self) -> str:
        """An argument of the node's init, so that it is found even when the folder is gone."""
        return f"fastllm-node:{self.cluster}:{self.name}"

    @property
    def ip(self) -> str:
        """The node's address on the bridge."""
        return f"10.77.{self.index}.{self.number + 1}"

    @property
    def pod_range(self) -> str:
        """The addresses of its pods."""
        return f"10.88.{8 * self.index + self.number - 1}.0/24"

    @property
    def veth(self) -> str:
        """The machine's end of its link (15 characters at most)."""
        return f"fllm{self.index}n{self.number}"

    @property
    def cgroup(self) -> str:
        """The root of its pods' cgroups, in every hierarchy."""
        return f"fastllm-{self.cluster}-{self.name}"


@dataclass(frozen=True)
class Plan:
    """The names and addresses of one cluster."""

    name: str
    profile: str
    index: int
    node_count: int = 1
    api_port: int = 6443
    etcd_port: int = 2379
    etcd_peer_port: int = 2380

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.profile not in PROFILES:
            raise ValueError(f"no profile {self.profile!r}; there are {', '.join(PROFILES)}")
        if not 0 <= self.index < INDEXES or not 1 <= self.node_count <= MOST_NODES:
            raise ValueError(f"an index is 0 to {INDEXES - 1}, and there are 1 to {MOST_NODES} nodes")

    @property
    def folder(self) -> Path:
        """Everything this cluster writes."""
        return clusters_dir() / self.name

    @property
    def nodes(self) -> list[Node]:
        """Its nodes; the first one also carries the control plane. None in profile ``api``."""
        count = self.node_count if self.profile == "full" else 0
        return [Node(self.name, self.index, number) for number in range(1, count + 1)]

    @property
    def bridge(self) -> str:
        """The bridge's name on the machine."""
        return f"fllm{self.index}"

    @property
    def machine_ip(self) -> str:
        """Where pods reach what runs on the machine."""
        return f"10.77.{self.index}.1" if self.profile == "full" else "127.0.0.1"

    @property
    def pod_range(self) -> str:
        """All pods of all nodes."""
        return f"10.88.{8 * self.index}.0/21"

    @property
    def service_range(self) -> str:
        """All cluster IPs."""
        return f"10.96.{8 * self.index}.0/21"

    @property
    def kubernetes_ip(self) -> str:
        """The Service ``kubernetes``: the first address of the range."""
        return f"10.96.{8 * self.index}.1"

    @property
    def dns_ip(self) -> str:
        """The Service ``kube-dns``."""
        return f"10.96.{8 * self.index}.10"

    @property
    def api_ip(self) -> str:
        """Where the API server listens."""
        return self.nodes[0].ip if self.nodes else "127.0.0.1"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.api_ip}:{self.api_port}"

    @property
    def etcd(self) -> str:
        """etcd's client URL, always local to the API server."""
        return f"http://127.0.0.1:{self.etcd_port}"

    def save(self) -> None:
        """Writes the plan into its folder, so that ``down`` and ``status`` know it."""
        (self.folder / "plan.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


def clusters_dir() -> Path:
    """The folder with a folder for each cluster."""
    return state_dir() / "clusters"


def load(name: str) -> Plan | None:
    """The plan of a cluster that was begun, or None."""
    try:
        return Plan(**json.loads((clusters_dir() / checked_name(name) / "plan.json").read_text()))
    except (OSError, TypeError, ValueError):
        return None


def indexes_in_use(but: str) -> set[int]:
    """The indexes of every full cluster but the named one."""
    names = (path.parent.name for path in clusters_dir().glob("*/plan.json"))
    plans = [load(name) for name in names if name != but]
    return {plan.index for plan in plans if plan and plan.profile == "full"}


def choose_index(name: str, taken: set[int]) -> int:
    """0 for the default name, else one that follows from the name; the next free one where it is taken."""
    first = 0 if name == DEFAULT_NAME else 1 + hashlib.sha256(name.encode()).digest()[0] % (INDEXES - 1)
    for offset in range(INDEXES):
        if (index := (first + offset) % INDEXES) not in taken:
            return index
    raise ValueError(f"{INDEXES} clusters are up; take one down first")
