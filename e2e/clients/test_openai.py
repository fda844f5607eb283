"""The official Python client."""

from __future__ import annotations

import openai
import pytest

from e2e.clients.conftest import CHAT, EMBEDDINGS, NOT_GRANTED, Target
from e2e.clients.prompts import MESSAGES, SHIP, WEATHER, WEATHER_MESSAGES, is_city, is_ship


@pytest.fixture(scope="module")
def client(target: Target) -> openai.OpenAI:
    return openai.OpenAI(base_url=target.base_url, api_key=target.key, max_retries=0, timeout=60)


def test_a_stream_equals_the_plain_response(client: openai.OpenAI) -> None:
    request = {"model": CHAT, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    plain = client.chat.completions.create(**request)
    assert plain.usage.completion_tokens > 0
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == plain.choices[0].message.content != ""
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


def test_tools_plain_and_streamed(client: openai.OpenAI) -> None:
    request = {
        "model": CHAT,
        "messages": WEATHER_MESSAGES,
        "tools": [WEATHER],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 100,
    }
    called = client.chat.completions.create(**request).choices[0]
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls[0].function.name == "weather"
    assert is_city(called.message.tool_calls[0].function.arguments)
    arguments = ""
    for chunk in client.chat.completions.create(**request, stream=True):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            arguments += call.function.arguments or ""
    assert is_city(arguments)


def test_a_response_follows_its_schema(client: openai.OpenAI) -> None:
    response = client.chat.completions.create(
        model=CHAT,
        messages=[{"role": "user", "content": "Describe a ship."}],
        response_format={"type": "json_schema", "json_schema": {"name": "ship", "schema": SHIP, "strict": True}},
        temperature=0,
        max_tokens=100,
    )
    assert is_ship(response.choices[0].message.content)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == sorted([CHAT, EMBEDDINGS])


def test_one_model(client: openai.OpenAI) -> None:
    assert client.models.retrieve(CHAT).id == CHAT


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=EMBEDDINGS, input=["harbour", "ship"])
    assert [len(one.embedding) for one in found.data] == [576, 576]
    assert found.usage.prompt_tokens > 0


@pytest.mark.parametrize(
    ("key", "model", "error", "code"),
    [
        ("sk-wrong", CHAT, openai.AuthenticationError, "invalid_api_key"),
        (None, "nobody-serves-this", openai.NotFoundError, "model_not_found"),
        (None, NOT_GRANTED, openai.PermissionDeniedError, "model_access_denied"),
    ],
)
def test_errors_are_typed(
    client: openai.OpenAI, key: str | None, model: str, error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as caught:
        client.with_options(api_key=key or client.api_key).chat.completions.create(model=model, messages=MESSAGES)
    assert caught.value.code == code


def test_a_stream_may_be_abandoned(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model=CHAT, messages=MESSAGES, max_tokens=500, stream=True) as response:
        next(iter(response))
    assert client.chat.completions.create(model=CHAT, messages=MESSAGES, max_tokens=1).choices
