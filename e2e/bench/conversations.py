"""Multi-turn conversations. Each request contains all previous turns, which a KV cache can reuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

_HARBOUR = """
    anchor barge beacon berth bollard buoy cargo chain compass crane current deck dock ferry fog gale harbour hull
    island keel lantern lighthouse mast moor oar pier pilot quay reef rope rudder sail salt shore sound squall tide
    trawler tug wave wharf wind yard yacht
"""
_WORDS = _HARBOUR.split()


@dataclass(frozen=True)
class Size:
    """Numbers of conversations, turns per conversation and concurrent requests; maximum tokens of a response."""

    conversations: int = 10
    turns: int = 10
    at_once: int = 2
    response_tokens: int = 16


@dataclass
class Cached:
    """The tokens of prompts, and the number of them in the cache of an engine."""

    prompt: int = 0
    cached: int = 0

    @property
    def share(self) -> float:
        """The share of cached tokens."""
        return self.cached / self.prompt


class Conversation:
    """A conversation with a distinct topic."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._messages = [{"role": "system", "content": self._words(80)}]

    def turn(self, client: httpx.Client, model: str, response_tokens: int) -> tuple[int, int]:
        """Sends the next message and keeps the response; returns the tokens of the prompt and the cached ones."""
        self._messages.append({"role": "user", "content": self._words(25)})
        body = {"messages": self._messages, "model": model, "temperature": 0, "max_tokens": response_tokens}
        response = client.post("/chat/completions", json=body)
        response.raise_for_status()
        completion = response.json()
        self._messages.append({"role": "assistant", "content": completion["choices"][0]["message"]["content"]})
        usage = completion["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))


def run(base_url: str, key: str, model: str, size: Size, *, seed: int = 0) -> Cached:
    """Runs all conversations, in another order for each turn."""
    order = random.Random(seed)
    conversations = [Conversation(number) for number in range(size.conversations)]
    found = Cached()
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=base_url, headers=headers, timeout=120) as client,
        ThreadPoolExecutor(size.at_once) as threads,
    ):

        def turn(conversation: Conversation) -> tuple[int, int]:
            return conversation.turn(client, model, size.response_tokens)

        for _ in range(size.turns):
            shuffled: Sequence[Conversation] = order.sample(conversations, len(conversations))
            for prompt, cached in threads.map(turn, shuffled):
                found.prompt += prompt
                found.cached += cached
    return found
