"""Flips every bit of a small store and cuts it at every byte, one fault at a time: no fault may go
unnoticed.

``python -m verification.exhaustive [--sample N]``

Two stores of some 64 KiB, one of a node that crashed and one that was stopped in order. After each
fault the log is opened and read back. Every entry that was proved to be durable must be there, or
the node must know that it is lost; and no byte may be read that was not written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.batch import encode_batch
from quorate.entry import Entry, make_entry
from quorate.entry_body import pack_batches
from quorate.errors import Corrupt, QuorateError, ReplicaHalted
from quorate.storage.flusher import Flush, Flusher
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    PAGE,
    SPARE,
    Block,
    CleanMark,
    LogId,
    block_seed,
    segment_name,
)
from quorate.storage.recovery.open import open_log
from quorate.types import EntryKind, Index, NodeId, Position, Term
from verification.disk.inode import KEPT, LOST
from verification.disk.simulated import SimulatedDisk
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment
    from quorate.types import VoteRecord

__all__ = [
    "IDENTITY",
    "STORES",
    "Finding",
    "Original",
    "examine",
    "judge",
    "main",
    "opened",
    "original",
]

SEGMENT_BYTES = 6 * PAGE
DISK_BYTES = 1 << 20
IDENTITY = LogId(7, b"exhaustive      ")
STORES = ("crashed", "stopped")
# The number of places of a file that one task covers.
CHUNK_PLACES = 512
FAILURES_SHOWN_MAX = 20
VERDICTS = ("harmless", "detected", "torn", "wrong", "lost")


# -- the stores ----------------------------------------------------------------------------------


class Original(NamedTuple):
    """A store before a fault is applied."""

    disk: SimulatedDisk
    # The frame of each entry, by index, from the first entry that is there.
    frames: dict[int, bytes]
    positions: dict[int, Position]
    # The last entry that the files prove to be durable.
    proved: int
    record: VoteRecord

    @property
    def last(self) -> int:
        return max(self.frames)

    @property
    def files(self) -> dict[str, bytearray]:
        return self.disk.durable

    def file(self, name: str) -> bytes:
        return bytes(self.disk.durable[name])

    def broken(self, name: str, data: bytearray) -> SimulatedDisk:
        """The same store, with ``data`` in the file ``name``."""
        twin = self.disk.copy()
        twin.files[name].content, twin.files[name].durable = data, data.copy()
        return twin


class _WritingNode:
    """A node that writes one log. Its entries are drawn from one seed."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(DISK_BYTES)
        self._random = Random("exhaustive")
        self._term = Term(1)
        self.log, self.flusher = self._open()

    def _open(self) -> tuple[SegmentLog, Flusher]:
        return complete(open_log(self.disk, IDENTITY, SEGMENT_BYTES, self._draw_nonce))

    def _draw_nonce(self) -> int:
        return self._random.getrandbits(64)

    def vote(self, term: int, vote: str) -> None:
        self._term = Term(term)
        self._run(Flush(0, vote=(self._term, NodeId(vote))))

    def append(self, sizes: list[int], *, committed: int = 0, cut: int | None = None) -> None:
        """Append entries of about ``sizes`` bytes in one flush; before, drop those from ``cut``
        on."""
        before = self.log.last if cut is None else self.log.position(Index(cut - 1))
        entries = []
        for size in sizes:
            entries.append(self._entry(before, size))
            before = entries[-1].position
        truncate_from = Index(cut) if cut is not None else None
        self._run(Flush(0, None, truncate_from, tuple(entries), Index(committed)))

    def crash(self) -> None:
        """Lose power in the middle of a flush: its last page does not arrive."""
        self.append([PAGE])
        newest = self.log.segments[-1]
        newest.file.truncate(newest.end - PAGE)
        newest.file.allocate(newest.header.capacity)
        self.log, self.flusher = self._open()

    def run(self, plan: Iterator[str]) -> None:
        for _ in plan:
            pass

    def _run(self, flush: Flush) -> None:
        self.run(self.flusher.plan(flush))
        self.run(self.flusher.chores(flush.committed))

    def _entry(self, before: Position, size: int) -> Entry:
        batch = encode_batch([self._random.randbytes(size), b""], times=before.index)
        return make_entry(
            before, self._term, EntryKind.DATA, pack_batches([(batch, 2)]),
            base_offset=2 * before.index, count=2, append_time=1000 * before.index, runs=1,
        )  # fmt: skip


def opened(disk: SimulatedDisk) -> tuple[SegmentLog, Flusher]:
    """Open ``disk`` as a node does that starts there."""
    return complete(open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 7))


