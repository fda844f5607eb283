"""A real Kubernetes on this machine, from its own programs, without Docker and without an image registry.

::

    with Cluster("mine") as cluster:            # or .up() … .down()
        cluster.load_image(archive)
        cluster.kubectl("get", "nodes")

Needs root in profile ``full`` (namespaces, bridge, cgroups), nothing in profile ``api``.
"""

from __future__ import annotations

from tools.cluster.cluster import Cluster, Status
from tools.cluster.plan import DEFAULT_NAME, PROFILES

__all__ = ["DEFAULT_NAME", "PROFILES", "Cluster", "Status"]
