"""Which cluster is meant, and how patient its clients are: what all who read and write there need.

It travels to tasks, and each of them opens a client of its own.
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

__all__ = ["CLUSTER_NAMES", "Cluster", "parse_cluster"]

# The options that say so.
CLUSTER_NAMES = ("endpoints", "timeout")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where some nodes are, and the seconds after which an operation is given up."""

    endpoints: str
    timeout: float = 30.0

    @property
    def options(self) -> dict[str, str]:
        """As the format takes them."""
        return {"endpoints": self.endpoints, "timeout": str(self.timeout)}

    def client(self) -> Client:
        return Client(self.endpoints, self.timeout)


def parse_cluster(options: Mapping[str, str]) -> Cluster:
    """Raises InvalidArgument for anything that cannot be meant."""
    endpoints = options.get("endpoints")
    if not endpoints:
        raise InvalidArgument(
            'endpoints is missing: write .option("endpoints", "host:port,…").option("log", NAME)'
        )
    parse_endpoints(endpoints)
    if "timeout" not in options:
        return Cluster(endpoints)
    return Cluster(endpoints, checked_timeout(_number(options["timeout"])))


def _number(text: str) -> float | str:
    """What is none is left as it is, for whoever refuses it."""
    try:
        return float(text)
    except ValueError:
        return text