@cache
def original(store: str) -> Original:
    """Make one of the ``STORES``: a sealed segment, one that was only rolled, and the newest."""
    node = _WritingNode()
    node.vote(1, "n1")
    for _ in range(3):  # the first segment, which is trimmed below
        node.append([900, 700, 1100])
    node.append([1000, 30, 1000, 200, 30], committed=9)
    node.append([5000])
    sealed = node.log.last.index
    node.append([800] * 3, committed=sealed)  # rolls; the chores after it seal
    node.run(node.flusher.trim(Index(10)))
    node.append([300] * 6, committed=sealed)
    node.vote(3, "n2")
    node.append([1500], committed=sealed, cut=sealed + 6)
    node.crash()  # in the first block of the next segment
    node.append([30, 2000, 500], committed=sealed)
    node.append([400, 400], committed=sealed)
    if store == "stopped":
        node.run(node.flusher.close(sealed))
    node.disk.unlink(SPARE)  # the spare holds no entry
    node.disk.power_cut(lambda: KEPT)
    return _described(node.disk)


def _described(disk: SimulatedDisk) -> Original:
    log, _ = opened(disk.copy())
    first, following = log.first, Index(log.last.index + 1)
    frames = dict(enumerate(map(bytes, log.frames(first, following, 1 << 30)), first))
    positions = {index: log.position(Index(index)) for index in range(first - 1, following)}
    newest = log.segments[-1]
    durable_end = _durable_end(disk.durable, newest)
    unproved = sum(end > durable_end for end in newest.rows.ends)
    return Original(disk, frames, positions, log.last.index - unproved, log.record)


def _durable_end(files: dict[str, bytearray], newest: Segment) -> int:
    """The highest index that a block of ``newest``, or the mark of a clean stop, names as
    durable."""
    data = files[segment_name(newest.number)]
    ends = [PAGE]
    for position in range(PAGE, len(data), PAGE):
        seed = block_seed(newest.header.nonce, position)
        block = Block.decode(data[position : position + BLOCK_BYTES], seed)
        if block is not None:
            ends.append(block.durable_end)
    mark = CleanMark.decode(files.get(CLEAN, bytearray()), IDENTITY)
    return max(*ends, mark.end if mark is not None else 0)


# -- one fault -----------------------------------------------------------------------------------


class Finding(NamedTuple):
    verdict: str
    why: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict in ("wrong", "lost")


def examine(whole: Original, disk: SimulatedDisk, *, go_on: bool = False) -> Finding:
    """Open ``disk``, a broken ``whole``; with ``go_on`` also cut its power, append, open again."""
    try:
        log, flusher = opened(disk)
        finding = judge(whole, log)
        if go_on and not finding.bad:
            return _after(whole, disk, log, flusher) or finding
    except (ReplicaHalted, QuorateError) as refusal:
        return Finding("detected", f"refused: {refusal}")
    except Exception as error:  # noqa: BLE001  # every undocumented error is a finding
        return Finding("wrong", f"undocumented {error!r}")
    return finding


def judge(whole: Original, log: SegmentLog) -> Finding:
    """Compare the log that was opened with the entries that were written."""
    last, record = log.last, log.record
    if (record.term, record.vote) != (whole.record.term, whole.record.vote):
        return Finding("wrong", f"votes {record.vote} in term {record.term}")
    if whole.positions.get(last.index) != last:
        return Finding("wrong", f"the log ends at {last}, where it never stood")
    unreadable = False
    for index, frame in _read(log):
        unreadable = unreadable or frame is None
        if frame is not None and frame != whole.frames.get(index):
            return Finding("wrong", f"entry {index} reads as another entry")
    if last.index < whole.proved and not record.unsure:
        return Finding("lost", f"ends at entry {last.index}, not at {whole.proved}, and is sure")
    if log.damage or record.unsure or unreadable:
        return Finding("detected")
    if log.first > min(whole.frames):
        return Finding("lost", f"begins at entry {log.first}, without a report")
    return Finding("harmless" if last.index == whole.last else "torn")


def _read(log: SegmentLog) -> Iterator[tuple[int, bytes | None]]:
    """Yield every entry; None for an entry that is refused."""
    following = Index(log.last.index + 1)
    try:
        if log.first < following:
            yield from enumerate(map(bytes, log.frames(log.first, following, 1 << 30)), log.first)
    except Corrupt:
        for index in range(log.first, following):
            try:
                yield index, bytes(log.frames(Index(index), Index(index + 1), 1)[0])
            except Corrupt:
                yield index, None


