"""The machine's side of a cluster's network: one bridge, one veth per node, routes to pods and services.

IP forwarding of the machine stays unchanged. Nodes have no default route: no traffic leaves the machine.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools import progress
from tools.cluster.plan import INDEXES, Node, Plan
from tools.paths import state_dir

_LINKS = Path("/sys/class/net")


def _ip(*words: str | Path) -> None:
    progress.run(["ip", *words])


def _mark(name: str) -> str:
    """The alias of the bridge, which identifies its cluster even if the cluster's folder is missing."""
    return f"fastllm {name} {state_dir()}"


def _alias(bridge: str) -> str | None:
    try:
        return (_LINKS / bridge / "ifalias").read_text().strip()
    except OSError:
        return None


def foreign_indexes(name: str) -> set[int]:
    """The indexes of the bridges of other clusters."""
    aliases = {index: _alias(f"fllm{index}") for index in range(INDEXES)}
    return {index for index, alias in aliases.items() if alias is not None and alias != _mark(name)}


def bridges_of(name: str) -> list[str]:
    """The existing bridges of this cluster."""
    return [f"fllm{index}" for index in range(INDEXES) if _alias(f"fllm{index}") == _mark(name)]


def create_bridge(plan: Plan) -> None:
    """Creates the bridge and assigns the machine's address to it."""
    _ip("link", "add", plan.bridge, "type", "bridge")
    _ip("link", "set", plan.bridge, "alias", _mark(plan.name))
    _ip("addr", "add", f"{plan.machine_ip}/24", "dev", plan.bridge)
    _ip("link", "set", plan.bridge, "up")


def connect(plan: Plan, node: Node, init: int) -> None:
    """Connects a node's namespace (that of the process ``init``) to the bridge and adds routes to its pods."""
    _ip("link", "add", node.veth, "type", "veth", "peer", "name", "eth0", "netns", str(init))
    _ip("link", "set", node.veth, "master", plan.bridge, "up")
    inside = ["nsenter", "-t", str(init), "-n", "--", "ip"]
    progress.run([*inside, "link", "set", "lo", "up"])
    progress.run([*inside, "addr", "add", f"{node.ip}/24", "dev", "eth0"])
    progress.run([*inside, "link", "set", "eth0", "up"])
    # Connections to cluster IPs, which kube-proxy rewrites, need a route to start with.
    progress.run([*inside, "route", "add", plan.service_range, "via", plan.machine_ip])
    for other in plan.nodes:
        if other != node:
            progress.run([*inside, "route", "add", other.pod_range, "via", other.ip])
    _ip("route", "replace", node.pod_range, "via", node.ip)
    if node == plan.nodes[0]:
        _ip("route", "replace", plan.service_range, "via", node.ip)


def remove(name: str) -> None:
    """Removes the bridges of this cluster with their links and routes."""
    for bridge in bridges_of(name):
        for port in (_LINKS / bridge / "brif").iterdir():
            subprocess.run(["ip", "link", "delete", port.name], capture_output=True, check=False)
        _ip("link", "delete", bridge)
