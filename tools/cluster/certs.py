"""Certificates made by openssl. P-256 keys take milliseconds, RSA keys seconds."""

from __future__ import annotations

from pathlib import Path

from tools import progress
from tools.cluster.plan import Node, Plan

_DAYS = "365"


class Keys:
    """Keys and their certificates in one folder."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder, self._log = folder, log

    def path(self, name: str) -> Path:
        """The path of ``ca.crt``, ``admin.key`` and so on."""
        return self.folder / name

    def begin(self) -> None:
        """Creates the folder with the configuration of openssl."""
        self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        # The system's openssl.cnf would add extensions.
        self.path("openssl.cnf").write_text("[req]\ndistinguished_name = none\n[none]\n")

    def authority(self, name: str, subject: str) -> None:
        """Creates a certificate authority."""
        self._openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            _DAYS,
            "-subj",
            f"/CN={subject}",
            "-config",
            self.path("openssl.cnf"),
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
            "-addext",
            "subjectKeyIdentifier=hash",
            "-keyout",
            self.path(f"{name}.key"),
            "-out",
            self.path(f"{name}.crt"),
        )

    def signed(
        self,
        name: str,
        subject: str,
        *,
        authority: str = "ca",
        dns: list[str] | None = None,
        ips: list[str] | None = None,
    ) -> None:
        """Creates a certificate signed by an authority, for clients and servers."""
        alternatives = [f"DNS:{one}" for one in dns or []] + [f"IP:{one}" for one in ips or []]
        extra: list[str] = ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
        self._openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            _DAYS,
            "-subj",
            subject,
            "-config",
            self.path("openssl.cnf"),
            "-CA",
            self.path(f"{authority}.crt"),
            "-CAkey",
            self.path(f"{authority}.key"),
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "keyUsage=critical,digitalSignature",
            "-addext",
            "extendedKeyUsage=serverAuth,clientAuth",
            *extra,
            "-keyout",
            self.path(f"{name}.key"),
            "-out",
            self.path(f"{name}.crt"),
        )

    def _openssl(self, *words: str | Path) -> None:
        progress.run(["openssl", *words], log=self._log)


class Certs(Keys):
    """The certificates of one cluster, in one folder."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        super().__init__(plan.folder / "pki", plan.folder / "logs" / "openssl.log")

    def make_all(self) -> None:
        """Creates all keys and certificates of the control plane and the nodes."""
        self.begin()
        self.authority("ca", "kubernetes")
        self.authority("front-proxy-ca", "front-proxy")
        plan = self.plan
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        addresses = sorted({"127.0.0.1", plan.api_ip, plan.kubernetes_ip})
        self.signed("apiserver", "/CN=kube-apiserver", dns=names, ips=addresses)
        self.signed("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
        self.signed("front-proxy-client", "/CN=front-proxy-client", authority="front-proxy-ca")
        self.signed("admin", "/O=system:masters/CN=admin")
        for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            self.signed(component, f"/CN=system:{component}")
        for node in plan.nodes:
            self._node(node)
        self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", self.path("sa.key"))
        self._openssl("pkey", "-in", self.path("sa.key"), "-pubout", "-out", self.path("sa.pub"))

    def client(self, name: str, subject: str) -> None:
        """Creates a client certificate for another user, for tests."""
        self.signed(name, subject)

    def _node(self, node: Node) -> None:
        self.signed(node.name, f"/O=system:nodes/CN=system:node:{node.name}", dns=[node.name], ips=[node.ip])
