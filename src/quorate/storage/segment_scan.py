"""The scan of a segment: it finds the whole frames, and divides bad bytes into torn and damaged.

A crash can spoil only bytes that were not synced. So a bad byte below the highest ``durable_end``
that any valid block names is damage, and the log must not forget that it had entries there; a bad
byte above it was never acknowledged and is cut off. A bad byte below the place of a cut is damage,
too: a cut begins only when all bytes before it are durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.entry import HEADER_BYTES, parse_header
from quorate.storage.buffered import WINDOW_BYTES, skip_zeros
from quorate.storage.layout import BLOCK_BYTES, PAGE, Block, block_seed, pages
from quorate.storage.rows import Rows, last_header
from quorate.storage.scan_result import Fault, Proof, Scan, Unconfirmed
from quorate.types import EntryKind, Index, Position

if TYPE_CHECKING:
    from quorate.entry import Header
    from quorate.storage.buffered import Readable

__all__ = ["Fault", "Proof", "Scan", "scan"]

# Bytes in which frames are looked for at a time: far fewer than are read ahead.
STRETCH_BYTES = WINDOW_BYTES // 16
# The highest offset that fits into a row: a header with the right CRC may still exceed it.
OFFSET_MAX = (1 << 64) - 1


def scan(data: Readable, nonce: int | None, before: Position, proof: Proof | None) -> Scan:
    """Scan every page of ``data``, the segment whose first entry follows ``before``.

    Without a nonce, because the segment's own header is gone, no block can be recognized, and
    frames count only if they continue the chain.
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
        # The position of the last entry of each lost range, by index.
        self._lost: dict[Index, Position] = {}
        # The end of the readable frames of a block that had more; a truncation if the next block
        # agrees.
        self._short: int | None = None
        # The places of the blocks that were taken.
        self._taken: list[int] = []
        # All rows up to this one are confirmed, lost or noted as unconfirmed.
        self._confirmed: Index = before.index
        # In order. Entries leave the list if what was taken for a loss behind them is dropped.
        self._unconfirmed: list[Unconfirmed] = []

    def block(self, position: int) -> int:
        """Take the block at ``position``, the start of a page. Returns the next place to look."""
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
        found.memberships.add(block.membership)
        start = position + BLOCK_BYTES
        stop = self._frames(start, start + block.length)
        if stop < start + block.length:
            self._short = stop
        # A committed entry is never replaced. So a claim confirms the entries that the block holds
        # or follows, even if the block itself is an old content of its pages.
        self._confirmed = max(self._confirmed, min(block.committed, found.last.index))
        found.end = pages(stop)
        return found.end

    def _head(self, position: int) -> Block | None:
        if self._nonce is None:
            return None
        head = self._data[position : position + BLOCK_BYTES]
        block = Block.decode(head, block_seed(self._nonce, position))
        return block if block is not None and block.durable_end <= position else None

    def _continues(self, position: int, block: Block) -> bool:
        """Whether ``block`` comes after the entries that were read; notes a loss in between."""
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
        """Make the entries that were read agree with a proof that is newer than every block so far:
        the last entry before ``stop`` was ``last``. Whether they can be made to agree.

        If ``last`` was read, the chain confirms all entries before it. Else entries are lost in
        between. Or there is no room for the missing entries: then the block that was read last is
        an old content of its pages that came back, and is dropped.
        """
        found = self._scan
        self._go_back(last)
        while last != found.last and not self._may_have_lost(stop, last):
            if not self._taken:
                return False
            self._drop_from(self._taken[-1])
        if last != found.last:
            self._lose(stop, last)
        return True

    def _go_back(self, last: Position) -> bool:
        """Drop the entries behind ``last``, which a proof that is newer than every block so far
        names as the last entry. Whether an entry was dropped.

        If ``last`` was read, all entries behind it were truncated. If another entry has its index,
        the newest block is an old content of its pages.
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
        """Drop the entries from byte ``stop`` on: the bytes there may be older than the last
        write."""
        self._faults = [fault for fault in self._faults if fault.start < stop]
        self._taken = [place for place in self._taken if place < stop]
        self._keep_before(stop)
        self._short = stop

    @property
    def _lost_from(self) -> int:
        """The first byte behind the last frame or block that was read."""
        return self._short if self._short is not None else self._scan.end

    def _may_have_lost(self, stop: int, last: Position) -> bool:
        """Whether the missing entries up to ``last`` fit before ``stop``: each took a header."""
        lost = last.index - self._scan.last.index
        return 0 < lost <= (stop - self._lost_from) // HEADER_BYTES

    def _lose(self, stop: int, last: Position) -> None:
        """Note the entries up to ``last`` as lost: they stood between the last frame that was read
        and ``stop``."""
        found = self._scan
        start = self._lost_from
        fault = Fault(start, stop, Index(found.last.index + 1), last.index, "entries are lost")
        self._faults.append(fault)
        if found.last.index > self._confirmed:
            self._unconfirmed.append(
                Unconfirmed(Index(self._confirmed + 1), found.last.index, last.index)
            )
        self._add_lost(start, last.index)
        found.last = self._lost[last.index] = last
        self._confirmed = last.index
        found.end = stop

    def _add_lost(self, start: int, last: Index) -> None:
        """Add rows for lost entries up to ``last``, which stood from byte ``start`` on."""
        rows = self._scan.rows
        offset = rows.offsets[-1] if rows.offsets else 0
        before = last_header(self._data, rows)
        if before is not None:
            # The offset behind the records of the last entry that was read: those are not lost.
            offset = min(before.base_offset + before.count, OFFSET_MAX)
        time = rows.times[-1] if rows.times else 0
        while rows.last < last:
            rows.add(start, start, offset, time, 0)

    def _orphan(self, position: int) -> int:
        """Take a page without a block head. It is unused, or its frames may prove themselves by
        their chain. Returns the next place to look."""
        found = self._scan
        behind = skip_zeros(self._data, position)
        if behind > position:
            return behind
        start = position + BLOCK_BYTES
        # Without a nonce no block can be recognized, and the page before may have been an empty
        # block: frames that continue the chain are proof enough.
        tried = position == found.end or self._nonce is None
        stop = self._frames(start, len(self._data)) if tried else start
        if stop == start:
            # Pages before this one may have been lost as well: the fault begins at the end of the
            # last block.
            self._fault(found.end, position + PAGE, "no block can be read")
            return position + PAGE
        self._fault(position, start, "the head of a block is bad")
        self._taken.append(position)
        # Only the head told how many frames there were: more may have stood here.
        self._short = stop
        found.end = pages(stop)
        return found.end

    def _frames(self, start: int, limit: int) -> int:
        """Take the frames from ``start`` on that follow one another. Returns the end of the last
        one."""
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
                    return start  # the entry was cut off, and its header is back
                self._note_bad_body(header, start, stop)
            position = header.position
            found.rows.add(start, stop, header.base_offset, header.append_time, position.chain)
            if header.kind == EntryKind.MEMBERSHIP:
                found.memberships.add(position.index)
            found.last = position
            start = stop

    def _has_newer_block(self, start: int, stop: int) -> bool:
        """Whether a block begins within start..stop-1 that was written after the newest so far."""
        found = self._scan
        blocks = map(self._head, range(pages(start), stop, PAGE))
        return any(one is not None and one.write_number > found.write_number for one in blocks)

    def _crc(self, start: int, stop: int) -> int:
        """The CRC32C of bytes start..stop-1, read one window at a time."""
        crc = 0
        for place in range(start, stop, WINDOW_BYTES):
            crc = crc32c(self._data[place : min(stop, place + WINDOW_BYTES)], crc)
        return crc

    def _note_bad_body(self, header: Header, start: int, stop: int) -> None:
        index = header.position.index
        self._scan.without_body.add(index)
        self._faults.append(Fault(start, stop, index, index, "the body is bad"))

    def _fault(self, start: int, stop: int, what: str) -> None:
        """Note bad bytes that hold no known entry."""
        following = Index(self._scan.last.index + 1)
        self._faults.append(Fault(start, stop, following, Index(following - 1), what))

    # -- the verdict ---------------------------------------------------------------------------

    def conclude(self, proof: Proof | None) -> Scan:
        """Divide the faults into torn and damaged, now that the durable end is known."""
        found = self._scan
        back: Fault | None = None
        found.refuted = proof is not None and self._refutes(proof)
        if proof is not None and not found.refuted:
            if self._go_back(proof.last) and proof.newest:
                # No block shows that these bytes are old: they have to be cut before the mark is
                # removed.
                stop = self._lost_from
                back = Fault.of_bytes(stop, pages(stop), "what was cut off is back")
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
        for entries in reversed(self._unconfirmed):
            self._lose_unconfirmed(entries)
        return found

    def _refutes(self, proof: Proof) -> bool:
        """Whether an entry that was read and that a block claims to be committed stands behind the
        end that ``proof`` names, or in the place of its last entry: no log ends before an entry
        that is committed, so ``proof`` is an old one."""
        found, rows, last = self._scan, self._scan.rows, proof.last
        committed = min(found.committed, found.last.index)
        if last.index < committed:
            return True
        if self._unconfirmed or not self._before.index < last.index == committed:
            return False
        start, stop = rows.frame(last.index)
        return start < stop and rows.chain(last.index) != last.chain

    def _lose_unconfirmed(self, entries: Unconfirmed) -> None:
        """Take unconfirmed entries for lost: nothing says that they are not old contents of their
        pages."""
        found, rows = self._scan, self._scan.rows
        start, stop = rows.frame(entries.first)[0], rows.frame(entries.last)[1]
        what = "nothing confirms these entries"
        found.damage.append(Fault(start, stop, entries.first, entries.last, what))
        found.without_body -= set(range(entries.first, entries.last + 1))
        behind = rows.cut_out(Index(entries.lost + 1))
        rows.cut(entries.first)
        self._add_lost(start, entries.lost)
        rows.extend(behind)

    def _drop_unproved(self) -> None:
        """Keep the entries before the first bad byte, of those that no block proves durable.

        Only a mark or a cut proves the entries behind it, and this open removes that proof. If one
        of them stayed without its body, the open after the next crash would take it for torn.
        """
        rows = self._scan.rows
        end = rows.ends[-1] if rows.ends else PAGE
        # A block that was dropped proves no more: the next open may not find it.
        heads = (block for block in map(self._head, reversed(self._taken)) if block is not None)
        proved = next((block.durable_end for block in heads), PAGE)
        bad = [fault for fault in self._faults if proved <= fault.start < end]
        if bad:
            self._keep_before(min(bad).start)
            self._short = min(bad).start

    def _compare(self, proof: Proof) -> None:
        found = self._scan
        found.durable_end = max(found.durable_end, proof.end)
        if proof.last == found.last:
            self._short = None  # the missing frames were truncated before the proof was written
        elif proof.newest:
            self._lose_end(proof)
        elif self._agrees(proof.end, proof.last):
            self._short = None
        else:
            self._fault(PAGE, proof.end, "the segment does not end as it did")

    def _lose_end(self, proof: Proof) -> None:
        """Note the entries that ``proof`` names and that were not read as lost, at the end of the
        log."""
        found = self._scan
        if proof.drops:
            self._make_room(proof.end, proof.last)
        found.lost_tail = start = self._lost_from
        if start >= proof.end and self._taken:
            start = self._taken[-1]  # an older block may be back in the place of theirs
        first = Index(found.last.index + 1)
        self._faults.append(Fault(start, proof.end, first, proof.last.index, "entries are lost"))
        self._short = None

    def _make_room(self, stop: int, last: Position) -> None:
        """Drop blocks until the lost entries up to ``last``, the end of the log, fit before
        ``stop``.

        If they do not fit, an older block is back in the place of theirs. It may hold the first of
        the lost entries and no more, or other entries.
        """
        rows = self._scan.rows
        committed = min(self._scan.committed, rows.last)
        kept = rows.frame(committed)[1] if committed >= rows.first else PAGE
        while self._taken and not self._may_have_lost(stop, last):
            head = self._taken[-1] + BLOCK_BYTES
            if self._short is None:
                self._short = max(head, rows.ends[-1] if rows.ends else 0)
            elif self._taken[-1] < kept:
                self._drop_from(kept)  # what is committed stays, however old the block is
                return
            else:
                self._drop_from(self._taken[-1])

    def _cut(self, fault: Fault) -> None:
        """Drop all entries from the torn bytes of ``fault`` on; the entries before are whole."""
        self._keep_before(fault.start)
        self._scan.torn = fault

    def _keep_before(self, stop: int) -> None:
        """Drop the entries that do not begin before ``stop``."""
        found, rows = self._scan, self._scan.rows
        while rows.starts and rows.starts[-1] >= stop:
            rows.cut(rows.last)
        found.end = pages(stop)
        while self._unconfirmed and self._unconfirmed[-1].last >= rows.last:
            self._confirmed = Index(self._unconfirmed.pop().first - 1)
        self._confirmed = min(self._confirmed, max(rows.last, self._before.index))
        found.without_body = {index for index in found.without_body if index <= rows.last}
        found.memberships = {index for index in found.memberships if index <= rows.last}
        self._lost = {index: last for index, last in self._lost.items() if index <= rows.last}
        if found.last.index > rows.last:
            found.last = self._lost.get(rows.last) or self._position(rows)

    def _position(self, rows: Rows) -> Position:
        """The position of the last entry of ``rows``."""
        header = last_header(self._data, rows)
        return header.position if header is not None else self._before
