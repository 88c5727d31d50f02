"""The bytes that the files of a log prove to be durable, by the simulator's own account.

The simulator does not ask the node: that would keep rot away from flushes that the node forgot to
prove. A node that flushed and has no other flush must prove the last one soon; that is demanded,
too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.layout import (
    CLEAN,
    PAGE,
    CleanMark,
    SegmentHeader,
    segment_name,
    segment_number,
)
from verification.disk.durable import BLOCK_MAGIC, LENGTH_AT

if TYPE_CHECKING:
    from verification.disk.store import Store

__all__ = ["is_proved", "marked_end", "proved_bytes"]


class _ProvedBlock(NamedTuple):
    position: int
    # Bytes of the frames in the block.
    length: int


def _last_block(data: bytearray) -> _ProvedBlock | None:
    for position in range(len(data) // PAGE * PAGE, 0, -PAGE):
        if data[position : position + 4] == BLOCK_MAGIC:
            length = data[position + LENGTH_AT : position + LENGTH_AT + 4]
            return _ProvedBlock(position, int.from_bytes(length, "little"))
    return None


def is_proved(store: Store) -> bool:
    """Whether a block or a mark behind the newest entries says that they are durable."""
    segments = [name for name in store.disk.durable if name.endswith(".segment")]
    if not segments:
        return True
    data = store.disk.durable[max(segments)]
    last = _last_block(data)
    if last is None or last.length == 0:
        return True
    # Without its own header no block differs from rubbish, and none is written: the node is unsure.
    # An old header that came back is not the one that the vote record names.
    header, record = SegmentHeader.decode(bytes(data[:PAGE])), store.durable.vote
    if header is None or record is None:
        return header is None
    return record.segment == header.number and record.nonce != header.nonce


def marked_end(store: Store) -> tuple[str, int] | None:
    """The newest segment and where it ends, if a clean stop left its mark."""
    data = store.disk.durable_bytes(CLEAN)
    mark = CleanMark.decode(bytes(data), store.identity) if data is not None else None
    return (segment_name(mark.number), mark.end) if mark is not None and mark.number else None


def proved_bytes(store: Store) -> dict[str, int]:
    """By segment: the number of its bytes that are proved to be durable by a block or a mark behind
    them.

    The last block proves the bytes before it, not itself; the next segment says where the one
    before it ended.
    """
    durable, record = store.disk.durable, store.durable.vote
    numbers = sorted(number for name in durable if (number := segment_number(name)) is not None)
    found = {}
    for number in numbers:
        if record is None or number > record.segment:
            break  # its header may be lost in a crash
        name = segment_name(number)
        data = durable[name]
        following = durable.get(segment_name(number + 1))
        header = SegmentHeader.decode(bytes(following[:PAGE])) if following else None
        last = _last_block(data)
        if header is not None and number < record.segment:
            end = header.previous_end
        else:
            end = last.position if last is not None else PAGE
        if number == record.segment and record.cutting:
            end = min(end, record.cutting)
        if len(data) >= end:
            found[name] = end
    return found
