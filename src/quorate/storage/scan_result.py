"""The result of a scan of a segment, and the proof that a scan is held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.layout import PAGE
from quorate.types import Index, Position

if TYPE_CHECKING:
    from quorate.storage.rows import Rows

__all__ = ["Fault", "Proof", "Scan", "Unconfirmed"]


class Fault(NamedTuple):
    """A range of bad bytes, and the entries that it costs."""

    start: int
    stop: int
    # The entries that cannot be read; none if ``last`` is less than ``first``.
    first: Index
    last: Index
    what: str

    @classmethod
    def of_bytes(cls, start: int, stop: int, what: str) -> Fault:
        """A fault that costs no entry."""
        return cls(start, stop, Index(1), Index(0), what)


class Proof(NamedTuple):
    """The place where a segment durably ends, as a structure outside of its blocks proves it: a
    header, a mark of a clean stop, or a vote record of a cut in progress."""

    # End of the blocks, or the byte right behind the last frame that a cut leaves.
    end: int
    # Position of the last entry before ``end``.
    last: Position
    # The segment is the last one: entries that it lacks are missing at the end of the log.
    newest: bool = False
    # Whether entries are dropped that leave no room for those that this proof names. False for a
    # proof that may be an old one, back on disk.
    drops: bool = True


class Unconfirmed(NamedTuple):
    """Entries first..last in front of a loss that nothing confirms: neither a claim that they are
    committed, nor the chain of an entry behind them."""

    first: Index
    last: Index
    # The last of the lost entries behind them.
    lost: Index


@dataclass(slots=True)
class Scan:
    """The result of a scan: entries, durable end, damage and torn bytes of a segment."""

    rows: Rows
    # Position of the last entry of the segment.
    last: Position
    # Place of the next block: after all blocks that are kept.
    end: int = PAGE
    # All bytes below were synced before a later write that was found.
    durable_end: int = PAGE
    write_number: int = 0
    # Whether the last block holds entries: only a later write proves them durable.
    unproven: bool = False
    # The highest index that a block claims to be committed.
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    # The membership entries that were read or that a block names.
    memberships: set[Index] = field(default_factory=set)
    # Bad bytes below durable_end.
    damage: list[Fault] = field(default_factory=list)
    # The entries whose header is whole and whose body is not.
    without_body: set[Index] = field(default_factory=set)
    # The byte from which on durable entries at the end of the log cannot be read; None if all can.
    lost_tail: int | None = None
    # The proof contradicts an entry that is committed, and was not used.
    refuted: bool = False
    # Bad bytes at or above durable_end, left by a crash: the segment is to be cut where they start.
    torn: Fault | None = None

    @property
    def ends_with_loss(self) -> bool:
        """Whether the last entry of the segment was not read."""
        rows = self.rows
        return bool(rows.starts) and rows.starts[-1] == rows.ends[-1]
