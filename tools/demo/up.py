"""``make demo``: a local Kubernetes, the operator, one FastllmProxy, a real model, a request with its usage row."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tools import cargo, paths, progress
from tools.demo import parts
from tools.product import Admin, Deployment, Secrets, images, install_operator

PROMPT = "Name three things that one finds in a harbour."


def main() -> int:
    """Returns the exit status."""
    try:
        deployment, engines = start()
        with progress.step("model with two backends, principal with a role, key"):
            admin, key = configure(deployment, [engine.url for engine in engines])
        show(deployment, admin, key)
    except (progress.StepFailed, httpx.HTTPError, ValueError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def start() -> tuple[Deployment, list]:
    """Builds, starts cluster, services, operator and deployment; waits until the resource is Ready."""
    with ThreadPoolExecutor(1) as background:
        cluster = parts.cluster()
        up = background.submit(cluster.up)
        cargo.build()
        up.result()
    cluster.load_image(*images())
    address = cluster.machine_ip
    database = parts.postgres(address).up()
    engines = [engine.up() for engine in parts.engines(address)]
    with progress.step("operator from config/default"):
        install_operator(cluster)
    deployment = Deployment(cluster, parts.NAMESPACE, Secrets(database.url))
    with progress.step("FastllmProxy from config/samples is Ready"):
        deployment.apply(paths.state_dir() / "demo")
        deployment.wait("Ready=True", seconds=120)
    return deployment, engines


def configure(deployment: Deployment, engines: list[str]) -> tuple[Admin, str]:
    """Creates a model, a principal and a key; returns an admin session and the text of the key."""
    admin = deployment.admin()
    admin.model(parts.MODEL, *(f"{url}/v1" for url in engines))
    caller = admin.principal("harbour-guide", parts.MODEL)
    return admin, admin.key(caller, "demo")


def complete(url: str, key: str, *, stream: bool) -> str:
    """Sends one chat completion with OpenAI's client and returns its text; prints a streamed response as it arrives."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    messages = [{"role": "user", "content": PROMPT}]
    response = client.chat.completions.create(model=parts.MODEL, messages=messages, max_tokens=80, stream=stream)
    if not stream:
        return response.choices[0].message.content
    text = ""
    for chunk in response:
        piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def usage_rows(admin: Admin, count: int) -> list[dict]:
    """Waits for ``count`` usage rows and returns them."""

    def rows() -> list[dict] | None:
        found = admin.usage()
        return found if len(found) >= count else None

    return progress.wait_until("the usage rows", rows, seconds=30)


def show(deployment: Deployment, admin: Admin, key: str) -> None:
    """Sends a plain and a streamed request; prints the resource, the response, its usage row and how to continue."""
    url = deployment.url("proxy")
    _until_served(url, key)
    with progress.step("a plain chat completion"):
        complete(url, key, stream=False)
    print(f"\n$ kubectl get fllm\n{deployment.kubectl('get', 'fllm')}")
    print(f"Streamed response of {parts.MODEL} to {PROMPT!r}:\n")
    if not complete(url, key, stream=True):
        raise progress.StepFailed("the streamed response was empty")
    row = usage_rows(admin, 2)[0]
    print(
        "\nUsage row: "
        + ", ".join(
            f"{name} {row[name]}"
            for name in ("model", "prompt_tokens", "completion_tokens", "status", "duration_ms", "ttft_ms")
        )
    )
    cluster = deployment.cluster
    print(f"""
gateway   {url}/v1   (key {key})
control   {deployment.url("control")}   (log in as admin / {deployment.values.password})

curl {url}/v1/chat/completions -H "authorization: Bearer {key}" \\
  -H "content-type: application/json" \\
  -d '{{"model": "{parts.MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
curl {deployment.url("control")}/login -c cookies -H "content-type: application/json" \\
  -d '{{"name": "admin", "password": "{deployment.values.password}"}}'
{cluster.status().kubectl} -n {deployment.namespace} get fllm,pods
make demo-down     stops everything
""")


def _until_served(url: str, key: str) -> None:
    """Waits until the gateway accepts the key. A new key takes 250 ms; the endpoints of the Service may take longer."""

    def served() -> bool:
        try:
            models = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=5)
        except httpx.TransportError:
            return False
        return models.status_code == 200 and any(m["id"] == parts.MODEL for m in models.json()["data"])

    progress.wait_until("the gateway accepts the key", served, seconds=20)


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    if status == 0:
        progress.say(f"the demo is up ({time.monotonic() - began:.0f} s)")
    else:
        print("`make demo-down` stops what was started", file=sys.stderr)
    sys.exit(status)
