"""The reports of a worker, and the contents that its disk must have after a power cut.

The disk must hold everything that was reported as done; of an operation that was begun only, it may
hold any part that a crash can leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.storage.flusher import Flush
    from quorate.types import VoteRecord

__all__ = ["Failed", "Known", "LogOpened", "OperationBegun", "OperationDone", "Report"]


class LogOpened(NamedTuple):
    """The log is open and holds these entries; no entry is read if a part of the log is damaged."""

    first: int
    frames: list[bytes]
    record: VoteRecord
    damage: list[str]


class OperationBegun(NamedTuple):
    """The worker is about to carry out this operation."""

    what: str
    flush: Flush | None = None
    # For a trim: the index of the first entry that will be left.
    first: int = 0


class OperationDone(NamedTuple):
    """The operation that was begun is durable."""

    record: VoteRecord


class Failed(NamedTuple):
    text: str


Report = LogOpened | OperationBegun | OperationDone | Failed


@dataclass(slots=True)
class Known:
    """The reports of all workers about one image."""

    # The frame of each entry, by index.
    frames: dict[int, bytes] = field(default_factory=dict)
    first: int = 1
    record: VoteRecord | None = None
    committed: int = 0
    # The operation that was begun and not finished: a part of it may be there. An open in between
    # does not settle it.
    begun: OperationBegun | None = None
    # The name of the operation under way.
    doing: str = "start"
    problems: list[str] = field(default_factory=list)

    def hear(self, report: Report) -> None:
        match report:
            case OperationBegun(what, flush):
                self.doing = what
                if what != "open":
                    self.begun = report
                if flush is not None:
                    self.committed = max(self.committed, flush.committed)
            case OperationDone(record):
                self.doing = "chores"
                self._finish(record)
            case LogOpened():
                self.doing = "chores"
                self.problems += self.compare(report)
                self.frames = dict(enumerate(report.frames, report.first))
                self.first, self.record, self.begun = report.first, report.record, None
            case Failed(text):
                self.problems.append(f"the worker failed: {text}")

    def _finish(self, record: VoteRecord) -> None:
        begun, self.begun, self.record = self.begun, None, record
        if begun is not None and begun.flush is not None:
            self.frames = _after(self.frames, begun.flush)
        elif begun is not None and begun.first:
            self.first = begun.first
            self.frames = {i: frame for i, frame in self.frames.items() if i >= begun.first}

    def compare(self, found: LogOpened) -> Iterator[str]:
        """Yield each difference between ``found`` and the log that the reports allow."""
        if found.damage:
            yield f"damage: {', '.join(found.damage)}"
            return
        if found.record.unsure:
            yield "the log is unsure of its end"
        begun = self.begun or OperationBegun("nothing")
        if not self.first <= found.first <= max(self.first, begun.first):
            yield f"begins at entry {found.first}, reported was {self.first}"
        frames = dict(enumerate(found.frames, found.first))
        logs = [self.frames]
        floor = self.first + len(self.frames) - 1
        if begun.flush is not None:
            logs.append(_after(self.frames, begun.flush))
            floor = min(floor, (begun.flush.truncate_from or floor + 1) - 1)
        last = found.first + len(frames) - 1
        if last < floor:
            yield f"ends at entry {last}, reported was {floor}"
        if not any(frames.items() <= log.items() for log in logs):
            yield f"entries {found.first} to {last} are of no log that existed"
        yield from self._compare_record(found.record, begun.flush)

    def _compare_record(self, found: VoteRecord, flush: Flush | None) -> Iterator[str]:
        if self.record is None:
            return
        votes = [(self.record.term, self.record.vote)]
        if flush is not None and flush.vote is not None:
            votes.append(flush.vote)
        if (found.term, found.vote) not in votes:
            yield f"voted for {found.vote} in term {found.term}, reported was {votes[0]}"
        if found.boot <= self.record.boot or found.number <= self.record.number:
            yield f"a vote record that is older than the one reported: {found}"


def _after(frames: dict[int, bytes], flush: Flush) -> dict[int, bytes]:
    """The frames of the log once ``flush`` is carried out."""
    cut = flush.truncate_from
    kept = {index: frame for index, frame in frames.items() if cut is None or index < cut}
    return kept | {entry.index: entry.header + entry.body for entry in flush.entries}
