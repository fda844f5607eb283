"""LlamaIndex."""

from __future__ import annotations

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from e2e.clients.conftest import CHAT, EMBEDDINGS, Target
from e2e.clients.prompts import PROMPT


@pytest.fixture(scope="module")
def model(target: Target) -> OpenAILike:
    return OpenAILike(
        api_base=target.base_url,
        api_key=target.key,
        model=CHAT,
        is_chat_model=True,
        temperature=0,
        max_tokens=24,
        max_retries=0,
    )


def test_a_stream_equals_the_plain_response(model: OpenAILike) -> None:
    plain = model.complete(PROMPT).text
    pieces = [piece.delta or "" for piece in model.stream_chat([ChatMessage(role="user", content=PROMPT)])]
    assert len(pieces) > 5
    assert "".join(pieces) == plain != ""


def test_embeddings(target: Target) -> None:
    made = OpenAILikeEmbedding(
        api_base=target.base_url, api_key=target.key, model_name=EMBEDDINGS, max_retries=0
    ).get_text_embedding_batch(["harbour", "ship"])
    assert [len(one) for one in made] == [576, 576]
