"""The smallest batch: one record with only a value and its time.

Small appends are made of such batches, so they are encoded and recognized in a few steps. The bytes
are those of any batch, which ``batch`` draws: head, directory of two parts, two offsets, and the
value.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

__all__ = ["BATCH_MAGIC", "MAGIC_CRC", "SINGLE_BYTES", "encode_single", "is_single", "open_single"]

BATCH_MAGIC = b"QRBA"
# The magic is compared and the CRC follows it, so the bytes of the sum begin at 8.
MAGIC_CRC = crc32c(BATCH_MAGIC)

# magic, CRC; version, flags and count; length; reserved; time; where and how long the offsets are
# and where the value is; its length; offsets: the first, the last
_LAYOUT = Struct("<4sI8sI12sq12sIII")
_PROOF = Struct("<4sI")
_PROVED = Struct("<8sI12sq12sIII")
# Bytes before the value.
SINGLE_BYTES = _LAYOUT.size

_RESERVED = bytes(12)
_DIRECTORY = Struct("<III").pack(56, 8, SINGLE_BYTES)
# Version 1 and a count of 1; the flag says that the head has the time of all records.
_TIMED = Struct("<HHI").pack(1, 8, 1)
_TIMELESS = Struct("<HHI").pack(1, 0, 1)
_PADDING = [bytes(-length % 8) for length in range(8)]


def encode_single(value: bytes, time: int) -> bytes:
    """The batch of one record; ``time`` is in microseconds. The value is well below 2^31 bytes."""
    size = len(value)
    padding = _PADDING[size % 8]
    length = SINGLE_BYTES + size + len(padding)
    front = _PROVED.pack(_TIMED, length, _RESERVED, time, _DIRECTORY, size, 0, size)
    proved = b"".join((front, value, padding))
    return _PROOF.pack(BATCH_MAGIC, crc32c(proved, MAGIC_CRC)) + proved


def open_single(data: bytes) -> tuple[int | None, bytes] | None:
    """The time and the value of such a batch; None if ``data`` is another batch, or not whole.

    The CRC is not checked here: a caller has just checked another CRC over these bytes, or checks
    this one. None is no verdict: :meth:`Batch.parse` finds the error in a batch, if there is one.
    """
    if len(data) < SINGLE_BYTES:
        return None
    magic, _, kind, length, reserved, time, directory, size, first, last = _LAYOUT.unpack_from(data)
    end = SINGLE_BYTES + size
    if (
        size != last
        or length != len(data)
        or magic != BATCH_MAGIC
        or directory != _DIRECTORY
        or reserved != _RESERVED
        or first != 0
        or data[end:] != _PADDING[size % 8]
    ):
        return None
    if kind == _TIMED:
        return time, data[SINGLE_BYTES:end]
    return (None, data[SINGLE_BYTES:end]) if kind == _TIMELESS and time == 0 else None


def is_single(data: bytes) -> bool:
    """True if ``data`` is the whole batch of such a record; all of it is checked, the CRC too."""
    if open_single(data) is None:
        return False
    _, crc = _PROOF.unpack_from(data)
    return bool(crc32c(data[8:], MAGIC_CRC) == crc)
