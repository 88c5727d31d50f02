"""A batch: the records of one append, encoded once by the client, for Arrow to wrap in place::

    offset  size  field
         0     4  magic           "QRBA"
         4     4  CRC             CRC32C of all other bytes
         8     2  version         1
        10     2  flags           which columns there are
        12     4  count           records, at least 1
        16     4  length          bytes of the batch, a multiple of 8
        20    12  reserved        0
        32     8  time            of every record under ONE_TIME, else 0
        40        directory       (offset, length) of each part, 4 bytes each

    column     flag       parts
    values                offsets, bytes
    keys       KEYS       validity, offsets, bytes
    times      TIMES      8 bytes a record
    headers    HEADERS    offsets; names: offsets, bytes; contents: offsets, bytes

Parts come in this order, each at the next multiple of 8. All of it is checked, before any size is
believed and without a step of Python per record: an accepted batch can be read to the last record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from crc32c import crc32c

from quorate.batch_columns import (
    BATCH_BYTES_MAX,
    Pair,
    checked_column,
    checked_headers,
    checked_keys,
    column_length,
    encode_column,
    expect,
)
from quorate.errors import EmptyBatch, InvalidArgument, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from quorate.batch_columns import Column, Headers, Keys

__all__ = [
    "Batch",
    "BatchRecord",
    "assemble_batch",
    "batch_count",
    "encode_batch",
    "encode_record",
    "encode_single",
    "is_single",
    "open_single",
]

MAGIC = b"QRBA"
VERSION = 1
HEAD_BYTES = 40

KEYS, TIMES, HEADERS, ONE_TIME = 1, 2, 4, 8

_HEAD = struct.Struct("<4sIHHII12sq")
_RESERVED = bytes(12)
# The magic is compared and the CRC follows it, so the bytes of the sum begin at 8.
MAGIC_CRC = crc32c(MAGIC)
# Times are int64: below this, and not below its negative.
TIME_LIMIT = 1 << 63

_PARTS = {
    0: ["value offsets", "value bytes"],
    KEYS: ["key validity", "key offsets", "key bytes"],
    TIMES: ["times"],
    HEADERS: ["header offsets", "name offsets", "name bytes", "content offsets", "content bytes"],
}
# The parts that the directory lists, for each set of flags that makes sense.
_LAYOUTS = {
    flags: [name for flag, names in _PARTS.items() if flags & flag == flag for name in names]
    for flags in range(16)
    if not (flags & TIMES and flags & ONE_TIME)
}

Data = bytes | bytearray | memoryview


class BatchRecord(NamedTuple):
    """One record, as its producer gave it."""

    # Microseconds; None if the producer gave no time.
    timestamp: int | None
    # None if the record has no key, which is not the same as the empty key.
    key: bytes | None
    value: bytes
    # Pairs in the order in which they were given; a name may come again.
    headers: tuple[Pair, ...]


# -- encoding ------------------------------------------------------------------------------------


def encode_batch(
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    times: Sequence[int] | int | None = None,
    headers: Sequence[Sequence[Pair]] | None = None,
) -> bytes:
    """The batch of these records. ``times`` are microseconds, or one int for them all."""
    count = column_length("values", values)
    if count == 1 and keys is None and headers is None and type(times) is int:
        single = encode_single(values[0], times)
        if single is not None:
            return single
    if count == 0:
        raise EmptyBatch("a batch has at least one record")
    flags, time = 0, 0
    parts = encode_column("values", values, count)
    if keys is not None and (added := encode_column("keys", keys, count)):
        flags |= KEYS
        parts += added
    if times is not None:
        column, length = ([times], 1) if isinstance(times, int) else (times, count)
        (packed,) = encode_column("times", column, length)
        # Most producers give one time to a whole batch: the head has room for one.
        if packed == packed[:8] * length:
            flags |= ONE_TIME
            time = int.from_bytes(packed[:8], "little", signed=True)
        else:
            flags |= TIMES
            parts.append(packed)
    if headers is not None and (added := encode_column("headers", headers, count)):
        flags |= HEADERS
        parts += added
    return assemble_batch(flags, count, time, parts)


def encode_record(
    value: bytes, key: bytes | None, times: Sequence[int] | int, headers: Sequence[Pair] | None
) -> bytes:
    """The batch of one record: as :func:`encode_batch` makes it, the usual one in fewer steps."""
    if key is None and headers is None and type(times) is int:
        single = encode_single(value, times)
        if single is not None:
            return single
    return encode_batch(
        [value],
        keys=None if key is None else [key],
        times=times,
        headers=None if headers is None else [headers],
    )


def assemble_batch(flags: int, count: int, time: int, parts: Sequence[Data]) -> bytes:
    """The batch of encoded columns: ``parts`` are those of ``flags``, in the layout's order."""
    directory: list[int] = []
    pieces: list[Data] = []
    position = HEAD_BYTES + 8 * len(parts)
    for part in parts:
        padding = -len(part) % 8
        directory += (position, len(part))
        pieces += (part, bytes(padding))
        position += len(part) + padding
    if position > BATCH_BYTES_MAX:
        raise TooLarge(f"a batch of {position} bytes; it has at most {BATCH_BYTES_MAX}")
    head = _HEAD.pack(MAGIC, 0, VERSION, flags, count, position, _RESERVED, time)
    pieces[:0] = (head[8:], struct.pack(f"<{len(directory)}I", *directory))
    crc = MAGIC_CRC
    for piece in pieces:
        crc = crc32c(piece, crc)
    return b"".join((MAGIC, crc.to_bytes(4, "little"), *pieces))


