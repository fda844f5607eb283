"""What a gateway shows to clients over TLS, renewed while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from tools.cluster.certs import Keys
from tools.setup import debian


class Certificates:
    """An authority, and a certificate of the loopback address in the files that the gateway follows."""

    def __init__(self, folder: Path) -> None:
        self._keys = Keys(folder, folder.with_suffix(".log"))
        self.renewed = 0
        debian.install_missing({"certificates"})
        self._keys.begin()
        self._keys.authority("ca", "clients")
        self.renew()

    @property
    def authority(self) -> Path:
        """What clients have to trust."""
        return self._keys.path("ca.crt")

    def words(self) -> list[str]:
        """The gateway's flags."""
        return [f"--gateway-tls-{flag}={self._keys.path(f'shown.{ending}')}" for flag, ending in _FILES]

    def renew(self) -> None:
        """Replaces both files, one after the other: for a moment they do not fit together."""
        self._keys.signed("next", "/CN=gateway", ips=["127.0.0.1"])
        for _, ending in _FILES:
            self._keys.path(f"next.{ending}").replace(self._keys.path(f"shown.{ending}"))
        self.renewed += 1

    def shown(self, port: int) -> bool:
        """Whether the last one is what clients see."""
        seen = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
        return ssl.PEM_cert_to_DER_cert(seen) == ssl.PEM_cert_to_DER_cert(self._keys.path("shown.crt").read_text())


_FILES = (("cert", "crt"), ("key", "key"))
