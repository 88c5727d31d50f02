"""The catalog: the table of all logs. It is a log itself; its records create and delete logs.

Pure: records in, the table out. Each node reads the same records in the same order, so all nodes
have the same table. The leader judges a request against that table before it appends a record, and
appends only if no other record came in between.

A deleted incarnation never comes back, although only the newest deletions are remembered. A client
that draws an incarnation says where the catalog ended at that time. An incarnation whose deletion
was forgotten was drawn before that deletion; so no log is made whose incarnation was drawn before
the newest forgotten deletion (:attr:`Catalog.horizon`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from quorate.errors import (
    InvalidArgument,
    InvariantBroken,
    LogExists,
    LogNotFound,
    LogRecreated,
    OffsetMismatch,
    QuorateError,
)
from quorate.types import NodeId

__all__ = [
    "Catalog",
    "Change",
    "LogFacts",
    "catalog_incarnation",
    "encode_change",
    "judge_create",
    "judge_delete",
]

INCARNATION_BYTES = 16
# Maximum deletions that are remembered. Nodes need not agree on it: only the leader uses it.
GONE_MAX = 10_000


def catalog_incarnation(cluster: str) -> int:
    """The incarnation of the catalog itself: each node derives it from the cluster's name."""
    digest = blake2b(cluster.encode(), digest_size=INCARNATION_BYTES, person=b"quorate catalog")
    return int.from_bytes(digest.digest())


class LogFacts(NamedTuple):
    """The properties of a log, as it was made."""

    name: str
    incarnation: int
    nodes: tuple[NodeId, ...]
    created_us: int


class Change(NamedTuple):
    """The effect of one record of the catalog: a log was made or deleted."""

    made: bool
    log: LogFacts


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    op: Literal["create", "delete"]
    name: str
    incarnation: bytes
    nodes: list[str]
    created_us: int


def _to_bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(INCARNATION_BYTES, "little")


def _to_int(incarnation: bytes) -> int:
    return int.from_bytes(incarnation, "little")


def _record(change: Change) -> _Record:
    name, incarnation, nodes, created_us = change.log
    op: Literal["create", "delete"] = "create" if change.made else "delete"
    return _Record(op, name, _to_bytes(incarnation), list(nodes), created_us)


def encode_change(change: Change) -> bytes:
    """Encode the record that brings ``change`` about."""
    return msgspec.msgpack.encode(_record(change))


def _change(record: _Record) -> Change:
    nodes = tuple(NodeId(node) for node in record.nodes)
    facts = LogFacts(record.name, _to_int(record.incarnation), nodes, record.created_us)
    return Change(record.op == "create", facts)


def _decode_change(value: bytes) -> Change:
    try:
        return _change(msgspec.msgpack.decode(value, type=_Record))
    except msgspec.DecodeError as error:
        # A node that went on would have another table than the other nodes.
        raise InvariantBroken(f"a record of the catalog cannot be read: {error}") from None


class _TableFields(msgspec.Struct, array_like=True):
    applied: int
    horizon: int
    # Records that would make the logs that exist.
    logs: list[_Record]
    # Deletions, oldest first: the incarnation and the number of the record.
    gone: list[tuple[bytes, int]]


