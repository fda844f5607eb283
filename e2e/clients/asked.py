"""What every client is asked to do. Deterministic, and with a grammar where the answer's form counts."""

from __future__ import annotations

import json

QUESTION = "Name three things that one finds in a harbour."
MESSAGES = [{"role": "user", "content": QUESTION}]

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


# So small a model calls a function once it has seen how that goes.
WEATHER_MESSAGES = [
    *_called(1, "Bonn"),
    *_called(2, "Oslo"),
    {"role": "user", "content": "What is the weather in Kiel?"},
]


def is_city(arguments: str | dict) -> bool:
    """Whether these are the arguments that ``WEATHER_MESSAGES`` ask for."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return found == {"city": "Kiel"}


def is_ship(text: str | dict) -> bool:
    """Whether this is a ``SHIP``."""
    found = json.loads(text) if isinstance(text, str) else text
    return set(found) == {"name", "masts"} and 1 <= found["masts"] <= 5
