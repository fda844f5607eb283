"""nginx as a plain reverse proxy, with only the settings that streams need."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from e2e.bench.peers.peer import Peer
from e2e.bench.rig import Rig
from tools import progress
from tools.setup import debian

_CONFIG = """\
daemon off;
{user}worker_processes 1;
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 32768; }}
http {{
    access_log {log};
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 256k;
    client_max_body_size 64m;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    upstream mock {{
        server {upstream};
        keepalive 1024;
        keepalive_timeout 600s;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://mock;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


class Nginx(Peer):
    """One worker. ``access_log`` writes a line per request, as by default."""

    def __init__(self, rig: Rig, *, access_log: bool = False) -> None:
        super().__init__(rig)
        self.name = "nginx-log" if access_log else "nginx"
        self._access_log = access_log

    def prepare(self) -> None:
        """Installs the Debian package."""
        debian.install_missing({"bench"})

    def command(self) -> Sequence[str | Path]:
        """The command line, with a separate configuration file."""
        config = self.folder / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                user="user root;\n" if os.geteuid() == 0 else "",
                files=os.sysconf("SC_OPEN_MAX"),
                folder=self.folder,
                log=f"{self.folder}/access.log" if self._access_log else "off",
                upstream=self.rig.upstream,
                port=self.port,
            )
        )
        return [debian.program("nginx") or "nginx", "-e", self.folder / "error.log", "-c", config]

    def version(self) -> str:
        """The version of the program."""
        return progress.run(["dpkg-query", "--show", "--showformat=${Version}", "nginx-light"])
