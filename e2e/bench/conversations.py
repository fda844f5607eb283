"""Conversations that go on in turns, each turn with everything that was said before: what a KV cache is for."""

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
    """How many conversations, how many turns each, how many requests at a time, tokens of an answer at most."""

    conversations: int = 10
    turns: int = 10
    at_once: int = 2
    answer: int = 16


@dataclass
class Cached:
    """Tokens of prompts, and how many of them an engine had in its cache."""

    prompt: int = 0
    cached: int = 0

    @property
    def share(self) -> float:
        """Cached tokens of all."""
        return self.cached / self.prompt


class Conversation:
    """One conversation, about something of its own."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._messages = [{"role": "system", "content": self._words(80)}]

    def turn(self, client: httpx.Client, model: str, answer: int) -> tuple[int, int]:
        """Says something and keeps the answer; tokens of the prompt, and those that were cached."""
        self._messages.append({"role": "user", "content": self._words(25)})
        body = {"messages": self._messages, "model": model, "temperature": 0, "max_tokens": answer}
        told = client.post("/chat/completions", json=body)
        told.raise_for_status()
        said = told.json()
        self._messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})
        usage = said["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))


def hold(base_url: str, key: str, model: str, size: Size, *, seed: int = 0) -> Cached:
    """Holds all conversations, whose turns come in another order each time."""
    order = random.Random(seed)
    conversations = [Conversation(number) for number in range(size.conversations)]
    found = Cached()
    headers = {"authorization": f"Bearer {key}"}
    with (
        httpx.Client(base_url=base_url, headers=headers, timeout=120) as client,
        ThreadPoolExecutor(size.at_once) as threads,
    ):

        def turn(conversation: Conversation) -> tuple[int, int]:
            return conversation.turn(client, model, size.answer)

        for _ in range(size.turns):
            shuffled: Sequence[Conversation] = order.sample(conversations, len(conversations))
            for prompt, cached in threads.map(turn, shuffled):
                found.prompt += prompt
                found.cached += cached
    return found
