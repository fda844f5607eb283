"""Snapshots for the scripted control plane: keys, grants, and models on the mock upstream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS = ("bench-burst", "bench-clump", "bench-hold", "bench-json", "bench-paced")

# The upstream credential; the mock upstream accepts any.
CREDENTIAL = "upstream-credential"

# Same names as in the load crate, which uses only granted models.
GRANTS = 10


@dataclass(frozen=True)
class Population:
    """Numbers of keys, principals and models (of each kind).

    ``limited``: the subjects with limits and a budget that are never reached: of "principal", "key" and "team".
    ``metadata``: whether requests have metadata, of which one member labels the metrics.

    Key ``k`` belongs to principal ``k % principals``; principal ``p`` may use the models
    ``(p * 10 + i) % models`` for ``i`` below 10.
    """

    keys: int = 1
    principals: int = 1
    models: int = 1
    kinds: tuple[str, ...] = KINDS
    limited: tuple[str, ...] = ()
    metadata: bool = False

    def arguments(self) -> list[str]:
        """The arguments of the load generator."""
        words = [f"--keys={self.keys}", f"--principals={self.principals}", f"--models={self.models}"]
        return [*words, "--metadata"] if self.metadata else words


def key(number: int) -> str:
    """The text of a key."""
    return f"sk-bench-{number:08}"


def model(kind: str, number: int) -> str:
    """The name of a model."""
    return f"{kind}-{number:04}"


def snapshot(population: Population, api_base: str, version: int = 1) -> str:
    """A snapshot in the format of the contract, as JSON."""
    names = [model(kind, number) for kind in population.kinds for number in range(population.models)]
    return _snapshot(population, {name: [api_base] for name in names}, _principals(population), version)


def served(models: Mapping[str, Sequence[str]], version: int = 1, keys: int = 1) -> str:
    """A snapshot with these models and the addresses of their backends, granted to all keys."""
    principal = {"id": 1, "name": "principal-0", "allow_all": False, "allowed_models": sorted(models)}
    return _snapshot(Population(keys=keys), models, [{**principal, "roles": ["inference"]}], version)


def _snapshot(population: Population, models: Mapping[str, Sequence[str]], principals: list[dict], version: int) -> str:
    return json.dumps(
        {
            "format": 1,
            "version": version,
            "open": False,
            "models": {"digest": f"models-{version}", "items": _models(models)},
            "principals": {"digest": f"principals-{version}", "items": principals},
            "key_shards": _shards(population),
            **({"teams": {"digest": "teams", "items": [_team()]}} if "team" in population.limited else {}),
        }
    )


def _allowance(number: int) -> dict:
    """Limits and a budget that are never reached."""
    limits = {"requests_per_min": 10**9, "tokens_per_min": 10**12, "concurrency": 10**6}
    totals = {"tokens_total": 10**15, "cost_total_micros": 10**15}
    return {"limits": limits, "budget": {"id": number, **totals, "window": "monthly", "window_start": 0}}


def _team() -> dict:
    return {"id": 1, "name": "team", **_allowance(1)}


def _models(models: Mapping[str, Sequence[str]]) -> list[dict]:
    number, found = 0, []
    for name in sorted(models):
        backends = []
        for api_base in models[name]:
            number += 1
            backends.append(
                {
                    "id": number,
                    "api_base": api_base,
                    "upstream_model": name,
                    "api_key": CREDENTIAL,
                    "protocol": "openai",
                    "auth_header": "authorization",
                    "auth_scheme": "Bearer",
                }
            )
        found.append({"name": name, "backends": backends})
    return found


def _principals(population: Population) -> list[dict]:
    found = []
    for number in range(population.principals):
        granted = {(number * GRANTS + grant) % population.models for grant in range(GRANTS)}
        models = sorted(model(kind, one) for kind in population.kinds for one in granted)
        found.append(
            {
                "id": number + 1,
                "name": f"principal-{number}",
                "allow_all": False,
                "allowed_models": models,
                "roles": ["inference"],
                **({"team": 1} if "team" in population.limited else {}),
                **(_allowance(2 + 2 * number) if "principal" in population.limited else {}),
            }
        )
    return found


def _shards(population: Population) -> list[dict]:
    shards: dict[str, dict[str, dict]] = {}
    for number in range(population.keys):
        digest = hashlib.sha256(key(number).encode()).hexdigest()
        entry = {"id": number + 1, "principal": number % population.principals + 1, "disabled": False}
        if "key" in population.limited:
            entry |= _allowance(3 + 2 * number)
        shards.setdefault(digest[:2], {})[digest] = entry
    return [
        {"prefix": prefix, "digest": f"keys-{prefix}", "items": dict(sorted(items.items()))}
        for prefix, items in sorted(shards.items())
    ]
