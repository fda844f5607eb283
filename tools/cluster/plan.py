"""The names and addresses of a cluster: pure functions of its name and index.

Clusters on one machine have different indexes (0 to 31), which determine every address range:

==============  ======================  =================================================
use             range                   reachable from
==============  ======================  =================================================
bridge, nodes   10.77.<index>.0/24      everywhere; the machine is .1, nodes are .2, .3, …
pods            10.88.<8*index>.0/21    nodes, and the machine by a route; a /24 per node
services        10.96.<8*index>.0/21    pods and nodes, and the machine by a route
==============  ======================  =================================================

Profile ``api`` listens on 127.0.0.1 and needs only ports.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.paths import checked_name, state_dir

PROFILES = ("full", "api")
INDEXES = 32
MAX_NODES = 8
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
        """An argument of the node's init process, which identifies it even if the cluster's folder is missing."""
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
            raise ValueError(f"unknown profile {self.profile!r}; profiles are {', '.join(PROFILES)}")
        if not 0 <= self.index < INDEXES or not 1 <= self.node_count <= MAX_NODES:
            raise ValueError(f"the index must be 0 to {INDEXES - 1}, the number of nodes 1 to {MAX_NODES}")

    @property
    def folder(self) -> Path:
        """The folder of all files of the cluster."""
        return clusters_dir() / self.name

    @property
    def nodes(self) -> list[Node]:
        """The nodes, none in profile ``api``. The first one also runs the control plane."""
        count = self.node_count if self.profile == "full" else 0
        return [Node(self.name, self.index, number) for number in range(1, count + 1)]

    @property
    def bridge(self) -> str:
        """The bridge's name on the machine."""
        return f"fllm{self.index}"

    @property
    def machine_ip(self) -> str:
        """The address of this machine for pods."""
        return f"10.77.{self.index}.1" if self.profile == "full" else "127.0.0.1"

    @property
    def pod_range(self) -> str:
        """The address range of all pods."""
        return f"10.88.{8 * self.index}.0/21"

    @property
    def service_range(self) -> str:
        """The range of all cluster IPs."""
        return f"10.96.{8 * self.index}.0/21"

    @property
    def kubernetes_ip(self) -> str:
        """The address of the Service ``kubernetes``: the first one of the range."""
        return f"10.96.{8 * self.index}.1"

    @property
    def dns_ip(self) -> str:
        """The address of the Service ``kube-dns``."""
        return f"10.96.{8 * self.index}.10"

    @property
    def api_ip(self) -> str:
        """The listen address of the API server."""
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
        """Writes the plan into its folder, for ``down`` and ``status``."""
        (self.folder / "plan.json").write_text(json.dumps(asdict(self), indent=2) + "\n")


def clusters_dir() -> Path:
    """The parent of the folders of all clusters."""
    return state_dir() / "clusters"


def load(name: str) -> Plan | None:
    """The saved plan of a cluster, or None."""
    try:
        return Plan(**json.loads((clusters_dir() / checked_name(name) / "plan.json").read_text()))
    except (OSError, TypeError, ValueError):
        return None


def indexes_in_use(but: str) -> set[int]:
    """The indexes of all full clusters except the named one."""
    names = (path.parent.name for path in clusters_dir().glob("*/plan.json"))
    plans = [load(name) for name in names if name != but]
    return {plan.index for plan in plans if plan and plan.profile == "full"}


def choose_index(name: str, taken: set[int]) -> int:
    """0 for the default name, else an index derived from the name; the next free one if it is taken."""
    first = 0 if name == DEFAULT_NAME else 1 + hashlib.sha256(name.encode()).digest()[0] % (INDEXES - 1)
    for offset in range(INDEXES):
        if (index := (first + offset) % INDEXES) not in taken:
            return index
    raise ValueError(f"{INDEXES} clusters are up; stop one first")
