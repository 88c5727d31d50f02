"""One segment file, open: what it holds and where, and reading it back.

Every frame is proved by its CRCs each time it is read: what a disk spoils after it was written is
found then and never handed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from quorate.entry import HEADER_BYTES, hollow_entry, is_frame, parse_header
from quorate.errors import Corrupt
from quorate.storage.index import LoadedRows
from quorate.storage.layout import PAGE, Footer, segment_name
from quorate.storage.scan import Fault
from quorate.types import Index, Position

if TYPE_CHECKING:
    from quorate.entry import Entry, Header
    from quorate.storage.layout import SegmentHeader
    from quorate.storage.rows import Rows
    from quorate.storage.scan import Scan
    from quorate.storage.vfs import File

__all__ = ["Segment"]


class Segment:
    """The newest one takes blocks; older ones wait for their commit and are sealed."""

    __slots__ = (
        "_loaded", "_rows", "_seen", "append_time", "capacity", "committed", "end", "file",
        "footer", "header", "holes", "hollow", "indexed", "last", "lost", "next_offset", "synced",
        "unreadable", "write_number",
    )  # fmt: skip

    def __init__(self, header: SegmentHeader, file: File, rows: Rows | LoadedRows) -> None:
        self.header = header
        self.file = file
        # Where the entries lie. None in a sealed segment whose index file tells: then ``_loaded``
        # loads them when somebody asks, and ``_seen`` are those that it loaded last.
        self._rows = None if isinstance(rows, LoadedRows) else rows
        self._loaded = rows if isinstance(rows, LoadedRows) else None
        self._seen: ref[Rows] | None = None
        # Where the log stands at the end of this segment.
        self.last: Position = header.before
        self.next_offset = header.base_offset
        self.append_time = header.append_time
        # Where the next block goes: a page that holds nothing durable.
        self.end = PAGE
        # How far it may grow; less than was allocated if a cut could not be made good.
        self.capacity = header.capacity
        self.write_number = 0
        # What a block in here said was committed when this node opened the log.
        self.committed = Index(0)
        # Not None once nothing in here can change any more.
        self.footer: Footer | None = None
        # Whether the footer is known to be durable: one that an open found may be in the page cache
        # only, and the log does not need it.
        self.synced = False
        # Whether a whole index file stands beside it, as far as is known.
        self.indexed = False
        # Entries whose bytes are bad: never read, never served. Threads add and remove without a
        # lock, so whoever walks through them walks through a copy.
        self.hollow: set[Index] = set()
        # Others of which not even the header is left, as far as is known; as above.
        self.holes: set[Index] = set()
        # Whether there are any, or the disk does not give some of them back.
        self.lost = False
        # Why none of them can be read, not even where they lie; empty if they can.
        self.unreadable = ""

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def first(self) -> Index:
        return Index(self.header.before.index + 1)

    @property
    def rows(self) -> Rows:
        """Kept in memory only while they may change: hold them as long as they are used."""
        return self.rows_at_hand() or self.load()

    def load(self) -> Rows:
        """Load them for all that ask, also if that takes long."""
        assert self._loaded is not None  # for the type checker
        rows = self._loaded.load(self)
        self._seen = ref(rows)
        return rows

    def rows_at_hand(self) -> Rows | None:
        """The same; None if only a walk through all of the segment tells them."""
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
        """Let go of the rows: the index file is there, and nothing in here changes any more."""
        # In this order: a reader that finds no rows finds who loads them.
        self._loaded = loaded
        self._rows = None

    def take(self, found: Scan) -> None:
        """Go by what a scan of the whole segment found: no index file says what is lost.

        Only of one that is sealed: to the rows of another the writer may add meanwhile.
        """
        self._rows = found.rows
        self.hollow = found.hollow
        self.note_lost(found.rows)

    def note_lost(self, rows: Rows) -> None:
        """See which entries a scan of the whole segment did not find."""
        self.holes = rows.holes | set(map(Index, range(rows.last + 1, self.last.index + 1)))
        self.lost = bool(self.holes)

    @property
    def claimed(self) -> Index:
        """What this proved to be committed when the log was opened: only what is, is sealed."""
        return self.last.index if self.footer is not None else self.committed

    @property
    def room(self) -> int:
        """Bytes that can still be written into it: whole pages, as every block is."""
        return 0 if self.footer is not None else max(0, self.capacity - self.end) // PAGE * PAGE

    def position(self, index: Index) -> Position:
        """Where the log stands at ``index``, an entry of this segment or the one before it."""
        return self.edge(index) or self._header(index)[1].position

    def edge(self, index: Index) -> Position | None:
        """The same, if it is known without a look at the file."""
        if index == self.last.index:
            return self.last
        return self.header.before if index == self.header.before.index else None

    def _header(self, index: Index) -> tuple[bytes, Header]:
        """What the frame of ``index`` begins with: of that very entry, not of one that stood in its
        place before."""
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
        """The chain that ``index``, an entry of this segment, goes on from; None if the entry
        before it is lost."""
        rows, before = self.rows, Index(index - 1)
        if before < rows.first:
            return self.header.before.chain
        start, end = rows.frame(before)
        return rows.chain(before) if end > start else None

    def frames(self, start: Index, stop: Index) -> list[memoryview]:
        """The stored bytes of entries start..stop-1, each proved; views of one buffer."""
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
        """What is bad among entries start..stop-1, which are settled, and was not known to be.
        Those of which the header is left are hollow from now on, the others holes; nothing else
        changes."""
        faults, rows = [], self.rows
        for index in map(Index, range(start, stop)):
            if index in self.holes:
                continue
            begin, end = rows.frame(index)
            data, chain = self.file.read(begin, end - begin), rows.chain(index)
            if is_frame(data, index, chain):
                continue
            header = parse_header(data)
            if header is not None and _is_of(header, index, chain):
                if index in self.hollow:
                    continue
                self.hollow.add(index)
                what = "the body is bad"
            else:
                self.hollow.discard(index)
                self.holes.add(index)
                self.lost = True
                what = "the header is bad" if header is None else "another entry is in its place"
            faults.append(Fault(begin, end, index, index, what))
        return faults

    def bad_from(self, index: Index) -> Index | None:
        """The first entry from ``index`` on that is known to be hollow or a hole."""
        bad = (one for one in (*self.hollow, *self.holes) if one >= index)
        return min(bad, default=None)

    def hollow_entry(self, index: Index) -> Entry:
        """What is known of an entry whose body is bad."""
        return hollow_entry(*self._header(index))

    def _corrupt(self, index: Index, start: int) -> Corrupt:
        return Corrupt(
            f"entry {index} at byte {start} of {segment_name(self.number)} is not what was written"
        )


def _is_of(header: Header, index: Index, chain: int) -> bool:
    """Whether ``header`` is that of the entry ``index`` with ``chain``."""
    return header.position.index == index and header.position.chain == chain
