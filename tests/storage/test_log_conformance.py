"""One suite for every log: in segments on a simulated disk and on a real one, and in memory."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from memory_log import MemoryFlusher, MemoryLog, open_memory

from quorate.errors import ReplicaHalted
from quorate.storage.layout import LogId
from quorate.storage.recovery.open import open_log
from quorate.storage.vfs import RealVfs
from quorate.types import Index
from verification.conformance import RULES, LogPlace, LogUnderTest, WriterUnderTest
from verification.disk.simulated import SimulatedDisk
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.flusher import Flush
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Vfs

    Rule = Callable[[LogPlace], None]

SEGMENT_BYTES = 10 * 4096


class InMemory:
    def __init__(self, log: MemoryLog | None = None) -> None:
        self._log = log if log is not None else MemoryLog()

    def open(self) -> tuple[LogUnderTest, WriterUnderTest]:
        return complete(open_memory(self._log))


class InSegments:
    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._identity = LogId(7, b"conformance".ljust(16, b"\0"))
        self._nonces = count()
        self._log: SegmentLog | None = None

    def open(self) -> tuple[LogUnderTest, WriterUnderTest]:
        self.let_go()
        draw = self._nonces.__next__
        self._log, flusher = complete(open_log(self._vfs, self._identity, SEGMENT_BYTES, draw))
        return self._log, flusher

    def let_go(self) -> None:
        """As the kernel does for a process that ends."""
        for segment in self._log.segments if self._log is not None else ():
            segment.file.close()
        self._log = None


@pytest.fixture(params=["memory", "simulated disk", "real disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogPlace]:
    if request.param == "memory":
        yield InMemory()
    elif request.param == "simulated disk":
        yield InSegments(SimulatedDisk())
    else:
        vfs = RealVfs(tmp_path)
        real = InSegments(vfs)
        yield real
        real.let_go()
        vfs.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_log_keeps_the_rule(rule: Rule, place: LogPlace) -> None:
    rule(place)


# -- the suite itself --------------------------------------------------------------------------


class CutsTooLittle(MemoryLog):
    def truncate(self, first: Index) -> None:
        super().truncate(Index(first + 1))


class TrimsTooMuch(MemoryLog):
    def trim(self, first: Index) -> None:
        super().trim(Index(first + 1))


class ForgetsTheLast(MemoryLog):
    def append(self, entries: tuple[Entry, ...]) -> None:
        super().append(entries if len(entries) < 3 else entries[:-1])


class GivesMoreThanAsked(MemoryLog):
    def frames(self, start: Index, stop: Index, bytes_max: int) -> list[bytes]:
        return super().frames(start, stop, bytes_max + 5_000)


class FindsTheEntryBefore(MemoryLog):
    def index_at_offset(self, offset: int) -> Index:
        return Index(super().index_at_offset(offset) - 1)


@pytest.mark.parametrize(
    "broken", [CutsTooLittle, TrimsTooMuch, ForgetsTheLast, GivesMoreThanAsked, FindsTheEntryBefore]
)
def test_a_log_that_breaks_a_rule_is_caught(broken: type[MemoryLog]) -> None:
    assert [rule.__name__ for rule in RULES if not keeps(rule, InMemory(broken()))]


def test_a_vote_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MemoryFlusher.plan

    def forgetful(self: MemoryFlusher, flush: Flush) -> Iterator[str]:
        record = self._log.record
        yield from plan(self, flush)
        self._log.record = record

    monkeypatch.setattr(MemoryFlusher, "plan", forgetful)
    broken = [rule.__name__ for rule in RULES if not keeps(rule, InMemory())]
    assert "a_vote_is_kept_with_the_log" in broken


def keeps(rule: Rule, place: LogPlace) -> bool:
    try:
        rule(place)
    except (AssertionError, LookupError, ReplicaHalted):
        return False
    return True
