"""Spoils a log in many ways, crashes the open that finds it at every step, and opens again.

A durable entry that a part of the disk proves must be there, be reported as damaged, or leave its
node unsure. It is never silently forgotten. A log of which nothing is spoilt is never called
damaged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import HEADER_BYTES
from quorate.errors import Corrupt, Damaged, DiskFailed
from quorate.storage.blocks import Gap, walk
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    PAGE,
    VOTE_COPIES,
    SegmentHeader,
    newest_vote,
    pages,
)
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries
from quorate.types import Index
from verification.disk.crashes import crash_states, power_cut
from verification.disk.small import IDENTITY, OpenedDisks, grow, open_disk, opening, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.storage.damage import Damage
    from quorate.storage.log import SegmentLog
    from quorate.storage.vfs import Vfs
    from verification.disk.lives import Life
    from verification.disk.simulated import SimulatedDisk

    Spoil = Callable[[SimulatedDisk], None]

__all__ = ["Rot", "Spoiled", "Unnoticed", "rots", "spoil_all"]

GARBAGE = b"\xa5" * PAGE


class Unnoticed(Exception):
    """An open forgot an entry that was durable, or complains about a part that is whole."""


# The errors with which an open may refuse a log. Every other error is a bug.
REFUSALS = (Damaged, DiskFailed)


class Rot(NamedTuple):
    """One way to spoil a disk."""

    name: str
    spoil: Spoil

    def together_with(self, other: Rot) -> Rot:
        """A rot that spoils both places."""

        def spoil(disk: SimulatedDisk) -> None:
            self.spoil(disk)
            other.spoil(disk)

        return Rot(f"{self.name} and {other.name}", spoil)


# -- ways to spoil a disk ----------------------------------------------------------------------


class _Block(NamedTuple):
    file: str
    position: int
    # The index of the entry before the block: a whole block proves every entry up to there.
    before: Index
    # Index, start and end of each frame.
    frames: tuple[tuple[Index, int, int], ...]


def _blocks(disk: SimulatedDisk) -> list[_Block]:
    """The blocks of a disk that is not spoilt."""
    found = []
    for name in disk.names():
        if not name.endswith(".segment"):
            continue
        file = disk.open(name)
        header = SegmentHeader.decode(file.read(0, PAGE))
        assert header is not None  # not spoilt
        for piece in walk(file, header.nonce, file.size()):
            if isinstance(piece, Gap):
                continue
            frames = tuple((one.header.position.index, one.start, one.stop) for one in piece.frames)
            found.append(_Block(name, piece.position, piece.block.before.index, frames))
    return found


def rots(disk: SimulatedDisk, older: dict[tuple[str, int], list[bytes]]) -> Iterator[Rot]:
    """Yield every way to spoil ``disk`` that is tried."""

    def written(file: str, start: int, data: bytes, what: str) -> Rot:
        size = len(disk.files[file].content)
        return Rot(
            f"{what} at {start} of {file}",
            lambda twin: twin.spoil(file, start, data[: size - start]),
        )

    blocks = _blocks(disk)
    newest = max(block.file for block in blocks)
    last = max(block.position for block in blocks if block.file == newest and block.frames)
    end = max(block.position for block in blocks if block.file == newest) + PAGE
    for what, byte in (("zeros", b"\0"), ("garbage", b"\xa5")):
        yield written(newest, last, byte * (end - last), f"{what} to the end")
    for file in sorted({block.file for block in blocks}):
        size = len(disk.files[file].content)
        for start in range(0, min(size, end + PAGE), PAGE):
            yield written(file, start, bytes(PAGE), "a page of zeros")
            yield written(file, start, GARBAGE, "a page of garbage")
            yield written(file, start, bytes(2 * PAGE), "two pages of zeros")
    for block in blocks:
        head = written(block.file, block.position, GARBAGE[:BLOCK_BYTES], "a bad head")
        yield head
        body = None
        for _, start, _ in block.frames:
            header = written(block.file, start, GARBAGE[:HEADER_BYTES], "a bad header")
            if body is not None:
                yield body.together_with(header)
            body = written(block.file, start + HEADER_BYTES, GARBAGE[:8], "a bad body")
            yield from (header, body, head.together_with(body))
    for (file, start), contents in sorted(older.items()):
        if file not in disk.files or start >= len(disk.files[file].content):
            continue
        for number, page in enumerate(contents):
            yield written(file, start, page, f"content {number} of before")
    for name in (*VOTE_COPIES, CLEAN):
        if name in disk.files:
            for start in range(0, len(disk.files[name].content), PAGE):
                yield written(name, start, GARBAGE[:40], "garbage")
            yield Rot(f"{name} is gone", lambda twin, name=name: twin.lose(name))  # type: ignore[misc]  # bound now
    for size in (last + 100, PAGE // 2):
        early = f"{newest} ends early, at {size}"
        yield Rot(early, lambda twin, size=size: twin.shorten(newest, size))  # type: ignore[misc]  # bound now
    yield Rot(f"{newest} is gone", lambda twin: twin.lose(newest))


# -- the verdict -------------------------------------------------------------------------------


class Spoiled:
    """A spoilt disk, and the log that an open of it must find."""

    def __init__(self, life: Life, whole: SimulatedDisk, rot: Rot) -> None:
        self.disk = whole.copy()
        rot.spoil(self.disk)
        self._life = life
        self._before = {name: bytes(inode.content) for name, inode in whole.files.items()}
        self._after = {name: bytes(inode.content) for name, inode in self.disk.files.items()}
        self._durable = {name: bytes(data) for name, data in whole.durable.items()}
        records = [newest_vote([whole.files[name].content], IDENTITY) for name in VOTE_COPIES]
        self._vote = next((record.term, record.vote) for record in records if record is not None)
        self._blocks = _blocks(whole)
        # The last entry that an unspoilt part of the disk proves to be durable.
        self._proved = self._find_proved(records[0] is not None and records[0].cutting > 0)
        # The last entry up to which no part is spoilt.
        self._intact = self._find_intact()

    def _same(self, name: str, start: int, stop: int) -> bool:
        return (
            name in self._after and self._before[name][start:stop] == self._after[name][start:stop]
        )

    def _find_proved(self, cutting: bool) -> Index:
        marked = CLEAN in self._before and self._same(CLEAN, 0, PAGE)
        if marked or cutting:
            return Index(self._life.durable)
        proved = Index(0)
        for block in self._blocks:
            start, stop = block.position, block.position + BLOCK_BYTES
            durable = self._durable[block.file][start:stop] == self._before[block.file][start:stop]
            if durable and self._same(block.file, start, stop):
                proved = max(proved, block.before)
        return min(proved, Index(self._life.durable))

    def _find_intact(self) -> Index:
        intact = Index(0)
        for block in self._blocks:
            if not self._same(block.file, 0, PAGE) or not self._same(
                block.file, block.position, block.position + BLOCK_BYTES
            ):
                return intact
            for index, start, stop in block.frames:
                if index > self._life.durable or not self._same(block.file, start, stop):
                    return intact
                intact = index
        return intact

    @property
    def _harmless(self) -> bool:
        """No page with entries is touched, and every file is as long as it was."""
        sizes = {name: len(data) for name, data in self._before.items() if name.endswith("segment")}
        return all(len(self._after.get(name, b"")) == size for name, size in sizes.items()) and all(
            self._same(block.file, 0, PAGE)
            and self._same(block.file, block.position, pages(block.frames[-1][2]))
            for block in self._blocks
            if block.frames
        )

    def check(self, disk: SimulatedDisk) -> None:
        """Open ``disk``, which a crash left of this one, and append to the log that is found."""
        try:
            log, flusher = open_disk(disk)
            self.judge(log)
        except REFUSALS as refusal:
            _demand(not self._harmless, f"a log that lost no entry is refused: {refusal}")
            return
        unsure, last = log.record.unsure, log.last
        more = grow(last, 50, term=log.record.term + 1)
        run(flusher.plan(Flush(1, entries=more)))
        power_cut(disk)
        log, _ = open_disk(disk)
        _demand(log.record.unsure == unsure, "the loss of the end is forgotten")
        _demand(
            log.last == more[-1].position, f"{log.last.index} is the last, not {last.index + 1}"
        )

    def judge(self, log: SegmentLog) -> None:
        """Raise Unnoticed unless every proved entry is there, reported, or the node is unsure."""
        record, life = log.record, self._life
        _demand(
            (record.term, record.vote) == self._vote or record.term > self._vote[0],
            f"the vote is {(record.term, record.vote)}, not {self._vote}",
        )
        reasons = [one for one in log.damage if self._was_spoilt(one)]
        # Entries without a confirmation are lost with the entries behind them.
        lost_from = {one.first for one in reasons if one.first <= one.last}
        strange = [
            str(one)
            for one in log.damage
            if one not in reasons and not (one.first <= one.last and one.last + 1 in lost_from)
        ]
        _demand(not strange, f"whole bytes count as damage: {strange}")
        _demand(log.last.index >= self._intact, f"{log.last.index} is the last of {self._intact}")
        if self._harmless:
            _demand(not record.unsure, "the node is unsure of a log that lost no entry")
        self._demand_kept(log.vfs)
        Recovered.of(log)
        stored = StoredEntries(log)
        for index in range(1, max(self._proved, log.last.index) + 1):
            if index > log.last.index:
                _demand(record.unsure, f"entry {index} is forgotten: the log ends with {log.last}")
                return
            try:
                (entry,) = stored.entries(Index(index), Index(index + 1))
            except Corrupt:
                lost = any(one.first <= index <= one.last for one in log.damage)
                _demand(lost, f"entry {index} is lost, and no report says so")
                continue
            right = life.entries[index - 1] if index <= len(life.entries) else None
            known = right is not None and entry.position == right.position
            _demand(known or record.unsure, f"entry {index} is {entry.position}, which is another")
            whole = known and entry == right
            without_body = index in log.segment(Index(index)).without_body
            _demand(whole or without_body or not known, f"entry {index} has other bytes")

    def _demand_kept(self, vfs: Vfs) -> None:
        """Raises Unnoticed if an open destroyed an entry in front of the first spoilt byte."""
        for block in self._blocks:
            for index, start, stop in block.frames:
                if index <= self._intact:
                    kept = vfs.open(block.file).read(start, stop - start)
                    whole = kept == self._before[block.file][start:stop]
                    _demand(whole, f"entry {index} was whole, and the open destroyed it")

    def _was_spoilt(self, damage: Damage) -> bool:
        """Whether ``damage`` has a reason: a rot before its end, or in another file."""
        for name, before in self._before.items():
            if not name.endswith(".segment"):
                continue
            stop = damage.stop + PAGE if name == damage.file else len(before)
            if not self._same(name, 0, stop) or len(self._after[name]) != len(before):
                return True
        return False


def _demand(condition: bool, problem: str) -> None:
    if not condition:
        raise Unnoticed(problem)


def spoil_all(life: Life, every: int = 1, rots_every: int = 1) -> OpenedDisks:
    """Spoil ``life`` in every way, or one of so many; crash the open of each in every way, and over
    every so many of the disks that this leaves, crash the next open, too."""
    outcome = OpenedDisks()
    disk, older = life.disk()
    for number, rot in enumerate(rots(disk, older)):
        if number % rots_every == 0:
            spoiled = Spoiled(life, disk, rot)
            for crash in _crashes(spoiled.disk):
                if outcome.crashed % every == every - 1:
                    for again in _crashes(crash[0]):
                        outcome.crashed_again += 1
                        _check(spoiled, again[0], f"{rot.name}; {crash[1]}; {again[1]}", outcome)
                outcome.crashed += 1
                _check(spoiled, crash[0], f"{rot.name}; {crash[1]}", outcome)
    return outcome


def _crashes(disk: SimulatedDisk) -> Iterator[tuple[SimulatedDisk, str]]:
    """Every crash of an open of ``disk``, which may refuse it at any time."""
    with suppress(*REFUSALS):
        for crash in crash_states(disk, opening):
            yield crash.disk, str(crash)


def _check(spoiled: Spoiled, disk: SimulatedDisk, how: str, outcome: OpenedDisks) -> None:
    try:
        spoiled.check(disk)
    except (Unnoticed, LookupError, OSError, ValueError, AssertionError) as problem:
        outcome.problems.append(f"{how}: {problem!r}")
