"""A node's data directory, read in place: without a cluster, a copy or a write.

No node may work there meanwhile. One replica alone knows less than a cluster: it is read up to the
last entry that its own files prove to be committed. The latest acknowledged records may lie behind
that.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import ExitStack, closing, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.client.read.arrow import record_batches_of
from quorate.client.read.reading import Piece
from quorate.entry import decode_entry, parse_header
from quorate.entry_body import unpack_chunks, view_entry
from quorate.errors import Corrupt, InvalidArgument, LogNotFound, Trimmed, WrongDirectory
from quorate.spark.read.columns import shaped
from quorate.spark.read.planning import LogExtent, recreated
from quorate.spark.worker import begin_task
from quorate.storage.directory import IDENTITY, LOGS, Identity, hold_still, log_name
from quorate.storage.layout import VOTE_COPIES, LogId, newest_vote
from quorate.storage.log import SegmentLog
from quorate.storage.manifest import MANIFEST, LogState, Manifest
from quorate.storage.recovery.inventory import read_mark, survey
from quorate.storage.recovery.result import Recovered
from quorate.storage.vfs import RealVfs
from quorate.types import EntryKind, Index, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from quorate.spark.read.options import ReadOptions
    from quorate.spark.read.planning import TaskRange
    from quorate.storage.segment import Segment

__all__ = ["StoredLog", "read_stored", "stored_logs"]

READ_BYTES = 1 << 20
# The first character in the names of a node's internal logs, such as the list of logs.
OWN = "/"


@contextmanager
def stored_logs(path: str, wanted: Sequence[str]) -> Iterator[list[StoredLog]]:
    """The logs of ``wanted``, by name or pattern. Raises LogNotFound if one of them fits no log."""
    directory = Path(path)
    if not (directory / IDENTITY).is_file():
        raise InvalidArgument(f"path = {path!r} is not the data directory of a node")
    with ExitStack() as stack:
        stack.enter_context(hold_still(directory))
        identity = Identity.decode((directory / IDENTITY).read_bytes())
        if identity is None:
            raise WrongDirectory(f"{directory / IDENTITY} is damaged")
        lives = _lives(directory)
        names = sorted(name for name in lives if any(fnmatchcase(name, one) for one in wanted))
        missing = [one for one in wanted if not any(fnmatchcase(name, one) for name in names)]
        if missing:
            have = ", ".join(sorted(lives)) or "none"
            raise LogNotFound(f"{path} has no log {', '.join(missing)}; the logs there: {have}")
        yield [
            stack.enter_context(_opened(directory, name, lives[name], identity.storage))
            for name in names
        ]


def read_stored(
    task_range: TaskRange, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of ``task_range``, read from the files."""
    assert options.path is not None  # for the type checker: this is no cluster
    begin_task()
    with stored_logs(options.path, [task_range.log]) as [log]:
        if log.incarnation != task_range.incarnation:
            raise recreated(task_range.log, task_range.incarnation, log.incarnation)
        pieces = log.pieces(task_range.start, task_range.stop)
        batches = (batch for piece in pieces for batch in record_batches_of([piece]))
        yield from shaped(batches, task_range, schema)


def _lives(directory: Path) -> dict[str, int]:
    """The incarnation of each log, by its name."""
    place = directory / MANIFEST
    manifest = Manifest.decode(place.read_bytes()) if place.is_file() else None
    if manifest is None:
        raise WrongDirectory(f"{place} is missing or damaged: nothing else tells names")
    return {
        life.name: incarnation
        for incarnation, life in manifest.logs.items()
        if life.state is LogState.MADE and not life.name.startswith(OWN)
    }


@contextmanager
def _opened(directory: Path, name: str, incarnation: int, storage: bytes) -> Iterator[StoredLog]:
    place, identity = directory / LOGS / log_name(incarnation), LogId(incarnation, storage)
    with closing(RealVfs(place, read_only=True)) as vfs:
        record = _record(vfs, identity)
        seen = survey(vfs, identity, record, read_mark(vfs, identity))
        log = SegmentLog(vfs, identity, record, seen.segments)
        log.damage = seen.damage
        try:
            yield StoredLog(name, log_name(incarnation), log)
        finally:
            log.close()


def _record(vfs: RealVfs, identity: LogId) -> VoteRecord:
    """The newest vote record: it tells which entries the log must have, and which were being cut
    off."""
    copies = [_file(vfs, name) for name in VOTE_COPIES if name in vfs.names()]
    return newest_vote(copies, identity) or VoteRecord(0, Term(0), None, 0)


def _file(vfs: RealVfs, name: str) -> bytes:
    with closing(vfs.open(name)) as file:
        return file.read(0, file.size())


class StoredLog:
    """A log as its files have it, up to the last entry that they prove to be committed."""

    def __init__(self, name: str, incarnation: str, log: SegmentLog) -> None:
        self.name = name
        self.incarnation = incarnation
        self._log = log
        found = Recovered.of(log)
        self._committed = found.committed
        self._end = found.next_offset

    def extent(self) -> LogExtent:
        segments = self._log.segments
        first = segments[0].header.base_offset if segments else 0
        return LogExtent(self.incarnation, first, self._end)

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset that was appended at ``timestamp_us`` or later; the end if none was."""
        segments = self._log.segments
        place = bisect_left(segments, timestamp_us, key=_last_time)
        if place == len(segments):
            return self._end
        rows = segments[place].rows
        row = bisect_left(rows.times, timestamp_us)
        return min(rows.offsets[row], self._end) if row < len(rows.times) else self._end

    def record_bytes(self, start: int, stop: int) -> float:
        """The mean bytes of a record in the whole log, whichever range is asked for."""
        seen = self.extent()
        return sum(segment.end for segment in self._log.segments) / max(1, seen.end - seen.first)

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """The entries that have records from ``start`` to before ``stop``."""
        log, seen = self._log, self.extent()
        if start < seen.first:
            raise Trimmed(f"offset {start} is gone, {self.name} begins with {seen.first}")
        index, offset = log.index_at_offset(start), start
        while offset < stop:
            if index > self._committed:
                raise Corrupt(f"{self.name} has no offset {offset} that is proved committed")
            for frame in log.frames(index, Index(self._committed + 1), READ_BYTES):
                index = Index(index + 1)
                for piece in self._pieces_of(frame, start, stop):
                    yield piece
                    offset = piece.end
                if offset >= stop:
                    return

    def _pieces_of(self, frame: memoryview, start: int, stop: int) -> Iterator[Piece]:
        """The pieces of one entry. The records of a publish are in the chunks that it names."""
        header = parse_header(frame)
        assert header is not None  # for the type checker: the header was checked when it was read
        offset = header.base_offset
        if header.kind == EntryKind.DATA:
            if offset < stop and offset + header.count > start:
                entry = view_entry(frame, header.append_time)
                yield Piece(entry, offset, offset + header.count, start, stop)
        elif header.kind == EntryKind.PUBLISH:
            chunks, _ = unpack_chunks(decode_entry(bytes(frame)))
            for chunk in chunks:
                if offset < stop and offset + chunk.records > start:
                    [staged] = self._log.frames(chunk.index, Index(chunk.index + 1), 1)
                    entry = view_entry(staged, header.append_time)
                    yield Piece(entry, offset, offset + chunk.records, start, stop)
                offset += chunk.records


def _last_time(segment: Segment) -> int:
    return segment.append_time
