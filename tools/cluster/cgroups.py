"""A cgroup of its own for each node, so that nodes and clusters on one machine do not meet.

Both versions are handled. Version 1 has a hierarchy a controller; version 2 has one for all, and
hands controllers down by ``cgroup.subtree_control``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_V2_WANTED = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def unified() -> bool:
    """Whether the machine has version 2 only."""
    return (_ROOT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """Every hierarchy; beside version 1 there may be one of version 2, where runc makes groups too."""
    if unified():
        return [_ROOT]
    # Links (cpu,cpuacct → cpu) name a hierarchy twice.
    return sorted({path.resolve() for path in _ROOT.iterdir() if path.is_dir()})


def create(name: str) -> None:
    """Makes the node's root in every hierarchy, with the processors that its parent has."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        if unified():
            _hand_down(hierarchy)
        group.mkdir(exist_ok=True)
        if unified():
            _hand_down(group)
        elif (group / "cpuset.cpus").exists():
            for what in ("cpuset.cpus", "cpuset.mems"):
                (group / what).write_text((hierarchy / what).read_text())


def _hand_down(group: Path) -> None:
    have = (group / "cgroup.controllers").read_text().split()
    on = (group / "cgroup.subtree_control").read_text().split()
    for controller in _V2_WANTED:
        if controller in have and controller not in on:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def left(name: str) -> list[Path]:
    """The groups of this name that are still there."""
    return [hierarchy / name for hierarchy in _hierarchies() if (hierarchy / name).exists()]


def remove(name: str, *, seconds: float = 10) -> None:
    """Removes the node's groups, innermost first; waits for the last dying processes in them.

    Raises OSError (EBUSY) when something in them does not end.
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
