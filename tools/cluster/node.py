"""A node: a set of namespaces with containerd, kubelet, kube-proxy and, in the first node, the control plane."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools import progress
from tools.cluster import cgroups, config, images, network, process
from tools.cluster.certs import Certs
from tools.cluster.plan import MAX_NODES, Node, Plan
from tools.setup import debian, golang

_TOOLS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs inside the new namespaces, as root: mounts the node's own /run, /var/lib and /var/log and a sysfs that shows
# the node's network, with the machine's cgroups below it. Mounts are shared because kubelet requires it.
_PREPARE = """set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -R -l /run/cgroup
rmdir /run/cgroup
mount --bind "$1/var-lib" /var/lib
mount --bind "$1/var-log" /var/log
mount --make-rshared /
hostname "$2"
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""


class NodeRun:
    """A running node: ``begin`` creates it, the other methods start its programs."""

    def __init__(self, plan: Plan, node: Node) -> None:
        self.plan = plan
        self.node = node
        self.folder = plan.folder / node.name
        self.logs = plan.folder / "logs"
        self._init = self.daemon("init")

    def daemon(self, name: str) -> process.Daemon:
        """The handle of a program of the node."""
        return process.Daemon(
            f"{self.node.name}-{name}", self.plan.folder / "pids", self.logs / f"{self.node.name}-{name}.log"
        )

    def begin(self) -> None:
        """Creates the namespaces, mounts, the cgroup and the link to the bridge."""
        for name in ("var-lib/kubelet", "var-lib/cni", "var-log/pods", "var-log/containers", "containerd", "cni"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        cgroups.create(self.node.cgroup)
        self._init.start(
            [
                "unshare",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--net",
                "--mount",
                "--pid",
                "--uts",
                images.pause_program(),
                self.node.mark,
            ]
        )
        init = progress.wait_until(
            f"{self.node.name}'s namespaces", self.init_pid, seconds=10, log=self._init.log, every=0.01
        )
        modprobe = debian.program("modprobe")
        if modprobe and not Path("/proc/sys/net/bridge").exists():
            progress.run([modprobe, "br_netfilter"], log=self._init.log)
        progress.run(
            self._inside(init) + ["sh", "-c", _PREPARE, "prepare", str(self.folder), self.node.name], log=self._init.log
        )
        network.connect(self.plan, self.node, init)

    def init_pid(self) -> int | None:
        """The pid, in the machine's namespace, of the node's init process, or None until it has started."""
        self._init.alive()
        return next(
            (pid for pid in process.with_argument(self.node.mark) if _program(pid) == images.pause_program().name), None
        )

    def _inside(self, init: int | None = None) -> list[str]:
        pid = init or self.init_pid()
        if pid is None:
            raise progress.StepFailed(f"{self.node.name} is not running")
        return ["nsenter", "-t", str(pid), "--net", "--mount", "--pid", "--uts", "--"]

    def start(self, name: str, command: Sequence[str | Path]) -> process.Daemon:
        """Starts a program inside the node, logging to ``logs/<node>-<name>.log``."""
        daemon = self.daemon(name)
        daemon.start([*self._inside(), *command], env={"PATH": _TOOLS_PATH}, cwd=self.folder)
        return daemon

    def start_containerd(self) -> process.Daemon:
        """Starts containerd; ``load_image`` imports images."""
        (self.folder / "containerd.toml").write_text(config.containerd(self.folder, _snapshotter(self.folder)))
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(config.cni(self.plan, self.node, self.folder)))
        return self.start(
            "containerd", [debian.program("containerd") or "containerd", "--config", self.folder / "containerd.toml"]
        )

    def wait_for_containerd(self) -> None:
        """Waits until containerd responds."""
        daemon = self.daemon("containerd")

        def responds() -> bool:
            daemon.alive()
            return self._ctr("version").returncode == 0

        progress.wait_until(f"{self.node.name}: containerd", responds, seconds=20, log=daemon.log)

    def _ctr(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        command = [
            *self._inside(),
            "ctr",
            "--address",
            "/run/containerd/containerd.sock",
            "--namespace",
            "k8s.io",
            *words,
        ]
        return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)

    def load_image(self, archive: Path) -> list[str]:
        """Imports an OCI or Docker archive and returns the names of the images in it. Raises StepFailed."""
        with archive.open("rb") as data:
            done = self._ctr("images", "import", "--snapshotter", _snapshotter(self.folder), "-", stdin=data.fileno())
        if done.returncode:
            raise progress.StepFailed(f"{self.node.name}: ctr images import {archive}:\n{done.stdout}{done.stderr}")
        return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("unpacking ")]

    def start_kubelet(self, certs: Certs) -> process.Daemon:
        """Starts kubelet, which registers the node."""
        path = self.folder / "kubelet.json"
        path.write_text(json.dumps(config.kubelet(self.plan, self.node, certs.folder)))
        return self.start(
            "kubelet",
            [
                golang.path("kubelet"),
                f"--config={path}",
                f"--kubeconfig={self.plan.folder}/{self.node.name}.kubeconfig",
                f"--hostname-override={self.node.name}",
                f"--node-ip={self.node.ip}",
            ],
        )

    def start_kube_proxy(self) -> process.Daemon:
        """Starts kube-proxy in iptables mode."""
        path = self.folder / "kube-proxy.json"
        path.write_text(json.dumps(config.kube_proxy(self.plan, self.node)))
        return self.start("kube-proxy", [golang.path("kube-proxy"), f"--config={path}"])


def remove_all(cluster: str) -> None:
    """Stops every node of a cluster and removes its cgroups. Finds them without the folder of the cluster."""
    for number in range(1, MAX_NODES + 1):
        node = Node(cluster, 0, number)
        for pid in process.with_argument(node.mark):
            process.end(pid, how=signal.SIGKILL)
        if cgroups.left(node.cgroup):
            cgroups.remove(node.cgroup)


def _program(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def _snapshotter(folder: Path) -> str:
    """overlayfs, or plain copies if the state itself is on an overlay, as in a container."""
    kind = progress.run(["stat", "-f", "-c", "%T", folder]).strip()
    return "native" if kind == "overlayfs" else "overlayfs"
