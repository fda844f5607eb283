"""Networking, images, logs and complete removal of a cluster. Needs root; ``-m cluster``."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster import Cluster, network, process
from tools.cluster.images import SHELL_IMAGE
from tools.cluster.plan import Node
from tools.images import build
from tools.progress import StepFailed, wait_until

pytestmark = pytest.mark.cluster

NAME = "smoke"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(NAME) as up:
        [bridge] = network.bridges_of(NAME)
        yield up
    node = Node(NAME, 0, 1)
    assert not process.with_argument(node.mark)
    assert not network.bridges_of(NAME)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{node.cgroup}"))
    assert not up.folder.exists()
    assert str(up.folder) not in Path("/proc/self/mountinfo").read_text()
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    assert f"dev {bridge}" not in routes


def deployment(name: str, image: str, replicas: int, command: list[str]) -> str:
    labels = {"app": name}
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> str:
    serve = "mkdir -p /tmp/www && hostname > /tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"
    cluster.kubectl("apply", "-f", "-", stdin=deployment("web", SHELL_IMAGE, 2, ["/bin/busybox", "sh", "-c", serve]))
    cluster.kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080", "--type=NodePort")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    return "web"


def in_pod(cluster: Cluster, *command: str) -> str:
    return cluster.kubectl("exec", "deployment/web", "--", "busybox", *command)


def test_a_pod_reaches_both_replicas_by_service_name(cluster: Cluster, web: str) -> None:
    pods = cluster.kubectl("get", "pods", "-l", "app=web", "-o", "name").split()
    assert len(pods) == 2
    seen: set[str] = set()

    def both() -> bool:
        seen.add(in_pod(cluster, "wget", "-q", "-O-", f"http://{web}.default.svc.cluster.local/").strip())
        return len(seen) == 2

    wait_until("both pods behind the service", both, seconds=20)
    assert {f"pod/{name}" for name in seen} == set(pods)


def test_short_names_resolve_and_external_names_do_not(cluster: Cluster, web: str) -> None:
    assert in_pod(cluster, "wget", "-q", "-O-", f"http://{web}/").strip()
    with pytest.raises(StepFailed):
        in_pod(cluster, "nslookup", "no.such.example")


def test_the_machine_reaches_node_port_cluster_ip_and_pod(cluster: Cluster, web: str) -> None:
    service = json.loads(cluster.kubectl("get", "service", web, "-o", "json"))
    pod = cluster.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].status.podIP}")
    for address in (
        f"{cluster.node_ip}:{service['spec']['ports'][0]['nodePort']}",
        service["spec"]["clusterIP"],
        f"{pod}:8080",
    ):
        with urllib.request.urlopen(f"http://{address}/", timeout=5) as response:
            assert response.read().startswith(b"web-")


def test_a_pod_reaches_a_program_on_the_machine(cluster: Cluster, web: str) -> None:
    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the machine")

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer((cluster.machine_ip, 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert (
            in_pod(cluster, "wget", "-q", "-O-", f"http://{cluster.machine_ip}:{server.server_port}/")
            == "hello from the machine"
        )
        server.shutdown()


def test_logs_and_port_forward_work(cluster: Cluster, web: str) -> None:
    cluster.kubectl("logs", "deployment/web")
    command = [str(cluster.status().kubectl), "port-forward", "deployment/web", ":8080"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout
            address = forward.stdout.readline().split()[2]
            with urllib.request.urlopen(f"http://{address}/", timeout=10) as response:
                assert response.read().startswith(b"web-")
        finally:
            forward.terminate()


def test_a_missing_image_causes_a_pull_error(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=deployment("broken", "localhost/no/such:1", 1, ["/x"]))

    def reason() -> bool:
        output = cluster.kubectl(
            "get",
            "pods",
            "-l",
            "app=broken",
            "-o",
            "jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}",
        )
        return output in ("ErrImagePull", "ImagePullBackOff")

    wait_until("ErrImagePull", reason, seconds=30, every=0.2)
    cluster.kubectl("delete", "deployment", "broken", "--wait=false")


def test_an_image_built_from_a_dockerfile_runs_under_each_of_its_tags(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = tmp_path / "release"
    binaries.mkdir()
    shutil.copy("/usr/bin/sleep", binaries / "fastllm-operator")
    monkeypatch.setattr(sys.modules[build.__module__], "state_dir", lambda: tmp_path)
    image = build(["one", "two"], only=["fastllm-operator"], binaries=binaries)["fastllm-operator"]
    assert set(image.names) <= set(cluster.load_image(image.archive))
    for name in image.names:
        pod = f"image-{name.rpartition(':')[2]}"
        command = ["run", pod, f"--image={name}", "--image-pull-policy=IfNotPresent", "--", "600"]
        cluster.kubectl(*command)
        cluster.kubectl("wait", f"pod/{pod}", "--for=condition=Ready", "--timeout=30s")
        cluster.kubectl("delete", "pod", pod, "--wait=false", "--grace-period=0", "--force")


def test_the_next_run_removes_a_killed_one(cluster: Cluster) -> None:
    other = Cluster("smoke-killed", "api")
    other.up()
    etcd = other._daemon("etcd").pid
    (other.folder / "pids" / "etcd.pid").unlink()
    other.up()
    try:
        assert etcd is not None and process.started_at(etcd) is None
        assert other.status().up
    finally:
        other.down()
    assert not other.folder.exists()
