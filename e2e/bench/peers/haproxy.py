"""haproxy in HTTP mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from tools import progress
from tools.setup import debian

_CONFIG = """\
global
    nbthread 1
    maxconn 9800
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    timeout http-keep-alive 600s
    http-reuse always
    option http-no-delay
frontend front
    bind 127.0.0.1:{port} backlog 4096
    default_backend mock
backend mock
    server one {upstream} pool-max-conn -1
"""


class HaProxy(Peer):
    """One thread, no log, and no delay of events (by default, haproxy waits up to 200 ms for more data)."""

    name = "haproxy"

    def prepare(self) -> None:
        """Installs the Debian package."""
        debian.install_missing({"bench"})

    def command(self) -> Sequence[str | Path]:
        """The command line, with a separate configuration file."""
        config = self.folder / "haproxy.cfg"
        config.write_text(_CONFIG.format(port=self.port, upstream=self.rig.upstream))
        return [debian.program("haproxy") or "haproxy", "-db", "-q", "-f", config]

    def version(self) -> str:
        """The version of the program."""
        return progress.run(["dpkg-query", "--show", "--showformat=${Version}", "haproxy"])
