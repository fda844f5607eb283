"""A cluster: start, stop, status, kubectl and image import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import progress
from tools.cluster import controlplane, coredns, images, network, node, plan, process
from tools.cluster.certs import Certs
from tools.cluster.node import NodeRun
from tools.paths import checked_name
from tools.setup import ensure, golang

CONTROLLER_MANAGER = "controller-manager"


@dataclass(frozen=True)
class Status:
    """The state of a cluster: its addresses, and its programs by name with whether each one runs."""

    name: str
    profile: str
    server: str
    kubeconfig: Path
    kubectl: Path
    machine_ip: str
    audit_log: Path
    running: dict[str, bool]

    @property
    def up(self) -> bool:
        """Whether it was started and all its programs run."""
        return bool(self.running) and all(self.running.values())


class Cluster:
    """A cluster, identified by its name. ``profile`` is ``full`` (runs pods) or ``api`` (only etcd and API server).

    ``nodes`` is the number of nodes of ``full``; ``extras`` may contain ``controller-manager`` for ``api``;
    ``index`` (0 to 31) selects the address ranges, which are derived from the name by default.
    """

    def __init__(
        self,
        name: str = plan.DEFAULT_NAME,
        profile: str = "full",
        *,
        nodes: int = 1,
        extras: Iterable[str] = (),
        index: int | None = None,
        api_port: int | None = None,
    ) -> None:
        self.name = checked_name(name)
        self.profile = profile
        self._nodes = nodes
        self._extras = frozenset(extras)
        self._index = index
        self._api_port = api_port
        if unknown := self._extras - {CONTROLLER_MANAGER}:
            raise ValueError(f"unknown extra: {', '.join(unknown)}; supported: {CONTROLLER_MANAGER}")

    def __enter__(self) -> Cluster:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def folder(self) -> Path:
        """The folder of its state: kubeconfig, pki, logs, audit.log, etcd's data."""
        return plan.clusters_dir() / self.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig. The ambient KUBECONFIG is never read."""
        return self.folder / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log: JSON lines."""
        return self.folder / "audit.log"

    @property
    def machine_ip(self) -> str:
        """The address of this machine for pods. Raises StepFailed if the cluster is not up."""
        return self._plan().machine_ip

    @property
    def node_ip(self) -> str:
        """The address of node ports and the API server. Raises StepFailed if the cluster is not up."""
        return self._plan().api_ip

    def _plan(self) -> plan.Plan:
        found = plan.load(self.name)
        if found is None:
            raise progress.StepFailed(
                f"cluster {self.name} is not up; run `python3 -m tools.cluster up --name {self.name}`"
            )
        return found

    def up(self) -> Cluster:
        """Starts the cluster, after removing what an earlier run of the same name left.

        Raises StepFailed with the end of the relevant log. The programs that started keep running for
        inspection, until ``down``.
        """
        if self.profile == "full" and os.geteuid() != 0:
            raise progress.StepFailed("profile full needs root (namespaces, a bridge, cgroups); profile api does not")
        ensure(self.profile)
        with progress.step(f"cluster {self.name} ({self.profile})"):
            self._clear()
            made = self._new_plan()
            (made.folder / "logs").mkdir(parents=True, mode=0o755)
            made.save()
            self._write_kubectl()
            certs = Certs(made)
            with progress.step("  certificates"):
                certs.make_all()
                controlplane.write_kubeconfigs(made, certs)
            if made.profile == "api":
                self._up_api(made, certs)
            else:
                self._up_full(made, certs)
        return self

    def _new_plan(self) -> plan.Plan:
        if self.profile == "api":
            api, etcd, peer = controlplane.free_ports(3)
            return plan.Plan(self.name, "api", 0, 1, self._api_port or api, etcd, peer)
        index = self._index
        if index is None:
            index = plan.choose_index(self.name, plan.indexes_in_use(self.name) | network.foreign_indexes(self.name))
        return plan.Plan(self.name, self.profile, index, self._nodes)

    def _up_api(self, made: plan.Plan, certs: Certs) -> None:
        def starter(name: str, command: Sequence[str | Path]) -> process.Daemon:
            daemon = self._daemon(name)
            daemon.start(command, cwd=made.folder)
            return daemon

        with progress.step("  etcd, kube-apiserver"):
            controlplane.start(made, certs, starter)
            controlplane.wait_until_ready(made, certs, self._daemon("etcd"), self._daemon("kube-apiserver"))
        if CONTROLLER_MANAGER in self._extras:
            with progress.step("  kube-controller-manager: the default service account"):
                controller = controlplane.start_controller_manager(made, certs, starter)
                self._wait_for_controllers(controller)

    def _up_full(self, made: plan.Plan, certs: Certs) -> None:
        runs = [NodeRun(made, one) for one in made.nodes]
        first = runs[0]
        with progress.step(f"  bridge {made.bridge}, {len(runs)} node(s)"):
            network.create_bridge(made)
            for run in runs:
                run.begin()
        with progress.step("  containerd, images"):
            controlplane.start(made, certs, first.start)
            for run in runs:
                run.start_containerd()
            for run in runs:
                run.wait_for_containerd()
                for archive in images.archives():
                    run.load_image(archive)
        with progress.step("  etcd, kube-apiserver"):
            controlplane.wait_until_ready(made, certs, first.daemon("etcd"), first.daemon("kube-apiserver"))
        with progress.step("  controllers, scheduler, nodes ready"):
            controller = controlplane.start_controller_manager(made, certs, first.start)
            scheduler = controlplane.start_scheduler(made, first.start)
            kubelets = [run.start_kubelet(certs) for run in runs]
            proxies = [run.start_kube_proxy() for run in runs]
            self.kubectl("apply", "-f", "-", stdin=json.dumps(coredns.manifests(made)))
            self._wait_for_controllers(controller)
            self._wait_for_nodes(made, kubelets)
        with progress.step("  CoreDNS"):
            for daemon in (scheduler, *proxies):
                daemon.alive()
            self.kubectl("rollout", "status", "-n", "kube-system", "deployment/coredns", "--timeout=60s")

    def _wait_for_controllers(self, controller: process.Daemon) -> None:
        def made() -> bool:
            controller.alive()
            return self._kubectl("get", "serviceaccount", "-n", "default", "default").returncode == 0

        progress.wait_until("kube-controller-manager", made, seconds=40, log=controller.log, every=0.2)

    def _wait_for_nodes(self, made: plan.Plan, kubelets: list[process.Daemon]) -> None:
        def ready() -> bool:
            for kubelet in kubelets:
                kubelet.alive()
            output = self._kubectl("get", "nodes", "-o", "json")
            nodes = json.loads(output.stdout)["items"] if output.returncode == 0 else []
            states = [c["status"] for n in nodes for c in n["status"].get("conditions", []) if c["type"] == "Ready"]
            return states == ["True"] * len(made.nodes)

        progress.wait_until("nodes", ready, seconds=60, log=kubelets[0].log, every=0.2)

    def down(self) -> None:
        """Stops the cluster and removes everything that it created. Idempotent."""
        with progress.step(f"cluster {self.name} down"):
            self._clear()

    def _clear(self) -> None:
        if os.geteuid() == 0:
            node.remove_all(self.name)
            network.remove(self.name)
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            self._daemon(name).stop(seconds=5)
        # Without pid files, the processes of an earlier run are found by the paths in their arguments.
        marks = (
            "--data-dir={}/etcd",
            "--audit-log-path={}/audit.log",
            "--kubeconfig={}/kube-controller-manager.kubeconfig",
        )
        for mark in (mark.format(self.folder) for mark in marks):
            for pid in process.with_argument(mark):
                process.end(pid, seconds=5)
        for mount in reversed(_mounts_under(self.folder)):
            progress.run(["umount", "-l", mount])
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def _daemon(self, name: str) -> process.Daemon:
        return process.Daemon(name, self.folder / "pids", self.folder / "logs" / f"{name}.log")

    def _write_kubectl(self) -> None:
        wrapper = self.folder / "kubectl"
        wrapper.write_text(f'#!/bin/sh\nexec "{golang.path("kubectl")}" --kubeconfig "{self.kubeconfig}" "$@"\n')
        wrapper.chmod(0o755)

    def status(self) -> Status:
        """The current state. Raises StepFailed if the cluster is not up."""
        made = self._plan()
        names = sorted(path.stem for path in (self.folder / "pids").glob("*.pid"))
        running = {name: self._daemon(name).pid is not None for name in names}
        return Status(
            self.name,
            made.profile,
            made.server,
            self.kubeconfig,
            self.folder / "kubectl",
            made.machine_ip,
            self.audit_log,
            running,
        )

    def _kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        return subprocess.run(
            [golang.path("kubectl"), "--kubeconfig", self.kubeconfig, *words],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            check=False,
            env=env,
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Runs kubectl as the administrator and returns its output. Raises StepFailed with its error output."""
        done = self._kubectl(*words, stdin=stdin)
        if done.returncode:
            raise progress.StepFailed(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def load_image(self, *archives: Path) -> list[str]:
        """Imports image archives into every node and returns their names. Raises StepFailed in profile ``api``."""
        made = self._plan()
        if not made.nodes:
            raise progress.StepFailed("profile api has no nodes and therefore no images")
        names: list[str] = []
        for archive in archives:
            for one in made.nodes:
                loaded = NodeRun(made, one).load_image(archive)
            names += loaded
        return names


def _mounts_under(folder: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [mount for mount in mounts if mount.startswith(f"{folder}/")]