class Catalog:
    """The table of logs after the first ``applied`` records of the catalog."""

    __slots__ = ("_by_incarnation", "_by_name", "_gone", "applied", "horizon")

    def __init__(self) -> None:
        self.applied = 0
        # Deletions by records before this one may be forgotten.
        self.horizon = 0
        self._by_name: dict[str, LogFacts] = {}
        self._by_incarnation: dict[int, LogFacts] = {}
        # The newest deletions, oldest first: each incarnation with the number of its record.
        self._gone: dict[int, int] = {}

    @property
    def logs(self) -> list[LogFacts]:
        return sorted(self._by_name.values())

    def named(self, name: str) -> LogFacts | None:
        return self._by_name.get(name)

    def find(self, incarnation: int) -> LogFacts | None:
        return self._by_incarnation.get(incarnation)

    def is_gone(self, incarnation: int) -> bool:
        """True if the log was deleted and its deletion is still remembered."""
        return incarnation in self._gone

    def apply(self, value: bytes) -> Change | None:
        """Apply the next record. Returns None if the record changes no log, because an earlier
        record had the same effect."""
        change = _decode_change(value)
        self.applied += 1
        log = change.log
        if change.made:
            if log.name in self._by_name or log.incarnation in self._gone:
                return None
            self._insert(log)
        else:
            known = self._by_incarnation.pop(log.incarnation, None)
            if known is None:
                return None
            del self._by_name[known.name]
            self._gone[known.incarnation] = self.applied - 1
            self._forget()
            change = Change(made=False, log=known)
        return change

    def _insert(self, log: LogFacts) -> None:
        self._by_name[log.name] = self._by_incarnation[log.incarnation] = log

    def _forget(self) -> None:
        """Forget the oldest deletions above ``GONE_MAX``."""
        while len(self._gone) > GONE_MAX:
            oldest = next(iter(self._gone))
            self.horizon = self._gone.pop(oldest) + 1

    def encode(self) -> bytes:
        """Encode the table, so that the next start can begin with it."""
        logs = [_record(Change(made=True, log=log)) for log in self._by_name.values()]
        gone = [(_to_bytes(incarnation), number) for incarnation, number in self._gone.items()]
        return msgspec.msgpack.encode(_TableFields(self.applied, self.horizon, logs, gone))

    @staticmethod
    def decode(data: bytes) -> Catalog | None:
        """Decode the result of :meth:`encode`; None if this release cannot read it."""
        try:
            table = msgspec.msgpack.decode(data, type=_TableFields)
        except msgspec.DecodeError:
            return None
        catalog = Catalog()
        catalog.applied, catalog.horizon = table.applied, table.horizon
        for record in table.logs:
            catalog._insert(_change(record).log)
        catalog._gone = {_to_int(incarnation): number for incarnation, number in table.gone}
        return catalog


def judge_create(
    catalog: Catalog, name: str, incarnation: int, drawn_at: int
) -> LogFacts | QuorateError | None:
    """Judge the creation of a log: the log if an earlier attempt made it, the error if it cannot be
    made, None if it can be.

    ``drawn_at`` is the end of the catalog when the incarnation was drawn, or an earlier offset.
    """
    if catalog.is_gone(incarnation):
        # An earlier attempt made this log, even if another log has the name now.
        return LogNotFound(f"log {name} with incarnation {incarnation:032x} was deleted")
    known = catalog.named(name)
    if known is not None and known.incarnation == incarnation:
        return known
    if known is not None:
        return LogExists(f"log {name} exists, with incarnation {known.incarnation:032x}")
    other = catalog.find(incarnation)
    if other is not None:
        return InvalidArgument(f"incarnation {incarnation:032x} is that of log {other.name}")
    if not catalog.horizon <= drawn_at <= catalog.applied:
        # Too early: it may have been deleted. Too late: the horizon would never reach it.
        return OffsetMismatch(
            f"incarnation {incarnation:032x} was drawn at offset {drawn_at} of the catalog, which "
            f"remembers deletions from {catalog.horizon} on; draw another one at {catalog.applied}"
        )
    return None


def judge_delete(catalog: Catalog, name: str, incarnation: int) -> LogFacts | QuorateError | None:
    """Judge a deletion: the log to delete, the error if there is none to delete, None if an earlier
    attempt deleted it."""
    if catalog.is_gone(incarnation):
        return None
    known = catalog.named(name)
    if known is None:
        return LogNotFound(f"log {name} does not exist")
    if known.incarnation != incarnation:
        return LogRecreated(
            f"log {name} has incarnation {known.incarnation:032x}, not {incarnation:032x}"
        )
    return known
