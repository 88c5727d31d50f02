"""An open segment file: its entries, their places, and reads of them.

Every frame is checked against its CRCs each time it is read: bytes that the disk spoiled after they
were written are found then and never handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from quorate.entry import HEADER_BYTES, entry_without_body, is_frame, parse_header
from quorate.errors import Corrupt
from quorate.storage.buffered import BufferedFile
from quorate.storage.index import LoadedRows
from quorate.storage.layout import PAGE, Footer, segment_name
from quorate.storage.segment_scan import Fault
from quorate.types import Index, Position

if TYPE_CHECKING:
    from quorate.entry import Entry, Header
    from quorate.storage.layout import SegmentHeader
    from quorate.storage.rows import Rows
    from quorate.storage.segment_scan import Scan
    from quorate.storage.vfs import File

__all__ = ["Segment"]


class Segment:
    """One segment of a log. The newest segment takes blocks; an older one is sealed when all of its
    entries are committed."""

    __slots__ = (
        "_loaded", "_rows", "_seen", "append_time", "capacity", "committed", "end", "file",
        "footer", "guessed", "header", "holes", "indexed", "last", "lost", "memberships",
        "next_offset", "synced", "unread", "unreadable", "without_body", "write_number",
    )  # fmt: skip

    def __init__(self, header: SegmentHeader, file: File, rows: Rows | LoadedRows) -> None:
        self.header = header
        self.file = file
        # The places of the entries. None in a sealed segment that has an index file: then
        # ``_loaded`` loads the rows on demand, and ``_seen`` refers to those that it loaded last.
        self._rows = None if isinstance(rows, LoadedRows) else rows
        self._loaded = rows if isinstance(rows, LoadedRows) else None
        self._seen: ref[Rows] | None = None
        # Position of the last entry, the offset after its last record, and its append time. In an
        # empty segment they are those of the entry before.
        self.last: Position = header.before
        self.next_offset = header.base_offset
        self.append_time = header.append_time
        # Place of the next block. Invariant: its page holds no durable frame.
        self.end = PAGE
        # Size up to which the segment may grow; less than was allocated if the room of a cut could
        # not be allocated again.
        self.capacity = header.capacity
        # Write number of the newest block.
        self.write_number = 0
        # The highest index that a block claimed to be committed when this node opened the log.
        self.committed = Index(0)
        # The membership entries that were found or named when this node opened the log.
        self.memberships: set[Index] = set()
        # Not None once the segment is sealed and cannot change any more.
        self.footer: Footer | None = None
        # Whether the footer is known to be durable: a footer that an open found may be in the page
        # cache only, and the log does not need it.
        self.synced = False
        # Whether the segment has a whole index file, as far as is known.
        self.indexed = False
        # Entries whose body is bad: never served. Threads add and remove without a lock, so a loop
        # over the set has to run over a copy.
        self.without_body: set[Index] = set()
        # Entries of which not even the header is left, as far as is known; the same holds for
        # threads.
        self.holes: set[Index] = set()
        # Whether there are holes.
        self.lost = False
        # Entries that the disk did not give back when they were read last: they are not read until
        # a second look has read them. They may be whole, so they do not count as lost.
        self.unread: set[Index] = set()
        # Why the rows, and so all entries, cannot be read now; empty if they can.
        self.unreadable = ""
        # Whether the rows come from a walk in which the disk did not give back all pages: then no
        # hole is proved.
        self.guessed = False

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def first(self) -> Index:
        return Index(self.header.before.index + 1)

    @property
    def rows(self) -> Rows:
        """The rows of the segment. A sealed segment does not keep them in memory: the caller holds
        a reference as long as it uses them."""
        return self.rows_at_hand() or self.load()

    def load(self) -> Rows:
        """Load the rows of a sealed segment, even if that takes a walk through all of it."""
        assert self._loaded is not None  # for the type checker
        rows = self._loaded.load(self)
        self._seen = ref(rows)
        return rows

    def rows_at_hand(self) -> Rows | None:
        """The rows of the segment; None if only a walk through all of it would find them."""
        rows = self._rows
        if rows is None and self._seen is not None:
            rows = self._seen()
        if rows is None:
            assert self._loaded is not None  # for the type checker
            rows = self._loaded.load_indexed(self)
            if rows is not None:
                self._seen = ref(rows)
        return rows

    def release(self, loaded: LoadedRows) -> None:
        """Drop the rows from memory: the index file is there, and the segment never changes."""
        # In this order: a reader in another thread that finds no rows finds their loader.
        self._loaded = loaded
        self._rows = None

    def take(self, found: Scan) -> None:
        """Take over the result of a scan of the whole segment: no index file says which entries are
        lost.

        The segment must be sealed: the writer may add rows to another one meanwhile.
        """
        self._rows = found.rows
        self.without_body = found.without_body
        self.note_lost(found.rows)

    def note_lost(self, rows: Rows) -> None:
        """Note the entries that a scan of the whole segment did not find as holes."""
        self.holes = rows.holes | set(map(Index, range(rows.last + 1, self.last.index + 1)))
        self.lost = bool(self.holes)

    def forget_walk(self) -> None:
        """Forget that the rows cannot be read; and the rows of a walk in which the disk did not
        give back all pages, with their holes."""
        self.unreadable = ""
        if self.guessed:
            self._seen = None
            self.holes = set()
            self.lost = self.guessed = False

    @property
    def claimed(self) -> Index:
        """The highest index that this segment proved committed when the log was opened: only
        committed entries are sealed."""
        return self.last.index if self.footer is not None else self.committed

    @property
    def room(self) -> int:
        """Bytes that can still be written into the segment: whole pages, as every block is."""
        return 0 if self.footer is not None else max(0, self.capacity - self.end) // PAGE * PAGE

    def position(self, index: Index) -> Position:
        """The position of ``index``, an entry of this segment or the one before it."""
        return self.edge(index) or self._header(index)[1].position

    def edge(self, index: Index) -> Position | None:
        """The position of ``index`` if it is known without a read of the file, else None."""
        if index == self.last.index:
            return self.last
        return self.header.before if index == self.header.before.index else None

    def _header(self, index: Index) -> tuple[bytes, Header]:
        """The header of the frame of ``index``. Raises Corrupt if it is bad, or that of an entry
        that stood in its place before."""
        rows = self.rows
        if index > rows.last:
            raise self._corrupt(index, self.end)
        start, _ = rows.frame(index)
        data = self.file.read(start, HEADER_BYTES)
        header = parse_header(data)
        if header is None or not _is_of(header, index, rows.chain(index)):
            raise self._corrupt(index, start)
        return data, header

    def chain_before(self, index: Index) -> int | None:
        """The chain of the entry before ``index``, which is an entry of this segment; None if the
        entry before it is lost."""
        rows, before = self.rows, Index(index - 1)
        if before < rows.first:
            return self.header.before.chain
        start, end = rows.frame(before)
        return rows.chain(before) if end > start else None

    def frames(self, start: Index, stop: Index) -> list[memoryview]:
        """The stored frames of entries start..stop-1, each checked; views of one buffer."""
        rows = self.rows
        low, high = start - rows.first, stop - rows.first
        starts, ends, chains = rows.starts[low:high], rows.ends[low:high], rows.chains[low:high]
        begin = starts[0]
        data = memoryview(self.file.read(begin, ends[-1] - begin))
        frames = []
        for index, first, last, chain in zip(range(start, stop), starts, ends, chains, strict=True):
            frame = data[first - begin : last - begin]
            if not is_frame(frame, index, chain):
                raise self._corrupt(Index(index), first)
            frames.append(frame)
        return frames

    def spoiled(self, start: Index, stop: Index) -> list[Fault]:
        """The bad entries among start..stop-1, which are settled, that were not known to be bad.
        Those of which the header is left are noted as without their body, the others as holes.
        Those that the disk does not give back are noted as unread: their bytes say nothing."""
        faults, rows = [], self.rows
        window = BufferedFile(self.file, self.end, durable=True)
        for index in map(Index, range(start, stop)):
            begin, end = rows.frame(index)
            # A row without bytes is that of a hole, even if the walk that found it is forgotten.
            if index in self.holes or begin == end:
                continue
            data, chain = window[begin:end], rows.chain(index)
            if is_frame(data, index, chain):
                continue
            if window.refuses(begin, end):
                self.unread.add(index)
                continue
            header = parse_header(data)
            if header is not None and _is_of(header, index, chain):
                if index in self.without_body:
                    continue
                self.without_body.add(index)
                what = "the body is bad"
            else:
                self.without_body.discard(index)
                self.holes.add(index)
                self.lost = True
                what = "the header is bad" if header is None else "another entry is in its place"
            faults.append(Fault(begin, end, index, index, what))
        return faults

    def bad_from(self, index: Index) -> Index | None:
        """The first entry from ``index`` on that is known to be bad or unread."""
        bad = (one for one in (*self.without_body, *self.holes, *self.unread) if one >= index)
        return min(bad, default=None)

    def entry_without_body(self, index: Index) -> Entry:
        """An entry whose body is bad, made of its header."""
        return entry_without_body(*self._header(index))

    def _corrupt(self, index: Index, start: int) -> Corrupt:
        return Corrupt(
            f"entry {index} at byte {start} of {segment_name(self.number)} is not what was written"
        )


def _is_of(header: Header, index: Index, chain: int) -> bool:
    """Whether ``header`` is that of the entry ``index`` with ``chain``."""
    return header.position.index == index and header.position.chain == chain
