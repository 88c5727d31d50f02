"""A log of small segments on a simulated disk: a few entries fill one."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from quorate.entry import make_entry
from quorate.storage.layout import LogId
from quorate.storage.recovery.open import open_log
from quorate.types import EntryKind, Term
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.types import Position
    from verification.disk.simulated import SimulatedDisk

    Open = tuple[SegmentLog, Flusher]
    # One operation of a node on its open log.
    Step = Callable[[SegmentLog, Flusher], Iterator[str]]

__all__ = ["IDENTITY", "SEGMENT_BYTES", "OpenedDisks", "grow", "open_disk", "opening", "run"]

# Eight pages: five for blocks.
SEGMENT_BYTES = 8 * 4096
IDENTITY = LogId(1, b"enumerated".ljust(16, b"\0"))

_NONCES = Random("nonces")


def opening(disk: SimulatedDisk, segment_bytes: int = SEGMENT_BYTES) -> Generator[str, None, Open]:
    return open_log(disk, IDENTITY, segment_bytes, lambda: _NONCES.getrandbits(64))


def open_disk(disk: SimulatedDisk, segment_bytes: int = SEGMENT_BYTES) -> Open:
    return complete(opening(disk, segment_bytes))


def grow(before: Position, *sizes: int, term: int = 1) -> tuple[Entry, ...]:
    """Make entries after ``before`` with bodies of these sizes, no two pages of them alike."""
    entries = []
    for size in sizes:
        body = Random(f"{before} {term}").randbytes(size)
        entry = make_entry(before, Term(term), EntryKind.DATA, body)
        entries.append(entry)
        before = entry.position
    return tuple(entries)


def run(steps: Iterator[str], until: str = "") -> None:
    """Carry out ``steps``, or those up to the one that begins with ``until``."""
    for step in steps:
        if until and step.startswith(until):
            return


@dataclass(slots=True)
class OpenedDisks:
    """The number of disks that were opened, and the problems found by disk."""

    crashed: int = 0
    crashed_again: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def states(self) -> int:
        return self.crashed + self.crashed_again
