"""``ADDR:PORT`` as the command line and the tests write it; port 0 means a free one."""

from __future__ import annotations

import ipaddress
import socket


def parse(listen: str) -> tuple[str, int]:
    """Splits ``ADDR:PORT`` and fills in a free port for 0. Raises ValueError when it is neither."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{listen!r} is not ADDR:PORT")
    ipaddress.ip_address(host)
    return host, int(port) or _free_port(host)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
