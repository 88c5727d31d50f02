"""Data directories of real files: written as a node writes them, spoilt, and checked."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from quorate.entry import make_entry
from quorate.entry_body import pack_batches
from quorate.storage.directory import DataDirectory, log_name
from quorate.storage.flusher import Flush
from quorate.storage.manifest import MANIFEST, LogLife, LogState, Manifest, Member
from quorate.storage.offline.verify import verify
from quorate.storage.recovery.open import open_log
from quorate.types import EntryKind, Index, NodeId, Term
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from quorate.entry import Entry
    from quorate.storage.damage import Damage
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from quorate.storage.offline.report import LogReport

CLUSTER = "shop"
INCARNATION = 0xC0FFEE
SEGMENT_BYTES = 10 * 4096
# Microseconds: entry n was made n after it.
START = 1_700_000_000_000_000


@dataclass
class Writer:
    """One log of one node's directory, open."""

    directory: DataDirectory
    log: SegmentLog
    flusher: Flusher
    number: int = 0

    @staticmethod
    def open(
        path: Path,
        node: str = "n1",
        incarnation: int = INCARNATION,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Writer:
        random = Random(f"{node} {incarnation}")
        directory = DataDirectory.open(
            path, CLUSTER, node, draw_storage=lambda: random.randbytes(16)
        )
        vfs = directory.log_vfs(incarnation)
        identity = directory.log_id(incarnation)
        plan = open_log(vfs, identity, segment_bytes, lambda: random.getrandbits(64))
        log, flusher = complete(plan)
        note_made(directory, incarnation, log.record.boot)
        return Writer(directory, log, flusher)

    def entries(
        self, count: int, size: int = 700, term: int = 2, stamp: int = 0, time: int = START
    ) -> list[Entry]:
        """Data entries that continue the log, three records each; ``stamp`` tells twins apart."""
        before, newest = self.log.last, self.log.segments[-1] if self.log.segments else None
        offset = newest.next_offset if newest is not None else 0
        made = []
        for _ in range(count):
            index = before.index + 1
            batch = Random(f"{index} {stamp}").randbytes(size)
            entry = make_entry(
                before, Term(term), EntryKind.DATA, pack_batches([(batch, 3)]),
                base_offset=offset, count=3, append_time=time + index, runs=1,
            )  # fmt: skip
            made.append(entry)
            before, offset = entry.position, offset + 3
        return made

    def flush(
        self, entries: Iterable[Entry] = (), committed: int | None = None, **rest: object
    ) -> None:
        """One flush and the chores after it; all of it is committed unless told otherwise."""
        self.number += 1
        given = tuple(entries)
        last = given[-1].index if given else self.log.last.index
        proved = Index(last if committed is None else committed)
        flush = Flush(self.number, entries=given, committed=proved, **rest)  # type: ignore[arg-type]
        run(self.flusher.plan(flush))
        run(self.flusher.chores(proved))

    def vote(self, term: int, name: str | None) -> None:
        self.number += 1
        vote = NodeId(name) if name is not None else None
        run(self.flusher.plan(Flush(self.number, vote=(Term(term), vote))))

    def stop(self, committed: int | None = None) -> None:
        """As a node that is told to stop."""
        proved = Index(self.log.last.index if committed is None else committed)
        run(self.flusher.close(proved))
        self.crash()

    def crash(self) -> None:
        """As a node that is killed."""
        for segment in self.log.segments:
            segment.file.close()
        self.log.vfs.close()  # type: ignore[attr-defined]  # a real one
        self.directory.close()


def note_made(directory: DataDirectory, incarnation: int, boot: int) -> None:
    """Write the manifest that a node writes before it opens a log."""
    path, node = directory.path / MANIFEST, directory.identity.node
    name = "orders" if incarnation == INCARNATION else f"log-{incarnation:x}"
    manifest = Manifest.decode(path.read_bytes()) if path.exists() else Manifest({})
    assert manifest is not None
    manifest.nodes[node] = Member("127.0.0.1:7401")
    manifest.logs[incarnation] = LogLife(LogState.MADE, START, (node,), name, boot)
    path.write_bytes(manifest.encode())


def run(plan: Iterable[str]) -> None:
    for _ in plan:
        pass


def written(path: Path, node: str = "n1", *, clean: bool = True) -> Path:
    """A directory with sealed, rolled and newest segments, one of them cut and written again."""
    writer = Writer.open(path, node)
    writer.vote(2, "n2")
    for _ in range(12):
        writer.flush(writer.entries(5), committed=max(0, writer.log.last.index - 10))
    cut = Index(writer.log.last.index - 1)
    writer.flush(truncate_from=cut, committed=30)
    for _ in range(3):
        writer.flush(writer.entries(2, term=3), committed=30)
    if clean:
        writer.stop(committed=30)
    else:
        writer.crash()
    return path


def log_path(path: Path, incarnation: int = INCARNATION) -> Path:
    return path / "logs" / log_name(incarnation)


def copied(path: Path, twin: Path) -> None:
    """The directory once more, to be spoilt."""
    shutil.copytree(path, twin)


def sample_bits(path: Path, count: int, files: str = "*") -> Iterator[tuple[Path, int]]:
    """Bits of every file but the lock, the same ones every time."""
    random = Random(f"{count} {files}")
    for file in sorted(path.rglob(files)):
        if file.is_file() and file.name != "lock":
            size = 8 * file.stat().st_size
            for bit in sorted(random.sample(range(size), min(count, size))):
                yield file, bit


def flip(file: Path, bit: int) -> None:
    """Turn one bit of a file; turning it again makes it whole."""
    with file.open("r+b") as data:
        data.seek(bit // 8)
        (byte,) = data.read(1)
        data.seek(bit // 8)
        data.write(bytes([byte ^ 1 << bit % 8]))


def report_of(path: Path) -> LogReport:
    """What the check says of the only log in ``path``."""
    [directory] = verify([path]).directories
    [log] = directory.logs
    return log


def only(found: list[Damage]) -> Damage:
    [damage] = found
    return damage


def spoilt(path: Path, place: Path, name: str, position: int, data: bytes = b"\xa5") -> LogReport:
    """The report on a copy of ``path`` with ``data`` written into one file."""
    copied(path, place)
    with (log_path(place) / name).open("r+b") as file:
        file.seek(position)
        file.write(data)
    return report_of(place)
