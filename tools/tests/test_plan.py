"""Names and address ranges: deterministic, and disjoint for different indexes."""

from __future__ import annotations

import ipaddress

import pytest

from tools.cluster import plan


def networks(made: plan.Plan) -> list[ipaddress.IPv4Network]:
    ranges = [f"{made.machine_ip}/24", made.pod_range, made.service_range]
    return [ipaddress.ip_network(one, strict=False) for one in ranges]


def test_the_default_cluster_has_the_documented_addresses() -> None:
    made = plan.Plan("fastllm", "full", plan.choose_index("fastllm", set()))
    assert made.machine_ip == "10.77.0.1"
    assert made.server == "https://10.77.0.2:6443"
    assert (made.pod_range, made.service_range, made.dns_ip) == ("10.88.0.0/21", "10.96.0.0/21", "10.96.0.10")


def test_no_two_indexes_share_an_address() -> None:
    everything = [network for index in range(plan.INDEXES) for network in networks(plan.Plan("x", "full", index))]
    everything.sort()
    assert all(not a.overlaps(b) for a, b in zip(everything, everything[1:], strict=False))


def test_nodes_are_in_their_clusters_ranges_and_disjoint() -> None:
    made = plan.Plan("x", "full", 31, plan.MAX_NODES)
    pods = [ipaddress.ip_network(node.pod_range) for node in made.nodes]
    assert all(range_.subnet_of(ipaddress.ip_network(made.pod_range)) for range_ in pods)
    assert len(set(pods)) == len({node.ip for node in made.nodes}) == plan.MAX_NODES
    assert made.machine_ip not in {node.ip for node in made.nodes}


def test_link_names_fit_the_kernel() -> None:
    made = plan.Plan("a" * 32, "full", 31, plan.MAX_NODES)
    assert all(len(name) <= 15 for name in [made.bridge, *(node.veth for node in made.nodes)])


def test_a_name_keeps_its_index_unless_it_is_taken() -> None:
    first = plan.choose_index("mine", set())
    assert first == plan.choose_index("mine", set()) != 0
    assert plan.choose_index("mine", {first}) == (first + 1) % plan.INDEXES
    with pytest.raises(ValueError, match="stop one first"):
        plan.choose_index("mine", set(range(plan.INDEXES)))


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "-a", "a-", "a" * 33, "a b", "../x"])
def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        plan.Plan(name, "full", 0)


def test_a_saved_plan_loads_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("FASTLLM_STATE", str(tmp_path))
    made = plan.Plan("mine", "full", 7, 2)
    assert plan.load("mine") is None
    made.folder.mkdir(parents=True)
    made.save()
    assert plan.load("mine") == made
    assert plan.indexes_in_use("other") == {7}
    assert plan.indexes_in_use("mine") == set()


def test_profile_api_uses_only_the_loopback_address() -> None:
    made = plan.Plan("x", "api", 0, api_port=1234)
    assert made.nodes == []
    assert made.server == "https://127.0.0.1:1234"
