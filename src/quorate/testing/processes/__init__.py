"""A real cluster for tests: nodes as processes, links that can be cut, all on loopback, no root.

::

    with quorate.testing.cluster(nodes=3, logs=["orders"]) as cluster:
        cluster.client().log("orders").append(b"hello")
        cluster.kill(cluster.leader("orders"))
"""

from quorate.testing.processes.cluster import Cluster, cluster

__all__ = ["Cluster", "cluster"]
