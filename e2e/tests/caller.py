"""A client of the gateway with access to the bytes, and OpenAI's client."""

from __future__ import annotations

import httpx
from openai import OpenAI

from tools import progress

__all__ = ["Caller"]


class Caller:
    """A client with a key and the gateway's address."""

    def __init__(self, url: str, key: str, principal: int) -> None:
        self.url, self.key, self.principal = url, key, principal
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)

    def openai(self) -> OpenAI:
        """OpenAI's client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key, max_retries=0, timeout=60)

    def body(self, model: str = "smollm2", text: str = "Say hello.", **more) -> dict:
        """A chat request with temperature 0, so that responses can be compared."""
        return {
            "messages": [{"role": "user", "content": text}],
            "model": model,
            "temperature": 0,
            "max_tokens": 24,
            **more,
        }

    def chat(self, model: str = "smollm2", text: str = "Say hello.", **more) -> httpx.Response:
        """Sends a plain completion."""
        return self.http.post("/v1/chat/completions", json=self.body(model, text, **more))

    def raw(self, content: bytes, **headers: str) -> httpx.Response:
        """Sends a body of the given bytes."""
        return self.http.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json", **headers}
        )

    def stream_bytes(self, **body) -> bytes:
        """Sends a streamed completion; returns the bytes of its body."""
        with self.http.stream("POST", "/v1/chat/completions", json=self.body(stream=True, **body)) as response:
            assert response.status_code == 200, response.read()
            return b"".join(response.iter_raw())

    def wait_until_served(self, model: str) -> None:
        """Waits until every gateway accepts the key. The Service distributes new connections over them."""

        def served() -> bool:
            for _ in range(8):
                models = httpx.get(f"{self.url}/v1/models", headers={"authorization": f"Bearer {self.key}"}, timeout=5)
                if models.status_code != 200 or not any(m["id"] == model for m in models.json()["data"]):
                    return False
            return True

        progress.wait_until(f"the gateways accept the key for {model}", served, seconds=20)
