"""Prepares a machine: Debian packages, Go programs, virtual environments. Idempotent.

The rest of ``tools`` and ``e2e`` call ``ensure("api")`` and so on; ``python3 -m tools.setup`` prepares everything.
"""

from __future__ import annotations

from tools.setup import debian, golang, rust, venv
from tools.setup.versions import PARTS

__all__ = ["PARTS", "ensure"]


def ensure(*parts: str) -> None:
    """Installs or builds the given parts, or all of them by default.

    rust: checks the version of the compiler and installs a linker. fuzz: a C++ compiler. api: etcd, kube-apiserver,
    controller-manager, kubectl. full: the rest of a Kubernetes node. images: buildah. postgres: the server's
    programs. python: the virtual environment of the tests. tools: linters, the test runner and promlint.

    Raises ``tools.progress.StepFailed`` with instructions for the user.
    """
    wanted = set(parts or PARTS)
    if unknown := wanted - set(PARTS):
        raise ValueError(f"unknown part: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
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
