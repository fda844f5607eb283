"""Fixtures: one cluster, database, pair of engines and deployment for all tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.services.recorder import Recorder
from e2e.tests.caller import Caller
from tools import cargo, progress
from tools.cluster import Cluster
from tools.product import Admin, Deployment, Secrets, images, install_operator
from tools.services.engine import Engine
from tools.services.postgres import Postgres

MODEL = "smollm2"
UPSTREAM_KEY = "upstream-canary-77c1d0"
NEXT = "0.1.0-next"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the search for secrets to the end, because it reads the output of all other tests."""
    items.sort(key=lambda item: item.path.name == "test_secrets.py")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the compiled programs."""
    return cargo.build(with_tests=True)


@pytest.fixture(scope="session")
def cluster(programs: Path) -> Iterator[Cluster]:
    """A cluster with the operator and the images, which have this version and a second tag."""
    with Cluster("test") as cluster:
        cluster.load_image(*images(NEXT))
        with progress.step("operator from config/default"):
            install_operator(cluster)
        yield cluster


@pytest.fixture(scope="session")
def postgres(cluster: Cluster) -> Iterator[Postgres]:
    """The database, at an address that pods can reach."""
    with Postgres("e2e", f"{cluster.machine_ip}:0") as postgres:
        yield postgres


@pytest.fixture(scope="session")
def engines(cluster: Cluster) -> Iterator[list[Engine]]:
    """Two model servers."""
    with (
        Engine("e2e-1", f"{cluster.machine_ip}:0", MODEL) as one,
        Engine("e2e-2", f"{cluster.machine_ip}:0", MODEL) as two,
    ):
        yield [one, two]


@pytest.fixture(scope="session")
def deployment(cluster: Cluster, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment from config/samples, Ready."""
    deployment = Deployment(cluster, "e2e", Secrets(postgres.url))
    with progress.step("FastllmProxy from config/samples is Ready"):
        deployment.apply(tmp_path_factory.mktemp("overlay"))
        deployment.wait("Ready=True", seconds=120)
    return deployment


@pytest.fixture(scope="session")
def recorder(cluster: Cluster, engines: list[Engine]) -> Iterator[Recorder]:
    """A recording relay in front of the first engine."""
    with Recorder(cluster.machine_ip, engines[0].url) as recorder:
        yield recorder


@pytest.fixture(scope="session")
def admin(deployment: Deployment, engines: list[Engine], recorder: Recorder) -> Admin:
    """An admin API session. Creates the models of the tests."""
    admin = deployment.admin()
    admin.model(MODEL, *(f"{engine.url}/v1" for engine in engines), key=UPSTREAM_KEY)
    admin.model("recorded", f"{recorder.url}/v1", upstream_model=MODEL, key=UPSTREAM_KEY)
    admin.model("secret-model", f"{engines[0].url}/v1", upstream_model=MODEL)
    admin.model("unreachable", f"http://{deployment.cluster.machine_ip}:9/v1")
    return admin


@pytest.fixture(scope="session")
def caller(deployment: Deployment, admin: Admin) -> Caller:
    """A principal with a key for all models except ``secret-model``."""
    principal = admin.principal("tester", MODEL, "recorded", "unreachable")
    key = admin.key(principal)
    caller = Caller(deployment.url("proxy"), key, principal)
    caller.wait_until_served(MODEL)
    return caller


@pytest.fixture
def tag() -> str:
    """A unique text."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def fresh(admin: Admin, caller: Caller, tag: str) -> Caller:
    """A caller like ``caller`` without usage rows; rows of other tests may still be in transit."""
    principal = admin.principal(f"fresh-{tag}", MODEL, "recorded", "unreachable")
    fresh = Caller(caller.url, admin.key(principal), principal)
    fresh.wait_until_served(MODEL)
    return fresh


@pytest.fixture
def healthy(deployment: Deployment) -> Iterator[Deployment]:
    """The deployment, Ready before and after the test."""
    deployment.wait("Ready=True")
    yield deployment
    deployment.wait("Ready=True")


def still_served(caller: Caller) -> bool:
    """Whether a request succeeds now."""
    try:
        return caller.chat(max_tokens=1).status_code == 200
    except httpx.HTTPError:
        return False
