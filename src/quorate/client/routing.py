"""The nodes, logs and leaders known to this client, and the choice of a node to ask.

Sans-IO, and only data: it outlives its connections, and a fork.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.client.retries import Lost, Unreachable
from quorate.errors import InvalidArgument, LogRecreated, NoQuorum, NotLeader
from quorate.net.dialling import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.wire.calls import LogFound
    from quorate.wire.handshake import Welcome

__all__ = ["Route", "Routing", "parse_endpoints"]


def parse_endpoints(endpoints: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses of "host:port,host:port" or of a list of such; at least one."""
    parts = endpoints.split(",") if isinstance(endpoints, str) else _texts(endpoints)
    found = tuple(part.strip() for part in parts if part.strip())
    if not found:
        raise InvalidArgument("endpoints: at least one host:port is needed")
    for one in found:
        parse_address(one)
    return tuple(dict.fromkeys(found))


def _texts(given: object) -> list[str]:
    parts = list(given) if isinstance(given, Iterable) else [given]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) != len(parts):
        raise InvalidArgument(f"endpoints = {given!r} is not host:port,host:port or a list of such")
    return texts


@dataclass(slots=True)
class Route:
    """One log, or the catalog: the nodes that have it, and which of them to ask."""

    name: str
    # 0 for the catalog.
    incarnation: int
    # The nodes with a replica.
    nodes: list[str]
    # The node for writes; None if no leader is known: then the nodes are tried one by one.
    leader: str | None = None
    # The node for reads of the newest records; None is the leader.
    reader: str | None = None
    # Rises with every reader, so that they read from different nodes. It begins at random: clients
    # that start together do not meet at one node either.
    turn: int = field(default_factory=lambda: random.randrange(1 << 16))
    # The highest end that this client has seen, or was told by a receipt. Reads never show less.
    session_end: int = 0
    # The incarnation on the wire.
    wire: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.wire = self.incarnation.to_bytes(16, "little")

    def saw(self, end: int) -> None:
        if end > self.session_end:
            self.session_end = end

    def learn(self, asked: str, error: Exception) -> bool:
        """Learn from an error of ``asked`` where to write. Returns whether it named another node
        that should be asked at once."""
        if isinstance(error, NotLeader):
            return self.redirected(asked, error.leader)
        if isinstance(error, Lost | Unreachable | NoQuorum):
            self.failed_to_write(asked)
        return False

    def recreated(self, incarnation: int) -> LogRecreated | None:
        """The error if the log has this incarnation now; None if it is the same."""
        if incarnation == self.incarnation:
            return None
        return LogRecreated(
            f"{self.name} was deleted and made again: {self.incarnation:032x} is "
            f"{incarnation:032x} now"
        )

    def redirected(self, asked: str, leader: str | None) -> bool:
        """Note that ``asked`` does not lead, and names ``leader``. Returns whether to ask another
        node at once."""
        if leader in self.nodes and leader not in (asked, self.leader):
            self.leader = leader
            self.reader = None
            return True
        # The named node may be the one that could not be reached.
        self.failed_to_write(asked)
        return False

    def failed_to_write(self, node: str) -> None:
        """Begin with another node at the next write."""
        if self.leader == node:
            self.leader = None
        if node in self.nodes:
            place = self.nodes.index(node) + 1
            self.nodes = [*self.nodes[place:], *self.nodes[:place]]

    def failed_to_read(self, node: str) -> None:
        others = self._from(node)[1:]
        self.reader = others[0] if others else None

    def next_replica(self) -> str:
        """The replica for the next reader, for records that every replica will have."""
        self.turn += 1
        return sorted(self.nodes)[self.turn % len(self.nodes)]

    def to_write(self) -> list[str]:
        """The nodes in the order of attempts."""
        return self._from(self.leader)

    def to_read(self) -> list[str]:
        return self._from(self.reader or self.leader)

    def _from(self, first: str | None) -> list[str]:
        if first is None:
            return self.nodes
        return [first, *(node for node in self.nodes if node != first)]


@dataclass(slots=True)
class Routing:
    """One client's knowledge of its cluster."""

    # As the caller gave them: the first addresses to try, and the last resort.
    endpoints: tuple[str, ...]
    # Named by the first node that answered; another cluster is refused from then on.
    cluster: str | None = None
    # node id -> the address that it gives to clients.
    nodes: dict[str, str] = field(default_factory=dict)
    # node id -> the address at which this client reached it, which may differ.
    met: dict[str, str] = field(default_factory=dict)
    # incarnation -> route.
    logs: dict[int, Route] = field(default_factory=dict)
    # Incarnations that this client deleted: a node that still has one lags.
    deleted: set[int] = field(default_factory=set)
    catalog: Route = field(default_factory=lambda: Route("the catalog", 0, []))

    def welcomed(self, address: str, welcome: Welcome) -> None:
        self.cluster = welcome.cluster
        self.nodes.update(welcome.nodes)
        self.met = {node: place for node, place in self.met.items() if place != address}
        self.met[welcome.node] = address
        self.catalog.nodes += [node for node in welcome.nodes if node not in self.catalog.nodes]

    def found(self, log: LogFound) -> Route:
        """The route of ``log``, with its newest nodes and leader."""
        self.nodes.update(log.nodes)
        incarnation = int.from_bytes(log.incarnation, "little")
        route = self.logs.get(incarnation)
        if route is None:
            route = self.logs[incarnation] = Route(log.name, incarnation, sorted(log.nodes))
        if log.leader in log.nodes:
            route.leader = log.leader
        return route

    def dropped(self, incarnation: int) -> None:
        self.deleted.add(incarnation)
        self.logs.pop(incarnation, None)

    def addresses(self, nodes: Sequence[str]) -> list[str]:
        """Addresses to try, in the order of ``nodes``; then the endpoints, which may know a way."""
        places = [place.get(node) for node in nodes for place in (self.met, self.nodes)]
        return [*dict.fromkeys(place for place in (*places, *self.endpoints) if place)]
