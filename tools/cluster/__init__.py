"""A local Kubernetes of real components, without Docker and without an image registry.

::

    with Cluster("mine") as cluster:            # or .up() … .down()
        cluster.load_image(archive)
        cluster.kubectl("get", "nodes")

Profile ``full`` needs root for namespaces, a bridge and cgroups; profile ``api`` does not.
"""

from __future__ import annotations

from tools.cluster.cluster import Cluster, Status
from tools.cluster.plan import DEFAULT_NAME, PROFILES

__all__ = ["DEFAULT_NAME", "PROFILES", "Cluster", "Status"]