def _after(
    whole: Original, disk: SimulatedDisk, log: SegmentLog, flusher: Flusher
) -> Finding | None:
    """The disk of the store later: at once without power, and after one more acknowledged entry."""
    finding = judge(whole, _after_power_cut(disk))
    if finding.bad:
        return Finding(finding.verdict, f"at the second open: {finding.why}")
    before = log.last
    entry = make_entry(before, log.record.term, EntryKind.NOOP, append_time=1 << 40)
    for _ in flusher.plan(Flush(0, entries=(entry,))):
        pass
    frames = {index: frame for index, frame in whole.frames.items() if index <= before.index}
    frames[entry.index] = entry.header
    positions = {**whole.positions, entry.index: entry.position}
    grown = whole._replace(frames=frames, positions=positions, proved=entry.index)
    finding = judge(grown, _after_power_cut(disk))
    if finding.bad:
        return Finding(finding.verdict, f"after one more entry: {finding.why}")
    return None


def _after_power_cut(disk: SimulatedDisk) -> SegmentLog:
    twin = disk.copy()
    twin.power_cut(lambda: LOST)
    return opened(twin)[0]


# -- all of them ---------------------------------------------------------------------------------


class Task(NamedTuple):
    """A share of the faults: bytes of one file, to flip each bit in or to cut the file at."""

    store: str
    name: str
    kind: str
    places: tuple[int, ...]


@dataclass(slots=True)
class FaultTally:
    verdicts: Counter[str]
    # The problems found, and the places of the faults that caused them.
    failures: dict[str, list[str]]


def carry_out(task: Task) -> FaultTally:
    """Apply the faults of one task, in a process of its own."""
    whole = original(task.store)
    data = whole.files[task.name]
    tally = FaultTally(Counter(), {})
    for place in task.places:
        for where, broken, go_on in _broken(task.kind, data, place):
            finding = examine(whole, whole.broken(task.name, broken), go_on=go_on)
            tally.verdicts[finding.verdict] += 1
            if finding.bad:
                text = f"{task.store} {task.name}: {finding.verdict}: {finding.why}"
                tally.failures.setdefault(text, []).append(where)
    return tally


def _broken(kind: str, data: bytearray, place: int) -> Iterator[tuple[str, bytearray, bool]]:
    """Yield ``data`` with each fault at ``place``; one of eight is also followed further."""
    if kind == "cut":
        yield f"cut at {place}", data[:place], place % 8 == 0
        return
    for bit in range(8):
        flipped = data.copy()
        flipped[place] ^= 1 << bit
        yield f"byte {place} bit {bit}", flipped, bit == place % 8


def tasks(sample: int | None) -> list[Task]:
    """All faults of all stores, in tasks; with ``sample`` about so many faults, spread evenly."""
    total = 9 * sum(len(data) for name in STORES for data in original(name).files.values())
    stride = max(1, total // sample) if sample else 1
    found = []
    for store in STORES:
        for name, data in sorted(original(store).files.items()):
            for kind in ("flip", "cut"):
                # An odd step, so that a sample does not see the same place of every structure.
                places = tuple(range(0, len(data), stride | 1))
                parts = range(0, len(places), CHUNK_PLACES)
                found += [
                    Task(store, name, kind, places[start : start + CHUNK_PLACES]) for start in parts
                ]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.exhaustive")
    parser.add_argument("--sample", type=int, metavar="N", help="try about N faults, not all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    todo = tasks(parsed.sample)
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    failures: dict[str, list[str]] = {}
    with ProcessPoolExecutor(max_workers=max(1, parsed.jobs)) as pool:
        for task, tally in zip(todo, pool.map(carry_out, todo), strict=True):
            row = rows.setdefault((task.store, task.name, task.kind), Counter())
            row.update(tally.verdicts)
            for text, places in tally.failures.items():
                failures.setdefault(text, []).extend(places)
    return _report(rows, failures, time.monotonic() - began)


def _report(
    rows: dict[tuple[str, str, str], Counter[str]],
    failures: dict[str, list[str]],
    seconds: float,
) -> int:
    heads = "".join(f"{verdict:>10}" for verdict in VERDICTS)
    print(f"{'store':8} {'file':26} {'fault':5}{heads}")
    for (store, name, kind), verdicts in rows.items():
        cells = "".join(f"{verdicts[verdict]:10}" for verdict in VERDICTS)
        print(f"{store:8} {name:26} {kind:5}{cells}")
    for text, places in [*failures.items()][:FAILURES_SHOWN_MAX]:
        print(f"{text} ({len(places)} places, the first: {places[0]})")
    counts = Counter[str]()
    faults = Counter[str]()
    for (_, _, kind), verdicts in rows.items():
        counts += verdicts
        faults[kind] += verdicts.total()
    print(f"{faults.total()} faults in {seconds:.0f} s, {faults.total() / seconds:.0f} a second")
    print(
        f"exhaustive: flips={faults['flip']} truncations={faults['cut']} "
        f"wrong={counts['wrong']} lost={counts['lost']}"
    )
    return 1 if counts["wrong"] or counts["lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
