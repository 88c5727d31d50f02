"""A real cluster for tests: nodes as processes, links that can be cut, all on loopback, no root."""

from quorate.testing.processes.cluster import Cluster, cluster

__all__ = ["Cluster", "cluster"]
