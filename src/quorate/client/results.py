"""What a client gives back."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

__all__ = ["ClusterStatus", "LogSummary", "NodeSummary", "Receipt", "Record", "ReplicaSummary"]


class Receipt(NamedTuple):
    """Where an append went, and how many replicas were known to have it on disk."""

    # Of the first record; the others follow without a gap.
    offset: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    # The entry that holds them, and the term of the leader that made it.
    index: int  # type: ignore[assignment]  # nobody calls tuple's own
    term: int
    synced: int


class Record(NamedTuple):
    """One record, with its place in the log."""

    offset: int
    # Microseconds, as its producer gave them; None if it gave none.
    timestamp: int | None
    # None is no key, which is not the empty key.
    key: bytes | None
    value: bytes
    # In the order in which they were given; a name may come again.
    headers: list[tuple[str, bytes]]
    # Microseconds of the leader's clock when it took the batch; never falls within a log.
    append_time: int


# -- status: the document of `quorate status --json`, key by key ---------------------------------


class NodeSummary(TypedDict):
    id: str
    address: str
    # Whether it answered this client.
    up: bool
    # Percent of its disk that are in use, and whether another log would find no room there; None
    # if it did not say so.
    disk_used: int | None
    full: bool | None
    # Why it did not answer: that it waits for its first start, or which nodes refuse it; None if it
    # answered, or nothing is known.
    why: str | None


class ReplicaSummary(TypedDict):
    node: str
    # leader, follower, candidate or learner.
    role: str
    # Up to which entry it is known to hold the leader's log, and how many committed ones it lacks.
    match: int | None
    lag: int | None
    # self, compare, append, blocked, fill, repairing, unsure or down.
    state: str
    # Whether its disk has no room for what is appended, as far as anybody said so.
    full: bool
    # Why its node stopped it; None if it did not, or nobody knows.
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
