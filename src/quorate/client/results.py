"""The results of a client's operations."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

__all__ = ["ClusterStatus", "LogSummary", "NodeSummary", "Record", "ReplicaSummary"]


class Record(NamedTuple):
    """One record, with its place in the log."""

    offset: int
    # Microseconds, as the producer gave them; None if it gave none.
    timestamp: int | None
    # None is no key, which is not the empty key.
    key: bytes | None
    value: bytes
    # Headers in the order in which they were given; a name may come again.
    headers: list[tuple[str, bytes]]
    # Microseconds of the leader's clock when it took the batch; never falls within a log.
    append_time: int


# -- status: the document of `quorate status --json`, key by key ---------------------------------


class NodeSummary(TypedDict):
    id: str
    address: str
    # Whether the node answered this client.
    up: bool
    # Percent of the node's disk in use, and whether another log would find no room there; None if
    # it did not say so.
    disk_used: int | None
    full: bool | None
    # Why the node did not answer: it waits for its first start, or nodes refuse it; None if it
    # answered, or no reason is known.
    why: str | None


class ReplicaSummary(TypedDict):
    node: str
    # leader, follower or candidate.
    role: str
    # The node with the highest priority leads if it can; 100 unless another one was set.
    priority: int
    # The last entry known to match the leader's log, and how many committed entries it lacks.
    match: int | None
    lag: int | None
    # self, compare, append, blocked, unsure or down.
    state: str
    # Whether its disk has no room for appends, as far as is known.
    full: bool
    # Why its node stopped it; None if it did not, or no reason is known.
    halted: str | None


class LogSummary(TypedDict):
    name: str
    incarnation: str
    leader: str | None
    term: int
    # Offsets of records; the end is exclusive.
    first_offset: int
    end_offset: int
    # The index of an entry, as ``match`` is.
    committed: int
    staged_bytes: int
    replicas: list[ReplicaSummary]


class ClusterStatus(TypedDict):
    nodes: list[NodeSummary]
    logs: list[LogSummary]
