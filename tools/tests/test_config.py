"""The configuration of the components, where a mistake would show only much later."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tools.cluster import config, coredns
from tools.cluster.plan import Plan

PKI = Path("/pki")
FULL = Plan("x", "full", 3, 2)
API = Plan("x", "api", 0, api_port=1, etcd_port=2, etcd_peer_port=3)


def flags(words: list[str]) -> dict[str, str]:
    pairs = [word.removeprefix("--").partition("=") for word in words]
    names = [name for name, _, _ in pairs]
    assert len(names) == len(set(names)), "a flag given twice"
    return {name: value for name, _, value in pairs}


def test_the_api_server_writes_an_audit_log_and_enforces_rbac() -> None:
    for made in (FULL, API):
        found = flags(config.apiserver_flags(made, PKI))
        assert found["audit-log-path"] == str(made.folder / "audit.log")
        assert found["authorization-mode"] == "Node,RBAC"
        assert found["etcd-servers"] == made.etcd


def test_profile_api_listens_only_on_the_loopback_address() -> None:
    assert flags(config.apiserver_flags(API, PKI))["bind-address"] == "127.0.0.1"
    etcd = flags(config.etcd_flags(API))
    assert {etcd["listen-client-urls"], etcd["listen-peer-urls"]} == {"http://127.0.0.1:2", "http://127.0.0.1:3"}


def test_the_audit_policy_records_responses_to_lists_of_secrets() -> None:
    first, rest = config.audit_policy()["rules"]
    assert first["level"] == "RequestResponse"
    assert first["resources"] == [{"group": "", "resources": ["secrets"]}]
    assert rest == {"level": "Metadata"}


def test_a_kubelet_uses_its_nodes_cgroup_and_never_deletes_images() -> None:
    first, second = (config.kubelet(FULL, node, PKI) for node in FULL.nodes)
    assert first["cgroupRoot"] != second["cgroupRoot"]
    assert first["imageGCHighThresholdPercent"] == 100
    assert first["clusterDNS"] == [FULL.dns_ip]
    assert first["failCgroupV1"] is False


def test_nodes_have_separate_pod_ranges() -> None:
    ranges = [config.cni(FULL, node, Path("/n"))["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for node in FULL.nodes]
    assert ranges == [node.pod_range for node in FULL.nodes]


def test_the_kubeconfig_is_self_contained() -> None:
    made = config.kubeconfig(FULL, "admin", b"ca", b"cert", b"key")
    user = made["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == b"key"
    assert "/" not in json.dumps({key: value for key, value in user.items() if not key.endswith("-data")})
    assert made["current-context"] == made["contexts"][0]["name"]


def test_containerd_uses_the_side_loaded_pause_image() -> None:
    found = config.containerd(Path("/n"), "overlayfs")
    assert f'sandbox_image = "{config.PAUSE_IMAGE}"' in found
    assert "restrict_oom_score_adj = true" in found


def test_dns_uses_the_address_in_the_kubelet_configuration() -> None:
    items = {item["kind"]: item for item in coredns.manifests(FULL)["items"]}
    assert items["Service"]["spec"]["clusterIP"] == config.kubelet(FULL, FULL.nodes[0], PKI)["clusterDNS"][0]
    corefile = items["ConfigMap"]["data"]["Corefile"]
    assert "forward" not in corefile, "no query leaves the cluster"
    assert corefile.count("{") == corefile.count("}")
