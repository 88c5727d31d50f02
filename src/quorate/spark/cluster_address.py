"""The cluster of a read or a write: its endpoints, and the timeout of its clients.

A :class:`ClusterAddress` travels to tasks, and each task opens a client of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.client.blocking import Client
from quorate.client.routing import parse_endpoints
from quorate.client.session import checked_timeout
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CLUSTER_NAMES", "ClusterAddress", "parse_cluster"]

# The options that name a cluster.
CLUSTER_NAMES = ("endpoints", "timeout")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The endpoints of some nodes, and the seconds after which an operation is given up."""

    endpoints: str
    timeout: float = 30.0

    @property
    def options(self) -> dict[str, str]:
        """The options of the format ``quorate`` that name this cluster."""
        return {"endpoints": self.endpoints, "timeout": str(self.timeout)}

    def client(self) -> Client:
        return Client(self.endpoints, self.timeout)


def parse_cluster(options: Mapping[str, str]) -> ClusterAddress:
    """The cluster that ``options`` name. Raises InvalidArgument for a missing or invalid option."""
    endpoints = options.get("endpoints")
    if not endpoints:
        raise InvalidArgument(
            'endpoints is missing: write .option("endpoints", "host:port,…").option("log", NAME)'
        )
    parse_endpoints(endpoints)
    if "timeout" not in options:
        return ClusterAddress(endpoints)
    return ClusterAddress(endpoints, checked_timeout(_number(options["timeout"])))


def _number(text: str) -> float | str:
    """The number that ``text`` stands for; other text is left for ``checked_timeout`` to refuse."""
    try:
        return float(text)
    except ValueError:
        return text
