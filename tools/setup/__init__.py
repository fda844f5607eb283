"""Makes a machine ready: Debian packages, Go programs, venvs. A second run does nothing.

``ensure("api")`` is what the rest of ``tools`` and ``e2e`` call; ``python3 -m tools.setup`` does
everything and says what it does.
"""

from __future__ import annotations

from tools.setup import debian, golang, rust, venv
from tools.setup.versions import PARTS

__all__ = ["PARTS", "ensure"]


def ensure(*parts: str) -> None:
    """Makes the named parts ready, or all of them when none is named.

    rust: the compiler is new enough (checked only). fuzz: a C++ compiler. api: etcd, kube-apiserver,
    controller-manager, kubectl. full: the rest of a Kubernetes node. images: buildah. postgres: the server's
    programs. python: the tests' venv. tools: the developers' venv, and what reads metrics as Prometheus does.

    Raises ``tools.progress.StepFailed`` with what the user has to do.
    """
    wanted = set(parts or PARTS)
    if unknown := wanted - set(PARTS):
        raise ValueError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if "full" in wanted:
        wanted.add("api")
    if "rust" in wanted:
        rust.check()
    debian.install_missing(wanted)
    golang.build_missing(wanted)
    if "python" in wanted:
        venv.tests_venv()
    if "tools" in wanted:
        venv.tools_venv()
