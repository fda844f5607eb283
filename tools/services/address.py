"""Parses listen addresses of the form ``ADDR:PORT``."""

from __future__ import annotations

import ipaddress
import socket


def parse(listen: str) -> tuple[str, int]:
    """Splits ``ADDR:PORT``; replaces port 0 by a free port. Raises ValueError if the format is wrong."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{listen!r} is not ADDR:PORT")
    ipaddress.ip_address(host)
    return host, int(port) or _free_port(host)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