# -- reading -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Batch:
    """The records of a batch, read in place."""

    count: int
    values: Column
    keys: Keys | None
    # The column of times, the one time of every record, or None if the records have no time.
    times: memoryview | int | None
    headers: Headers | None

    @classmethod
    def parse(cls, data: Data, *, proved: bool = False) -> Batch:
        """The batch in ``data``; ``proved`` skips its CRC if another one has just held.

        Raises InvalidArgument, naming the field, unless every record can be read.
        """
        view = memoryview(data).cast("B")
        flags, count, time = _checked_head(view, proved)
        parts = _checked_parts(view, flags)
        values = checked_column(parts, "value", count)
        keys = checked_keys(parts, count) if flags & KEYS else None
        times = parts.get("times", time if flags & ONE_TIME else None)
        if flags & TIMES:
            expect("times", "length", len(parts["times"]), 8 * count)
        headers = checked_headers(parts, count) if flags & HEADERS else None
        return cls(count, values, keys, times, headers)

    def record(self, place: int) -> BatchRecord:
        """The record at ``place``, from 0."""
        if not 0 <= place < self.count:
            raise InvalidArgument(f"record {place} of a batch that has {self.count}")
        return next(self._records(place, place + 1))

    def __iter__(self) -> Iterator[BatchRecord]:
        return self._records(0, self.count)

    def _records(self, start: int, stop: int) -> Iterator[BatchRecord]:
        # The same as BatchRecord(*row), at half the price.
        return map(
            tuple.__new__, repeat(BatchRecord), zip(*self.columns(start, stop), strict=False)
        )

    def columns(self, start: int, stop: int) -> tuple[Iterable[Any], ...]:
        """The fields of :class:`BatchRecord`, each for all these records. Some iterators are
        endless."""
        times: Iterable[int | None] = (
            struct.unpack_from(f"<{stop - start}q", self.times, 8 * start)
            if isinstance(self.times, memoryview)
            else repeat(self.times)
        )
        keys = self.keys.cells(start, stop) if self.keys else repeat(None)
        headers = self.headers.cells(start, stop) if self.headers else repeat(())
        return times, keys, self.values.cells(start, stop), headers


def batch_count(data: Data) -> int:
    """The number of records of an unchecked batch; raises as :meth:`Batch.parse` does."""
    return 1 if type(data) is bytes and is_single(data) else Batch.parse(data).count


def _checked_head(view: memoryview, proved: bool) -> tuple[int, int, int]:
    if len(view) < HEAD_BYTES:
        raise InvalidArgument(f"batch head: {len(view)} bytes, fewer than {HEAD_BYTES}")
    magic, crc, version, flags, count, length, reserved, time = _HEAD.unpack_from(view)
    expect("head", "magic", magic, MAGIC)
    expect("head", "version", version, VERSION)
    expect("head", "length", length, len(view))
    if not proved:  # proved: another CRC over these bytes has just held
        expect("head", "CRC", crc, crc32c(view[8:], MAGIC_CRC))
    if flags not in _LAYOUTS:
        raise InvalidArgument(f"batch head: flags {flags:#x} are not known to this release")
    if count == 0:
        raise InvalidArgument("batch head: count is 0")
    expect("head", "reserved", reserved, _RESERVED)
    if not flags & ONE_TIME:
        expect("head", "time", time, 0)
    return flags, count, time


