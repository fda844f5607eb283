"""The peers, that is, the measured proxies: one module each, with a common interface."""

from __future__ import annotations

from collections.abc import Callable

from e2e.bench.peers.fastllm import FastLlm
from e2e.bench.peers.haproxy import HaProxy
from e2e.bench.peers.litellm import LiteLlm
from e2e.bench.peers.nginx import Nginx
from e2e.bench.peers.peer import Peer
from e2e.bench.peers.relay import Relay
from e2e.bench.peers.sglang import SgLang
from e2e.bench.rig import Rig

__all__ = ["ALL", "DEFAULT", "Peer", "chosen", "make"]

_MAKERS: dict[str, Callable[[Rig], Peer]] = {
    "nginx": Nginx,
    "nginx-log": lambda rig: Nginx(rig, access_log=True),
    "haproxy": HaProxy,
    "relay": Relay,
    "fastllm": FastLlm,
    "fastllm-log": lambda rig: FastLlm(rig, "fastllm-log", access_log=True),
    "litellm": LiteLlm,
    "sglang": SgLang,
}

DEFAULT = ("nginx", "nginx-log", "haproxy", "relay", "fastllm", "fastllm-log")
ALL = tuple(_MAKERS)


def chosen(text: str) -> tuple[str, ...]:
    """The peers of ``a,b,c`` or ``all``. Raises ValueError for unknown names."""
    if text == "all":
        return ALL
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in _MAKERS]:
        raise ValueError(f"unknown peer: {', '.join(unknown)}; peers are {', '.join(ALL)}")
    return names


def make(name: str, rig: Rig) -> Peer:
    """Creates a peer without starting it."""
    return _MAKERS[name](rig)
