"""Which logs there are. The catalog is itself a log: its records say what was made and deleted.

Pure: records in, the table out. Every node reads the same records in the same order, so all have
the same table; the leader judges what is asked of it against that table before it appends, and
appends only if nothing came in between.
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


def catalog_incarnation(cluster: str) -> int:
    """The catalog's own: every node finds it without asking."""
    digest = blake2b(cluster.encode(), digest_size=INCARNATION_BYTES, person=b"quorate catalog")
    return int.from_bytes(digest.digest())


class LogFacts(NamedTuple):
    """A log as it was made."""

    name: str
    incarnation: int
    nodes: tuple[NodeId, ...]
    created_us: int


class Change(NamedTuple):
    """What one record of the catalog did."""

    made: bool
    log: LogFacts


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    op: Literal["create", "delete"]
    name: str
    incarnation: bytes
    nodes: list[str]
    created_us: int


def encode_change(change: Change) -> bytes:
    """The record that brings it about."""
    name, incarnation, nodes, created_us = change.log
    op: Literal["create", "delete"] = "create" if change.made else "delete"
    number = incarnation.to_bytes(INCARNATION_BYTES, "little")
    return msgspec.msgpack.encode(_Record(op, name, number, list(nodes), created_us))


def _decode_change(value: bytes) -> Change:
    try:
        record = msgspec.msgpack.decode(value, type=_Record)
    except msgspec.DecodeError as error:
        # To go on would be to have another table than the others.
        raise InvariantBroken(f"a record of the catalog cannot be read: {error}") from None
    facts = LogFacts(
        record.name,
        int.from_bytes(record.incarnation, "little"),
        tuple(NodeId(node) for node in record.nodes),
        record.created_us,
    )
    return Change(record.op == "create", facts)


class Catalog:
    """The table after the first ``applied`` records."""

    __slots__ = ("_by_incarnation", "_by_name", "_gone", "applied")

    def __init__(self) -> None:
        self.applied = 0
        self._by_name: dict[str, LogFacts] = {}
        self._by_incarnation: dict[int, LogFacts] = {}
        # Incarnations that were deleted: they never come back.
        self._gone: set[int] = set()

    @property
    def logs(self) -> list[LogFacts]:
        return sorted(self._by_name.values())

    def named(self, name: str) -> LogFacts | None:
        return self._by_name.get(name)

    def find(self, incarnation: int) -> LogFacts | None:
        return self._by_incarnation.get(incarnation)

    def is_gone(self, incarnation: int) -> bool:
        return incarnation in self._gone

    def apply(self, value: bytes) -> Change | None:
        """Take the next record. None if it changes nothing: what it asks for was done before."""
        change = _decode_change(value)
        self.applied += 1
        log = change.log
        if change.made:
            if log.name in self._by_name or log.incarnation in self._gone:
                return None
            self._by_name[log.name] = self._by_incarnation[log.incarnation] = log
        else:
            known = self._by_incarnation.pop(log.incarnation, None)
            if known is None:
                return None
            del self._by_name[known.name]
            self._gone.add(known.incarnation)
            change = Change(made=False, log=known)
        return change


def judge_create(catalog: Catalog, name: str, incarnation: int) -> LogFacts | QuorateError | None:
    """The log, if an earlier try made it; why it cannot be made; None if it can."""
    if catalog.is_gone(incarnation):
        # Whoever has the name now: an earlier try made this one.
        return LogNotFound(f"log {name} with incarnation {incarnation:032x} was deleted")
    known = catalog.named(name)
    if known is not None and known.incarnation == incarnation:
        return known
    if known is not None:
        return LogExists(f"log {name} exists, with incarnation {known.incarnation:032x}")
    other = catalog.find(incarnation)
    if other is not None:
        return InvalidArgument(f"incarnation {incarnation:032x} is that of log {other.name}")
    return None


def judge_delete(catalog: Catalog, name: str, incarnation: int) -> LogFacts | QuorateError | None:
    """The log that is to be deleted; why none can be; None if an earlier try deleted it."""
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