def _checked_parts(view: memoryview, flags: int) -> dict[str, memoryview]:
    names = _LAYOUTS[flags]
    position = HEAD_BYTES + 8 * len(names)
    if position > len(view):
        raise InvalidArgument(f"batch directory: ends at {position} of {len(view)} bytes")
    directory = struct.unpack_from(f"<{2 * len(names)}I", view, HEAD_BYTES)
    parts = {}
    for name, offset, length in zip(names, directory[::2], directory[1::2], strict=True):
        # A part has one right place, so none can overlap another, leave a hole or be askew.
        expect(name, "offset", offset, position)
        end = offset + length
        position = end + -end % 8
        if any(view[end:position]):
            raise InvalidArgument(f"batch {name}: padding is not 0")
        parts[name] = view[offset:end]
    expect("directory", "end of the last part", position, len(view))
    return parts


# -- the smallest batch: one record with only a value and its time ---------------------------------

# Small appends are made of such batches, so they are encoded and recognized in a few steps. The
# bytes are those of any batch: head, directory of two parts, two offsets, and the value.

# magic, CRC; version, flags and count; length; reserved; time; where and how long the offsets are
# and where the value is; its length; offsets: the first, the last
_SINGLE = struct.Struct("<4sI8sI12sq12sIII")
_unpack_single = _SINGLE.unpack_from
_SINGLE_PROOF = struct.Struct("<4sI")
_SINGLE_PROVED = struct.Struct("<8sI12sq12sIII")
# Bytes before the value, and the longest value.
SINGLE_BYTES = _SINGLE.size
SINGLE_MAX = BATCH_BYTES_MAX - SINGLE_BYTES

_SINGLE_DIRECTORY = struct.Struct("<III").pack(56, 8, SINGLE_BYTES)
# Version 1 and a count of 1; the flag says that the head has the time of all records.
_TIMED = struct.Struct("<HHI").pack(1, 8, 1)
_TIMELESS = struct.Struct("<HHI").pack(1, 0, 1)
_PADDING = [bytes(-length % 8) for length in range(8)]


def encode_single(value: object, time: int) -> bytes | None:
    """The batch of one record, with its time in microseconds.

    None for a value that is not plain bytes, and if it or the time is out of bounds:
    :func:`encode_batch` converts such a value, or names the error.
    """
    if type(value) is not bytes or len(value) > SINGLE_MAX or not -TIME_LIMIT <= time < TIME_LIMIT:
        return None
    size = len(value)
    padding = _PADDING[size % 8]
    length = SINGLE_BYTES + size + len(padding)
    front = _SINGLE_PROVED.pack(_TIMED, length, _RESERVED, time, _SINGLE_DIRECTORY, size, 0, size)
    proved = b"".join((front, value, padding))
    return _SINGLE_PROOF.pack(MAGIC, crc32c(proved, MAGIC_CRC)) + proved


def open_single(data: bytes) -> tuple[int | None, bytes] | None:
    """The time and the value of such a batch; None if ``data`` is another batch, or not whole.

    The CRC is not checked here: a caller has just checked another CRC over these bytes, or checks
    this one. None is no verdict: :meth:`Batch.parse` finds the error in a batch, if there is one.
    """
    found = _look_at_single(data)
    if found is None:
        return None
    _, time, end = found
    return time, data[SINGLE_BYTES:end]


def is_single(data: bytes) -> bool:
    """True if ``data`` is the whole batch of such a record; all of it is checked, the CRC too."""
    found = _look_at_single(data)
    return found is not None and crc32c(data[8:], MAGIC_CRC) == found[0]


def _look_at_single(data: bytes) -> tuple[int, int | None, int] | None:
    """The CRC in such a batch, its time, and the end of its value; None for any other batch."""
    if len(data) < SINGLE_BYTES:
        return None
    magic, crc, kind, length, reserved, time, directory, size, first, last = _unpack_single(data)
    end = SINGLE_BYTES + size
    if (
        size != last
        or length != len(data)
        or magic != MAGIC
        or directory != _SINGLE_DIRECTORY
        or reserved != _RESERVED
        or first != 0
        or data[end:] != _PADDING[size % 8]
    ):
        return None
    if kind == _TIMED:
        return crc, time, end
    return (crc, None, end) if kind == _TIMELESS and time == 0 else None
