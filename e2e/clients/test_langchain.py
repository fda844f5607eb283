"""LangChain."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from e2e.clients.conftest import CHAT, EMBEDDINGS, Target
from e2e.clients.prompts import PROMPT, WEATHER, WEATHER_MESSAGES, is_city


@pytest.fixture(scope="module")
def chat(target: Target) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=target.base_url, api_key=target.key, model=CHAT, temperature=0, max_tokens=100, max_retries=0
    )


def test_a_stream_equals_the_plain_response(chat: ChatOpenAI) -> None:
    plain = chat.invoke(PROMPT)
    assert plain.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream(PROMPT))
    assert len(pieces) > 5
    assert "".join(str(piece.content) for piece in pieces) == plain.content != ""


def test_bound_tools_are_called(chat: ChatOpenAI) -> None:
    response = chat.bind_tools([WEATHER], tool_choice="required").invoke(WEATHER_MESSAGES)
    assert [call["name"] for call in response.tool_calls] == ["weather"]
    assert is_city(response.tool_calls[0]["args"])


class Ship(BaseModel):
    """The schema of a ship."""

    name: str = Field(max_length=20)
    masts: int = Field(ge=1, le=5)


def test_a_response_follows_its_schema(chat: ChatOpenAI) -> None:
    ship = chat.with_structured_output(Ship, method="json_schema").invoke("Describe a ship.")
    assert isinstance(ship, Ship)


def test_embeddings(target: Target) -> None:
    made = OpenAIEmbeddings(
        base_url=target.base_url, api_key=target.key, model=EMBEDDINGS, check_embedding_ctx_length=False, max_retries=0
    ).embed_documents(["harbour", "ship"])
    assert [len(one) for one in made] == [576, 576]
