"""Reading a segment that nobody closed: which frames are whole, what is torn and what is damage.

A crash can spoil only what was not synced. So whatever is bad below the highest ``durable_end``
that any valid block names is damage, and the log must not forget that it had something there;
whatever is bad above it was never acknowledged and is cut off. The same holds below the place where
a cut began: whoever began it had made everything before it durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.layout import BLOCK_BYTES, PAGE, Block, block_seed, pages
from quorate.storage.rows import Rows, last_header
from quorate.storage.window import WINDOW_BYTES
from quorate.types import Index, Position

if TYPE_CHECKING:
    from quorate.entry import Header
    from quorate.storage.window import Readable

__all__ = ["Fault", "Proof", "Scan", "scan"]

# Frames are looked for in so many bytes at a time: far fewer than are read ahead.
STRETCH_BYTES = WINDOW_BYTES // 16
# What a row can say: a header may be anything that has the right CRC.
OFFSET_MAX = (1 << 64) - 1
_ZEROS = bytes(WINDOW_BYTES)
_NO_ENTRY = (Index(1), Index(0))


class Fault(NamedTuple):
    """Bytes that are not what was written there, and the entries that they hold."""

    start: int
    stop: int
    # The entries that cannot be read; none if ``last`` is less than ``first``.
    first: Index
    last: Index
    what: str


class Proof(NamedTuple):
    """What somebody else knows of a segment: how far it was durable, and how it ended there."""

    # Of the blocks, or the byte right behind the last frame that a cut leaves.
    end: int
    last: Position
    # Nothing comes after it: what is missing here is missing at the end of the log.
    newest: bool = False


@dataclass(slots=True)
class Scan:
    """What a segment holds."""

    rows: Rows
    # Where the log stands at the end of it.
    last: Position
    # Where the next block goes: after everything that is kept.
    end: int = PAGE
    # Everything below was synced before something that is here was written.
    durable_end: int = PAGE
    write_number: int = 0
    # Whether the last block holds entries: only what is written after it proves them durable.
    unproven: bool = False
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    # Bad bytes below durable_end.
    damage: list[Fault] = field(default_factory=list)
    # The entries whose header is whole and whose body is not.
    hollow: set[Index] = field(default_factory=set)
    # From where on entries at the end of the log were durable and cannot be read; None if all can.
    lost_tail: int | None = None
    # Bad bytes above it: what a crash left, to be cut where it starts.
    torn: Fault | None = None


def scan(data: Readable, nonce: int | None, before: Position, proof: Proof | None) -> Scan:
    """Look at every page of ``data``, the segment that begins after ``before``.

    Without a nonce, because the segment's own header is gone, frames are believed only where they
    continue the chain.
    """
    scanner = _Scanner(data, nonce, before)
    position = PAGE
    while position < len(data):
        position = scanner.block(position)
    return scanner.conclude(proof)


class _Scanner:
    def __init__(self, data: Readable, nonce: int | None, before: Position) -> None:
        self._data = data
        self._nonce = nonce
        self._faults: list[Fault] = []
        self._before = before
        self._scan = Scan(Rows(Index(before.index + 1)), before)
        # What is known of the last entry of each lost range, by index.
        self._lost: dict[Index, Position] = {}
        # Where a block had more frames than can be read; a truncation if the next block agrees.
        self._short: int | None = None
        # Where each block begins that was taken.
        self._taken: list[int] = []

    def block(self, position: int) -> int:
        """Take what begins at ``position``, a page; where to look next."""
        block = self._head(position)
        if block is None:
            return self._orphan(position)
        if not self._continues(position, block):
            self._fault(self._scan.end, block.end(position), "the block does not belong here")
            return position + PAGE
        found = self._scan
        self._taken.append(position)
        found.write_number = block.write_number
        found.unproven = block.length > 0
        found.durable_end = max(found.durable_end, block.durable_end)
        found.committed = max(found.committed, block.committed)
        start = position + BLOCK_BYTES
        stop = self._frames(start, start + block.length)
        if stop < start + block.length:
            self._short = stop
        found.end = pages(stop)
        return found.end

    def _head(self, position: int) -> Block | None:
        if self._nonce is None:
            return None
        head = self._data[position : position + BLOCK_BYTES]
        block = Block.decode(head, block_seed(self._nonce, position))
        return block if block is not None and block.durable_end <= position else None

    def _continues(self, position: int, block: Block) -> bool:
        """Whether ``block`` comes after what was read; notes what is missing in between."""
        found = self._scan
        if block.write_number <= found.write_number:
            return False
        if not self._agrees(position, block.before):
            return False
        if position != found.end:
            self._fault(found.end, position, "what was written here cannot be read")
        self._short = None
        return True

    def _agrees(self, stop: int, last: Position) -> bool:
        """Something newer than every block so far says that the log stood at ``last`` then, with
        all of it before ``stop``. Make what was read agree with that, if it can be.

        Either entries are lost in between, or there is no room for them, and then what was read
        last is not what was written in its place: an old content of the page came back.
        """
        found = self._scan
        self._go_back(last)
        while last != found.last and not self._may_have_lost(stop, last):
            if not self._taken:
                return False
            self._drop_from(self._taken.pop())
        if last != found.last:
            self._lose(stop, last)
        return True

    def _go_back(self, last: Position) -> bool:
        """Something newer than every block so far says that the log stood at ``last`` then.

        If ``last`` was read, all behind it was truncated. If another entry stands there, the newest
        block is not what was written in its place. Whether anything was dropped.
        """
        found, rows = self._scan, self._scan.rows
        if last == found.last or last.index > found.last.index:
            return False
        stop, row = self._taken[-1] if self._taken else PAGE, last.index - rows.first
        if last == self._before:
            stop = PAGE
        elif row >= 0:
            header = parse_header(self._data[rows.starts[row] : rows.ends[row]])
            if header is not None and header.position == last:
                stop = rows.ends[row]
            else:
                stop = min(stop, rows.starts[row])
        self._drop_from(stop)
        return True

    def _drop_from(self, stop: int) -> None:
        """What was read from ``stop`` on is not what was written there last."""
        self._faults = [fault for fault in self._faults if fault.start < stop]
        self._keep_before(stop)
        self._short = stop

    @property
    def _lost_from(self) -> int:
        """Where bytes begin that belong to no frame that was read."""
        return self._short if self._short is not None else self._scan.end

    def _may_have_lost(self, stop: int, last: Position) -> bool:
        """Whether the entries up to ``last`` can have stood before ``stop``: each took a header."""
        lost = last.index - self._scan.last.index
        return 0 < lost <= (stop - self._lost_from) // HEADER_BYTES

    def _lose(self, stop: int, last: Position) -> None:
        """Entries up to ``last`` stood between what was read and ``stop``."""
        found = self._scan
        start = self._lost_from
        fault = Fault(start, stop, Index(found.last.index + 1), last.index, "entries are lost")
        self._faults.append(fault)
        rows = found.rows
        offset = rows.offsets[-1] if rows.offsets else 0
        before = last_header(self._data, rows)
        if before is not None:
            # Behind the records of the last entry that was read: those are not lost.
            offset = min(before.base_offset + before.count, OFFSET_MAX)
        time = rows.times[-1] if rows.times else 0
        for _ in range(fault.first, fault.last + 1):
            rows.add(start, start, offset, time, 0)
        found.last = self._lost[last.index] = last
        found.end = stop

    def _orphan(self, position: int) -> int:
        """A page without a head: unused, or one whose frames may still prove themselves."""
        found = self._scan
        if self._is_zero(position):
            return self._skip_zeros(position)
        start = position + BLOCK_BYTES
        # Without a nonce no block can be told, and the page before may have been an empty one: that
        # frames continue the chain is proof enough.
        tried = position == found.end or self._nonce is None
        stop = self._frames(start, len(self._data)) if tried else start
        if stop == start:
            # A page before it may have been lost as well: the log ends where the last block did.
            self._fault(found.end, position + PAGE, "no block can be read")
            return position + PAGE
        self._fault(position, start, "the head of a block is bad")
        self._taken.append(position)
        # Only the head told how many frames there were: more may have stood here.
        self._short = stop
        found.end = pages(stop)
        return found.end

    def _is_zero(self, position: int) -> bool:
        page = bytes(self._data[position : position + PAGE])
        return page == _ZEROS[: len(page)]

    def _skip_zeros(self, position: int) -> int:
        data = self._data
        while position < len(data):
            chunk = bytes(data[position : position + len(_ZEROS)])  # a view compares byte by byte
            if chunk != _ZEROS[: len(chunk)]:
                break
            position += len(chunk)
        while position < len(data) and self._is_zero(position):
            position += PAGE
        return position

    def _frames(self, start: int, limit: int) -> int:
        """Take the frames from ``start`` that follow one another; where the last of them ends."""
        data, found = self._data, self._scan
        limit = min(limit, len(data))
        stretch, base = memoryview(b""), start
        while True:
            if start + HEADER_BYTES > base + len(stretch):
                stretch, base = data[start : min(limit, start + STRETCH_BYTES)], start
            place = start - base
            header = parse_header(stretch, place)
            if header is None or not header.follows(found.last, stretch, place):
                return start
            stop = start + HEADER_BYTES + header.length
            if stop > limit:
                return start
            if stop <= base + len(stretch):
                body_crc = crc32c(stretch[place + HEADER_BYTES : stop - base])
            else:
                body_crc = self._crc(start + HEADER_BYTES, stop)
            if body_crc != header.body_crc:
                if self._has_newer_block(start, stop):
                    return start  # it was cut off, and is back
                self._hollow(header, start, stop)
            position = header.position
            found.rows.add(start, stop, header.base_offset, header.append_time, position.chain)
            found.last = position
            start = stop

    def _has_newer_block(self, start: int, stop: int) -> bool:
        """Whether a block begins within start..stop-1 that was written after the newest so far."""
        found = self._scan
        blocks = map(self._head, range(pages(start), stop, PAGE))
        return any(one is not None and one.write_number > found.write_number for one in blocks)

    def _crc(self, start: int, stop: int) -> int:
        """Of the bytes start..stop-1, a window of them at a time."""
        crc = 0
        for place in range(start, stop, WINDOW_BYTES):
            crc = crc32c(self._data[place : min(stop, place + WINDOW_BYTES)], crc)
        return crc

    def _hollow(self, header: Header, start: int, stop: int) -> None:
        index = header.position.index
        self._scan.hollow.add(index)
        self._faults.append(Fault(start, stop, index, index, "the body is bad"))

    def _fault(self, start: int, stop: int, what: str) -> None:
        """Bad bytes that hold no entry, as far as is known."""
        following = Index(self._scan.last.index + 1)
        self._faults.append(Fault(start, stop, following, Index(following - 1), what))

    # -- the verdict ---------------------------------------------------------------------------

    def conclude(self, proof: Proof | None) -> Scan:
        """Tell torn from damaged, now that it is known how far things were durable."""
        found = self._scan
        back: Fault | None = None
        if proof is not None:
            if self._go_back(proof.last) and proof.newest:
                # No block says that it is old: it has to go before the mark does.
                stop = self._lost_from
                back = Fault(stop, pages(stop), *_NO_ENTRY, "what was cut off is back")
            if proof.newest and self._nonce is not None:
                self._drop_unproved()
            self._compare(proof)
        if self._short is not None:
            self._fault(self._short, found.end, "cut short")
        found.damage = [fault for fault in self._faults if fault.start < found.durable_end]
        torn = [fault for fault in self._faults if fault.start >= found.durable_end]
        if back is not None:
            torn.append(back)
        if torn:
            self._cut(min(torn))
        return found

    def _drop_unproved(self) -> None:
        """Of entries that no block proves durable, keep those before the first bad byte.

        A mark or a cut proves the others, and goes with this open. If one of them stayed as a known
        entry without its body, the open after the next crash would take it for torn.
        """
        found, rows = self._scan, self._scan.rows
        end = rows.ends[-1] if rows.ends else PAGE
        bad = [fault for fault in self._faults if found.durable_end <= fault.start < end]
        if bad:
            self._keep_before(min(bad).start)
            self._short = min(bad).start

    def _compare(self, proof: Proof) -> None:
        found = self._scan
        found.durable_end = max(found.durable_end, proof.end)
        if proof.last == found.last:
            self._short = None  # frames that are missing were truncated before this was said
        elif proof.newest:
            self._make_room(proof.end, proof.last)
            found.lost_tail = self._lost_from
            first = Index(found.last.index + 1)
            fault = Fault(found.lost_tail, proof.end, first, proof.last.index, "entries are lost")
            self._faults.append(fault)
            self._short = None
        elif self._agrees(proof.end, proof.last):
            self._short = None
        else:
            self._fault(PAGE, proof.end, "the segment does not end as it did")

    def _make_room(self, stop: int, last: Position) -> None:
        """The entries up to ``last`` stood before ``stop``, at the end of the log.

        If there is no room for them, an older block is back in the place of theirs. It may hold
        the first of them and no more, or others.
        """
        rows = self._scan.rows
        while self._taken and not self._may_have_lost(stop, last):
            head = self._taken[-1] + BLOCK_BYTES
            if self._short is None:
                self._short = max(head, rows.ends[-1] if rows.ends else 0)
            else:
                self._drop_from(self._taken.pop())

    def _cut(self, fault: Fault) -> None:
        """Drop everything from ``fault`` on; what stands before it is whole."""
        self._keep_before(fault.start)
        self._scan.torn = fault

    def _keep_before(self, stop: int) -> None:
        """Drop the entries that do not begin before ``stop``."""
        found, rows = self._scan, self._scan.rows
        while rows.starts and rows.starts[-1] >= stop:
            rows.cut(rows.last)
        found.end = pages(stop)
        found.hollow = {index for index in found.hollow if index <= rows.last}
        self._lost = {index: last for index, last in self._lost.items() if index <= rows.last}
        if found.last.index > rows.last:
            found.last = self._lost.get(rows.last) or self._position(rows)

    def _position(self, rows: Rows) -> Position:
        """Where the log stands after the last of ``rows``."""
        header = last_header(self._data, rows)
        return header.position if header is not None else self._before
