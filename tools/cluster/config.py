"""The configuration of every component, as text or as values for JSON. Pure functions: no file access."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tools.cluster.plan import Node, Plan

PAUSE_IMAGE = "localhost/fastllm-tools/pause:1"
COREDNS_IMAGE = "localhost/fastllm-tools/coredns:1"
CLUSTER_DOMAIN = "cluster.local"


def kubeconfig(plan: Plan, user: str, ca: bytes, certificate: bytes, key: bytes) -> dict[str, Any]:
    """A self-contained kubeconfig, which can be copied."""

    def inline(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": plan.name, "cluster": {"server": plan.server, "certificate-authority-data": inline(ca)}}],
        "users": [
            {"name": user, "user": {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}}
        ],
        "contexts": [{"name": plan.name, "context": {"cluster": plan.name, "user": user}}],
        "current-context": plan.name,
    }


def audit_policy() -> dict[str, Any]:
    """Records metadata of all requests, and the responses to lists of Secrets, which show whether they include data."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "RequestResponse",
                "verbs": ["list"],
                "resources": [{"group": "", "resources": ["secrets"]}],
                "omitManagedFields": True,
            },
            {"level": "Metadata"},
        ],
    }


def etcd_flags(plan: Plan) -> list[str]:
    """etcd without fsync: the data is disposable."""
    return [
        "--name=etcd",
        f"--data-dir={plan.folder / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={plan.etcd}",
        f"--advertise-client-urls={plan.etcd}",
        f"--listen-peer-urls=http://127.0.0.1:{plan.etcd_peer_port}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{plan.etcd_peer_port}",
        f"--initial-cluster=etcd=http://127.0.0.1:{plan.etcd_peer_port}",
    ]


def apiserver_flags(plan: Plan, pki: Path) -> list[str]:
    """kube-apiserver, with an audit log and support for aggregated APIs."""
    flags = [
        f"--etcd-servers={plan.etcd}",
        f"--bind-address={plan.api_ip}",
        f"--secure-port={plan.api_port}",
        f"--advertise-address={plan.api_ip}",
        f"--service-cluster-ip-range={plan.service_range}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--audit-policy-file={plan.folder}/audit-policy.json",
        f"--audit-log-path={plan.folder}/audit.log",
        "--profiling=false",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        "--enable-aggregator-routing=true",
    ]
    if plan.nodes:
        flags += [
            f"--kubelet-certificate-authority={pki}/ca.crt",
            f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
            f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
        ]
    else:
        # The endpoint of a Service cannot be a loopback address.
        flags += ["--endpoint-reconciler-type=none"]
    return flags


def controller_manager_flags(plan: Plan, pki: Path) -> list[str]:
    """kube-controller-manager without a listener, so that several can run on one machine."""
    return [
        f"--kubeconfig={plan.folder}/kube-controller-manager.kubeconfig",
        "--use-service-account-credentials=true",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--allocate-node-cidrs=false",
        f"--service-cluster-ip-range={plan.service_range}",
        "--leader-elect=false",
        "--secure-port=0",
        # At the default rate, creating the clients of all controllers takes 5 s.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=5s",
        "--horizontal-pod-autoscaler-downscale-stabilization=10s",
        "--node-monitor-grace-period=20s",
    ]


def scheduler_flags(plan: Plan) -> list[str]:
    """kube-scheduler."""
    return [f"--kubeconfig={plan.folder}/kube-scheduler.kubeconfig", "--leader-elect=false", "--secure-port=0"]


def kubelet(plan: Plan, node: Node, pki: Path) -> dict[str, Any]:
    """KubeletConfiguration. Images are side-loaded and must not be garbage-collected."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.ip,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [plan.dns_ip],
        "resolvConf": "",
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "maxPods": 60,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "1%",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
        "registerNode": True,
        "shutdownGracePeriod": "0s",
    }


def kube_proxy(plan: Plan, node: Node) -> dict[str, Any]:
    """KubeProxyConfiguration; the conntrack limits of the machine's kernel stay unchanged."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": plan.pod_range,
        "hostnameOverride": node.name,
        "bindAddress": node.ip,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "clientConnection": {"kubeconfig": f"{plan.folder}/kube-proxy.kubeconfig"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "200ms", "syncPeriod": "10s"},
    }


def containerd(node_folder: Path, snapshotter: str) -> str:
    """containerd's configuration: CRI, without features that need CAP_SYS_RESOURCE or a kernel module."""
    unused = json.dumps([f"io.containerd.snapshotter.v1.{name}" for name in ("aufs", "btrfs", "devmapper", "zfs")])
    return f"""version = 2
root = "{node_folder}/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = {unused}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  enable_unprivileged_ports = false
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node_folder}/cni"
"""


def cni(plan: Plan, node: Node, node_folder: Path) -> dict[str, Any]:
    """The pod network of a node: a bridge with its own address range."""
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node_folder / "cni-leases"),
                    "ranges": [[{"subnet": node.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
