"""``make demo``: a local Kubernetes, the operator, one FastllmProxy, a real model, a recorded request."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tools import paths, progress
from tools.demo import parts
from tools.product import Admin, Deployment, Secrets, binaries, images, install_operator

QUESTION = "Name three things that one finds in a harbour."


def main() -> int:
    """Returns the exit status."""
    try:
        deployment, engines = start()
        with progress.step("model with two backends, principal with a role, key"):
            admin, key = configure(deployment, [engine.url for engine in engines])
        tell(deployment, admin, key)
    except (progress.StepFailed, httpx.HTTPError, ValueError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def start() -> tuple[Deployment, list]:
    """Builds, starts cluster, services, operator and deployment; waits until the resource is Ready."""
    with ThreadPoolExecutor(1) as background:
        cluster = parts.cluster()
        up = background.submit(cluster.up)
        binaries()
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
    """What an administrator does first; a session and the text of a key."""
    admin = deployment.admin()
    admin.model(parts.MODEL, *(f"{url}/v1" for url in engines))
    caller = admin.principal("harbour-guide", parts.MODEL)
    return admin, admin.key(caller, "demo")


def ask(url: str, key: str, *, stream: bool) -> str:
    """One chat completion as any OpenAI client sends it; prints a streamed answer while it comes."""
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    answer = client.chat.completions.create(model=parts.MODEL, messages=messages, max_tokens=80, stream=stream)
    if not stream:
        return answer.choices[0].message.content
    text = ""
    for chunk in answer:
        piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def recorded(admin: Admin, count: int) -> list[dict]:
    """The usage rows, once ``count`` of them have arrived."""

    def rows() -> list[dict] | None:
        found = admin.usage()
        return found if len(found) >= count else None

    return progress.wait_until("the usage rows", rows, seconds=30)


def tell(deployment: Deployment, admin: Admin, key: str) -> None:
    """Asks plain and streamed, and prints what a newcomer wants to see."""
    url = deployment.url("proxy")
    _until_served(url, key)
    with progress.step("a plain chat completion"):
        ask(url, key, stream=False)
    print(f"\n$ kubectl get fllm\n{deployment.kubectl('get', 'fllm')}")
    print(f"{parts.MODEL}, asked {QUESTION!r}, streams:\n")
    if not ask(url, key, stream=True):
        raise progress.StepFailed("the streamed answer was empty")
    row = recorded(admin, 2)[0]
    print(
        "\nIts usage row: "
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
make demo-down     stops all of it
""")


def _until_served(url: str, key: str) -> None:
    """The new key is at the gateways within a quarter of a second; the Service's endpoints may take longer."""

    def served() -> bool:
        try:
            models = httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=5)
        except httpx.TransportError:
            return False
        return models.status_code == 200 and any(m["id"] == parts.MODEL for m in models.json()["data"])

    progress.wait_until("the gateway knows the key", served, seconds=20)


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    if status == 0:
        progress.say(f"the demo is up ({time.monotonic() - began:.0f} s)")
    else:
        print("`make demo-down` clears what was started", file=sys.stderr)
    sys.exit(status)
