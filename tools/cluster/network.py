"""The machine's side of a cluster's network: one bridge, one veth a node, routes to pods and services.

The machine's own forwarding stays as it is; nodes get no default route, so nothing leaves the machine.
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
    """The bridge's alias: tells whose it is, also when the folder of the cluster is gone."""
    return f"fastllm {name} {state_dir()}"


def _alias(bridge: str) -> str | None:
    try:
        return (_LINKS / bridge / "ifalias").read_text().strip()
    except OSError:
        return None


def foreign_indexes(name: str) -> set[int]:
    """The indexes whose bridge exists and belongs to another cluster."""
    aliases = {index: _alias(f"fllm{index}") for index in range(INDEXES)}
    return {index for index, alias in aliases.items() if alias is not None and alias != _mark(name)}


def bridges_of(name: str) -> list[str]:
    """The bridges of this cluster that are there."""
    return [f"fllm{index}" for index in range(INDEXES) if _alias(f"fllm{index}") == _mark(name)]


def create_bridge(plan: Plan) -> None:
    """Makes the bridge and gives the machine its address on it."""
    _ip("link", "add", plan.bridge, "type", "bridge")
    _ip("link", "set", plan.bridge, "alias", _mark(plan.name))
    _ip("addr", "add", f"{plan.machine_ip}/24", "dev", plan.bridge)
    _ip("link", "set", plan.bridge, "up")


def connect(plan: Plan, node: Node, init: int) -> None:
    """Links a node's namespace (of the process ``init``) to the bridge, and makes its pods reachable."""
    _ip("link", "add", node.veth, "type", "veth", "peer", "name", "eth0", "netns", str(init))
    _ip("link", "set", node.veth, "master", plan.bridge, "up")
    inside = ["nsenter", "-t", str(init), "-n", "--", "ip"]
    progress.run([*inside, "link", "set", "lo", "up"])
    progress.run([*inside, "addr", "add", f"{node.ip}/24", "dev", "eth0"])
    progress.run([*inside, "link", "set", "eth0", "up"])
    # A route for what kube-proxy rewrites: without one, the node itself could not even try a cluster IP.
    progress.run([*inside, "route", "add", plan.service_range, "via", plan.machine_ip])
    for other in plan.nodes:
        if other != node:
            progress.run([*inside, "route", "add", other.pod_range, "via", other.ip])
    _ip("route", "replace", node.pod_range, "via", node.ip)
    if node == plan.nodes[0]:
        _ip("route", "replace", plan.service_range, "via", node.ip)


def remove(name: str) -> None:
    """Removes the bridges of this cluster and what hangs on them; routes go along."""
    for bridge in bridges_of(name):
        for port in (_LINKS / bridge / "brif").iterdir():
            subprocess.run(["ip", "link", "delete", port.name], capture_output=True, check=False)
        _ip("link", "delete", bridge)
