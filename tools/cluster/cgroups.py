"""A separate cgroup per node, which isolates nodes and clusters on one machine.

Supports both versions. Version 1 has one hierarchy per controller. Version 2 has a single hierarchy and
delegates controllers by ``cgroup.subtree_control``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_V2_WANTED = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def unified() -> bool:
    """Whether the machine has only version 2."""
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """All hierarchies. Version 1 may be accompanied by one of version 2, where runc also creates groups."""
    if unified():
        return [_ROOT]
    # Symbolic links (cpu,cpuacct → cpu) list a hierarchy twice.
    return sorted({path.resolve() for path in _ROOT.iterdir() if path.is_dir()})


def create(name: str) -> None:
    """Creates the node's root in every hierarchy, with the processors of its parent."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        if unified():
            _delegate(hierarchy)
        group.mkdir(exist_ok=True)
        if unified():
            _delegate(group)
        elif (group / "cpuset.cpus").exists():
            for what in ("cpuset.cpus", "cpuset.mems"):
                (group / what).write_text((hierarchy / what).read_text())


def _delegate(group: Path) -> None:
    have = (group / "cgroup.controllers").read_text().split()
    on = (group / "cgroup.subtree_control").read_text().split()
    for controller in _V2_WANTED:
        if controller in have and controller not in on:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def left(name: str) -> list[Path]:
    """The existing groups of this name."""
    return [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).exists()]


def remove(name: str, *, seconds: float = 10) -> None:
    """Removes the node's groups, innermost first, and waits for exiting processes in them.

    Raises OSError (EBUSY) if a process in them does not exit.
    """
    deadline = time.monotonic() + seconds
    for group in left(name):
        while group.exists():
            try:
                for folder, _, _ in os.walk(group, topdown=False):
                    os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
