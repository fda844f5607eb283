"""Prompts shared by the tests of all clients. Deterministic; a grammar enforces the format where it matters."""

from __future__ import annotations

import json

PROMPT = "Name three things that one finds in a harbour."
MESSAGES = [{"role": "user", "content": PROMPT}]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

SHIP = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "masts": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["name", "masts"],
    "additionalProperties": False,
}


def _called(number: int, city: str) -> list[dict]:
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"call-{number}", "content": "fog"},
    ]


# Such a small model calls a function only after examples.
WEATHER_MESSAGES = [
    *_called(1, "Bonn"),
    *_called(2, "Oslo"),
    {"role": "user", "content": "What is the weather in Kiel?"},
]


def is_city(arguments: str | dict) -> bool:
    """Whether these are the expected arguments of the call for ``WEATHER_MESSAGES``."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return found == {"city": "Kiel"}


def is_ship(text: str | dict) -> bool:
    """Whether the text follows the schema ``SHIP``."""
    found = json.loads(text) if isinstance(text, str) else text
    return set(found) == {"name", "masts"} and 1 <= found["masts"] <= 5
