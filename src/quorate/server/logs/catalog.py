"""The catalog: the table of all logs. It is a log itself; its records create logs, delete them, and
say which members they are to have.

Pure: records in, the table out. Each node reads the same records in the same order, so all nodes
have the same table. The leader judges a request against that table before it appends a record, and
appends only if no other record came in between.

A deleted incarnation never comes back, although only the newest deletions are remembered. A client
that draws an incarnation says where the catalog ended at that time. An incarnation whose deletion
was forgotten was drawn before that deletion; so no log is made whose incarnation was drawn before
the newest forgotten deletion (:attr:`Catalog.horizon`).

The leader of a log carries a placement out (`placing.py`). The record of the placement has a higher
offset than those of earlier ones, and the log's membership keeps that offset: so no node undoes a
later placement with an earlier one (R14).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

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
from quorate.membership import Membership
from quorate.types import PRIORITY, NodeId

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Catalog",
    "Change",
    "LogFacts",
    "Placement",
    "catalog_incarnation",
    "encode_change",
    "encode_placement",
    "judge_create",
    "judge_delete",
    "judge_found",
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


class Placement(NamedTuple):
    """The members that a log is to have."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    # The priorities of the members for which one was set, in the order of their names.
    priorities: tuple[tuple[NodeId, int], ...] = ()
    # The offset of the record that asked for these members; 0 if the log was made with them.
    record: int = 0

    @property
    def membership(self) -> Membership:
        """The membership to log. Raises InvalidArgument if a log cannot have these members."""
        return Membership(
            self.voters, self.learners, priorities=self.priorities, intent=self.record
        )

    def with_priorities(self, name: str, priorities: Mapping[str, int]) -> Placement:
        """The same members, some of them with another priority. Raises InvalidArgument if a node
        is no member of the log ``name``, or a priority is not possible."""
        members = (*self.voters, *self.learners)
        strange = sorted({*priorities} - {*members})
        if strange:
            raise InvalidArgument(
                f"{', '.join(strange)} has no replica of log {name}: its nodes are "
                f"{', '.join(sorted(members))}"
            )
        merged = {str(node): value for node, value in self.priorities} | {**priorities}
        told = sorted((NodeId(node), value) for node, value in merged.items() if value != PRIORITY)
        wanted = self._replace(priorities=tuple(told))
        Membership(wanted.voters, wanted.learners, priorities=wanted.priorities)
        return wanted


class _Record(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    op: Literal["create", "delete", "place"]
    name: str
    incarnation: bytes
    # The nodes with which a log is made; of a placement, the voters.
    nodes: list[str]
    created_us: int
    learners: list[str] = []
    priorities: dict[str, int] = {}


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


def encode_placement(log: LogFacts, placement: Placement) -> bytes:
    """Encode the record that asks for ``placement``."""
    return msgspec.msgpack.encode(_placement_record(log, placement))


def _placement_record(log: LogFacts, placement: Placement) -> _Record:
    voters, learners, priorities, _ = placement
    return _Record(
        "place", log.name, _to_bytes(log.incarnation), list(voters), log.created_us,
        list(learners), dict(priorities),
    )  # fmt: skip


def _placement(record: _Record, offset: int) -> Placement:
    priorities = sorted((NodeId(node), value) for node, value in record.priorities.items())
    return Placement(
        tuple(map(NodeId, record.nodes)), tuple(map(NodeId, record.learners)), tuple(priorities),
        offset,
    )  # fmt: skip


def _change(record: _Record) -> Change:
    nodes = tuple(NodeId(node) for node in record.nodes)
    facts = LogFacts(record.name, _to_int(record.incarnation), nodes, record.created_us)
    return Change(record.op == "create", facts)


def _decode_record(value: bytes) -> _Record:
    try:
        return msgspec.msgpack.decode(value, type=_Record)
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
    # The newest placement of each log that has one: the number of its record, and the record.
    placements: list[tuple[int, _Record]] = []


class Catalog:
    """The table of logs after the first ``applied`` records of the catalog."""

    __slots__ = ("_by_incarnation", "_by_name", "_gone", "_placements", "applied", "horizon")

    def __init__(self) -> None:
        self.applied = 0
        # Deletions by records before this one may be forgotten.
        self.horizon = 0
        self._by_name: dict[str, LogFacts] = {}
        self._by_incarnation: dict[int, LogFacts] = {}
        # The newest deletions, oldest first: each incarnation with the number of its record.
        self._gone: dict[int, int] = {}
        # The newest placement of each log that has one, by incarnation.
        self._placements: dict[int, Placement] = {}

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

    def placement(self, incarnation: int) -> Placement | None:
        """The members that a log is to have; None if it is not in the table."""
        facts = self._by_incarnation.get(incarnation)
        if facts is None:
            return None
        return self._placements.get(incarnation, Placement(facts.nodes))

    def apply(self, value: bytes) -> Change | None:
        """Apply the next record. Returns None if the record makes and deletes no log, because it is
        a placement or an earlier record had the same effect."""
        record = _decode_record(value)
        self.applied += 1
        if record.op == "place":
            self._place(record)
            return None
        change = _change(record)
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
            self._placements.pop(known.incarnation, None)
            self._gone[known.incarnation] = self.applied - 1
            self._forget()
            change = Change(made=False, log=known)
        return change

    def _insert(self, log: LogFacts) -> None:
        self._by_name[log.name] = self._by_incarnation[log.incarnation] = log

    def _place(self, record: _Record) -> None:
        incarnation = _to_int(record.incarnation)
        if incarnation in self._by_incarnation:  # else a deletion came in between
            self._placements[incarnation] = _placement(record, self.applied - 1)

    def _forget(self) -> None:
        """Forget the oldest deletions above ``GONE_MAX``."""
        while len(self._gone) > GONE_MAX:
            oldest = next(iter(self._gone))
            self.horizon = self._gone.pop(oldest) + 1

    def encode(self) -> bytes:
        """Encode the table, so that the next start can begin with it."""
        logs = [_record(Change(made=True, log=log)) for log in self._by_name.values()]
        gone = [(_to_bytes(incarnation), number) for incarnation, number in self._gone.items()]
        placements = [
            (placement.record, _placement_record(self._by_incarnation[incarnation], placement))
            for incarnation, placement in self._placements.items()
        ]
        fields = _TableFields(self.applied, self.horizon, logs, gone, placements)
        return msgspec.msgpack.encode(fields)

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
        for number, record in table.placements:
            catalog._placements[_to_int(record.incarnation)] = _placement(record, number)
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
    return None if catalog.is_gone(incarnation) else judge_found(catalog, name, incarnation)


def judge_found(catalog: Catalog, name: str, incarnation: int) -> LogFacts | QuorateError:
    """Find a log by both: the log, or the error if it is not the one that has the name."""
    known = catalog.named(name)
    if known is None:
        return LogNotFound(f"log {name} does not exist")
    if known.incarnation != incarnation:
        return LogRecreated(
            f"log {name} has incarnation {known.incarnation:032x}, not {incarnation:032x}"
        )
    return known
