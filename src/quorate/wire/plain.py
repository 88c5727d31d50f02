"""Plain APPEND frames: without an expected offset, a fence or a producer.

Most are of this kind and many come together, so they are made, and cut out of the bytes read,
without the steps that other frames take one by one. The bytes are those of any APPEND.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from quorate.wire.frames import FRAME_BYTES, FrameKind, encode_frame
from quorate.wire.requests import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PLAIN_BYTES", "PlainAppends", "encode_plain", "split_plain"]

# request, log, expected offset, deadline in ms, bytes of the fence and of the producer's name
_CONTROL = Struct("<I16sQIH")
# log, expected offset, deadline in ms
_TARGET = Struct("<16sQI")
# prefix, kind and bytes of the control part; bytes of the batch; CRC; then the control part:
# request, target, bytes of the fence and of the producer's name
_LAYOUT = Struct(f"<8sIII{_TARGET.size}sH")
_HEAD = encode_frame(FrameKind.APPEND, bytes(_CONTROL.size))[:8]
_PROVED_BYTES = 12
# Bytes before the batch.
PLAIN_BYTES = _LAYOUT.size
# Appends whose deadlines are no further from that of the first share the earliest of them.
TOGETHER_MS = 50


def encode_plain(
    requests: Iterable[int], log: bytes, batches: Iterable[bytes], deadline_ms: int
) -> bytes:
    """The whole APPEND frames, each with its batch."""
    pieces: list[bytes] = []
    # Heads by the length of the batch: most batches have the same length.
    heads: dict[int, tuple[bytes, int]] = {}
    pack = _CONTROL.pack
    for request, batch in zip(requests, batches, strict=True):
        length = len(batch)
        head = heads.get(length)
        if head is None:
            proved = _HEAD + length.to_bytes(4, "little")
            head = heads[length] = proved, crc32c(proved)
        control = pack(request, log, NO_OFFSET, deadline_ms, 0)
        pieces += (head[0], crc32c(control, head[1]).to_bytes(4, "little"), control, batch)
    return b"".join(pieces)


class PlainAppends(NamedTuple):
    """Plain appends to one log that follow each other."""

    log: bytes
    requests: list[int]
    # The CRCs of the frames do not cover the batches.
    batches: list[bytes]
    # The earliest deadline of them, in milliseconds.
    deadline_ms: int
    # Where the first other frame begins.
    end: int


def split_plain(chunk: bytes, start: int, frames_max: int, bytes_max: int) -> PlainAppends | None:
    """The plain appends to one log that lie whole in ``chunk`` from ``start`` on.

    At most ``frames_max`` of them, and ``bytes_max`` bytes of batches. None if there is none; other
    frames are not judged here.
    """
    requests: list[int] = []
    batches: list[bytes] = []
    log = newest = b""
    first_ms = deadline_ms = proved = 0
    proved_length = -1
    unpack, size = _LAYOUT.unpack_from, len(chunk)
    while size - start >= PLAIN_BYTES and len(requests) < frames_max:
        head, length, proof, request, target, names = unpack(chunk, start)
        if head != _HEAD or names or length > bytes_max:
            break
        middle = start + PLAIN_BYTES
        end = middle + length
        if end > size:
            break
        if length != proved_length:
            # Seldom: most batches have the same length, and so the same head.
            proved, proved_length = crc32c(chunk[start : start + _PROVED_BYTES]), length
        if crc32c(chunk[start + FRAME_BYTES : middle], proved) != proof:
            break
        if target != newest:
            # Seldom: appends that come together differ by a few milliseconds at most.
            named, offset, left_ms = _TARGET.unpack(target)
            if offset != NO_OFFSET:
                break
            if not requests:
                log, first_ms, deadline_ms = named, left_ms, left_ms
            elif named != log or abs(left_ms - first_ms) > TOGETHER_MS:
                break
            deadline_ms = min(deadline_ms, left_ms)
            newest = target
        requests.append(request)
        batches.append(chunk[middle:end])
        bytes_max -= length
        start = end
    return PlainAppends(log, requests, batches, deadline_ms, start) if requests else None
