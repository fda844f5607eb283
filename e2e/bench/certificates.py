"""Server certificates of a gateway, replaced while it runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from tools.cluster.certs import Keys
from tools.setup import debian


class Certificates:
    """A certificate authority, and the files of a certificate for the loopback address, which the gateway reloads."""

    def __init__(self, folder: Path) -> None:
        self._keys = Keys(folder, folder.with_suffix(".log"))
        self.renewed = 0
        debian.install_missing({"certificates"})
        self._keys.begin()
        self._keys.authority("ca", "clients")
        self.renew()

    @property
    def authority(self) -> Path:
        """The certificate authority for clients."""
        return self._keys.path("ca.crt")

    def words(self) -> list[str]:
        """The flags of the gateway."""
        return [f"--gateway-tls-{flag}={self._keys.path(f'shown.{ending}')}" for flag, ending in _FILES]

    def renew(self) -> None:
        """Replaces both files in sequence; between the two writes, key and certificate do not match."""
        self._keys.signed("next", "/CN=gateway", ips=["127.0.0.1"])
        for _, ending in _FILES:
            self._keys.path(f"next.{ending}").replace(self._keys.path(f"shown.{ending}"))
        self.renewed += 1

    def shown(self, port: int) -> bool:
        """Whether clients receive the current certificate."""
        seen = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
        return ssl.PEM_cert_to_DER_cert(seen) == ssl.PEM_cert_to_DER_cert(self._keys.path("shown.crt").read_text())


_FILES = (("cert", "crt"), ("key", "key"))
