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

import reprlib
import struct
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from crc32c import crc32c

from quorate.errors import EmptyBatch, InvalidArgument, TooLarge
from quorate.single import (
    BATCH_MAGIC,
    MAGIC_CRC,
    SINGLE_BYTES,
    encode_single,
    is_single,
    open_single,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Sized

__all__ = [
    "Batch",
    "Column",
    "Headers",
    "Keys",
    "Record",
    "assemble_batch",
    "batch_count",
    "encode_batch",
    "open_single",
]

MAGIC = BATCH_MAGIC
VERSION = 1
HEAD_BYTES = 40
# Maximum bytes of a batch: below 2^31, so that no int32 offset can overflow.
BATCH_BYTES_MAX = (1 << 31) - 8
SINGLE_MAX = BATCH_BYTES_MAX - SINGLE_BYTES

KEYS, TIMES, HEADERS, ONE_TIME = 1, 2, 4, 8

_HEAD = struct.Struct("<4sIHHII12sq")
_RESERVED = bytes(12)
_TIME = 1 << 63
_OFFSET = struct.Struct("<i")

# The number of offsets that are compared in one go, and the sign bit of each.
_LANES = 4096
_SIGNS = int.from_bytes(b"\0\0\0\x80" * _LANES, "little")
# For each byte value: 1 if it continues a UTF-8 character, 0 if it begins one.
_INSIDE = bytes(0x80 <= byte < 0xC0 for byte in range(256))

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
Pair = tuple[str, bytes]
Item = TypeVar("Item")
_NOT_ENCODED = (TypeError, ValueError, struct.error)
_ITEMS = {"values": "bytes", "keys": "bytes", "times": "int64", "headers": "(str, bytes) pairs"}


class Record(NamedTuple):
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
    count = _length("values", values)
    if count == 1 and keys is None and headers is None and type(times) is int:
        value = values[0]
        if type(value) is bytes and len(value) <= SINGLE_MAX and -_TIME <= times < _TIME:
            return encode_single(value, times)
    if count == 0:
        raise EmptyBatch("a batch has at least one record")
    flags, time = 0, 0
    parts = _encode("values", values, count, _cells)
    if keys is not None and (added := _encode("keys", keys, count, _keys)):
        flags |= KEYS
        parts += added
    if times is not None:
        column, length = ([times], 1) if isinstance(times, int) else (times, count)
        (packed,) = _encode("times", column, length, _times)
        # Most producers give one time to a whole batch: the head has room for one.
        if packed == packed[:8] * length:
            flags |= ONE_TIME
            time = int.from_bytes(packed[:8], "little", signed=True)
        else:
            flags |= TIMES
            parts.append(packed)
    if headers is not None and (added := _encode("headers", headers, count, _headers)):
        flags |= HEADERS
        parts += added
    return assemble_batch(flags, count, time, parts)


def _length(name: str, column: Sequence[object]) -> int:
    try:
        return len(column)
    except TypeError:
        raise InvalidArgument(f"{name} is not a sequence: {reprlib.repr(column)}") from None


def _encode(
    name: str, column: Sequence[Item], count: int, encode: Callable[[Sequence[Item]], list[bytes]]
) -> list[bytes]:
    """The parts of a column. The item at fault is searched only after the encoding has failed."""
    length = _length(name, column)
    if length != count:
        raise InvalidArgument(f"{name} has {length} items for {count} records")
    try:
        return encode(column)
    except _NOT_ENCODED:
        for place, item in enumerate(column):
            try:
                encode([item])
            except _NOT_ENCODED:
                message = f"{name}[{place}] is not {_ITEMS[name]}: {reprlib.repr(item)}"
                raise InvalidArgument(message) from None
        raise


def _cells(cells: Sequence[bytes]) -> list[bytes]:
    offsets, end = _offsets(cells)
    data = b"".join(cells)
    if len(data) != end:
        raise TypeError("a cell that is as good as bytes and has wider items")
    return [offsets, data]


def _keys(keys: Sequence[bytes | None]) -> list[bytes]:
    if keys.count(None) == len(keys):
        return []
    marks = "".join(["0" if key is None else "1" for key in reversed(keys)])
    validity = int(marks, 2).to_bytes((len(keys) + 7) // 8, "little")
    return [validity, *_cells([b"" if key is None else key for key in keys])]


def _times(times: Sequence[int]) -> list[bytes]:
    return [struct.pack(f"<{len(times)}q", *times)]


def _headers(rows: Sequence[Sequence[Pair]]) -> list[bytes]:
    offsets, end = _offsets(rows)
    if end == 0:
        return []
    names, contents = zip(*chain.from_iterable(rows), strict=True)
    return [offsets, *_cells([*map(str.encode, names)]), *_cells(contents)]


def _offsets(cells: Sequence[Sized]) -> tuple[bytes, int]:
    offsets = [*accumulate(map(len, cells), initial=0)]
    if offsets[-1] > BATCH_BYTES_MAX:
        raise TooLarge(f"a column of {offsets[-1]} bytes; a batch has at most {BATCH_BYTES_MAX}")
    return struct.pack(f"<{len(offsets)}i", *offsets), offsets[-1]


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


class Column(NamedTuple):
    """Bytes, and the offsets that cut them into cells: one more than there are cells."""

    offsets: memoryview
    data: memoryview

    def cells(self, start: int, stop: int) -> list[bytes]:
        bounds = struct.unpack_from(f"<{stop - start + 1}i", self.offsets, 4 * start)
        # One copy of all cells, because a slice of bytes costs half of a slice of a view.
        first = bounds[0]
        data = self.data[first : bounds[-1]].tobytes()
        return [data[begin - first : end - first] for begin, end in pairwise(bounds)]


class Keys(NamedTuple):
    """A column of keys. A cell is a key where the validity bitmap has a one: bit 0 of byte 0 is
    record 0."""

    validity: memoryview
    column: Column

    def cells(self, start: int, stop: int) -> list[bytes | None]:
        bits = int.from_bytes(self.validity[start // 8 : (stop + 7) // 8], "little") >> start % 8
        marks = reversed(f"{bits:0{stop - start}b}")
        cells = self.column.cells(start, stop)
        return [cell if mark == "1" else None for cell, mark in zip(cells, marks, strict=False)]


class Headers(NamedTuple):
    """The pairs of all records, and the offsets that cut them into one list per record."""

    offsets: memoryview
    names: Column
    contents: Column

    def cells(self, start: int, stop: int) -> list[tuple[Pair, ...]]:
        bounds = struct.unpack_from(f"<{stop - start + 1}i", self.offsets, 4 * start)
        first = bounds[0]
        names = map(bytes.decode, self.names.cells(first, bounds[-1]))
        pairs = tuple(zip(names, self.contents.cells(first, bounds[-1]), strict=True))
        return [pairs[begin - first : end - first] for begin, end in pairwise(bounds)]


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
        values = _checked_column(parts, "value", count)
        keys, headers = None, None
        times = parts.get("times", time if flags & ONE_TIME else None)
        if flags & KEYS:
            keys = Keys(parts["key validity"], _checked_column(parts, "key", count))
            _expect("key validity", "length", len(keys.validity), (count + 7) // 8)
            _expect("key validity", "rest", keys.validity[-1] >> (count - 1) % 8 >> 1, 0)
        if flags & TIMES:
            _expect("times", "length", len(parts["times"]), 8 * count)
        if flags & HEADERS:
            pairs = _checked_end(parts, "header", count)
            names = _checked_text(_checked_column(parts, "name", pairs))
            contents = _checked_column(parts, "content", pairs)
            headers = Headers(parts["header offsets"], names, contents)
        return cls(count, values, keys, times, headers)

    def record(self, place: int) -> Record:
        """The record at ``place``, from 0."""
        if not 0 <= place < self.count:
            raise InvalidArgument(f"record {place} of a batch that has {self.count}")
        return next(self._records(place, place + 1))

    def __iter__(self) -> Iterator[Record]:
        return self._records(0, self.count)

    def _records(self, start: int, stop: int) -> Iterator[Record]:
        # The same as Record(*row), at half the price.
        return map(tuple.__new__, repeat(Record), zip(*self.columns(start, stop), strict=False))

    def columns(self, start: int, stop: int) -> tuple[Iterable[Any], ...]:
        """The fields of :class:`Record`, each for all these records. Some iterators are endless."""
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


def _expect(part: str, field: str, found: object, right: object) -> None:
    if found != right:
        raise InvalidArgument(f"batch {part}: {field} is {found!r}, not {right!r}")


def _checked_head(view: memoryview, proved: bool) -> tuple[int, int, int]:
    if len(view) < HEAD_BYTES:
        raise InvalidArgument(f"batch head: {len(view)} bytes, fewer than {HEAD_BYTES}")
    magic, crc, version, flags, count, length, reserved, time = _HEAD.unpack_from(view)
    _expect("head", "magic", magic, MAGIC)
    _expect("head", "version", version, VERSION)
    _expect("head", "length", length, len(view))
    if not proved:  # proved: another CRC over these bytes has just held
        _expect("head", "CRC", crc, crc32c(view[8:], MAGIC_CRC))
    if flags not in _LAYOUTS:
        raise InvalidArgument(f"batch head: flags {flags:#x} are not known to this release")
    if count == 0:
        raise InvalidArgument("batch head: count is 0")
    _expect("head", "reserved", reserved, _RESERVED)
    if not flags & ONE_TIME:
        _expect("head", "time", time, 0)
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
        _expect(name, "offset", offset, position)
        end = offset + length
        position = end + -end % 8
        if any(view[end:position]):
            raise InvalidArgument(f"batch {name}: padding is not 0")
        parts[name] = view[offset:end]
    _expect("directory", "end of the last part", position, len(view))
    return parts


def _checked_column(parts: dict[str, memoryview], name: str, cells: int) -> Column:
    data = parts[f"{name} bytes"]
    _expect(f"{name} bytes", "length", len(data), _checked_end(parts, name, cells))
    return Column(parts[f"{name} offsets"], data)


def _checked_end(parts: dict[str, memoryview], name: str, cells: int) -> int:
    """The last of ``cells + 1`` offsets, which begin with 0 and never fall."""
    part = f"{name} offsets"
    offsets = parts[part]
    _expect(part, "length", len(offsets), 4 * (cells + 1))
    _expect(part, "first", _OFFSET.unpack_from(offsets)[0], 0)
    if not _rises(offsets):
        raise InvalidArgument(f"batch {part}: one is below the one before it")
    return int(_OFFSET.unpack_from(offsets, 4 * cells)[0])


def _rises(offsets: memoryview) -> bool:
    """True if no offset is negative or below the one before it.

    One subtraction of long numbers compares thousands: an offset is a lane of 32 bits. Its sign
    bit, set beforehand, stays set unless the offset falls; so no lane borrows from the next.
    """
    for start in range(0, len(offsets) - 4, 4 * _LANES):
        lanes = offsets[start : start + 4 * _LANES + 4]
        before = int.from_bytes(lanes, "little")
        after = before >> 32
        signs = _SIGNS >> (32 * (_LANES + 1) - 8 * len(lanes))
        if (before | after) & signs or ((after | signs) - before) & signs != signs:
            return False
    return True


def _checked_text(names: Column) -> Column:
    text = names.data.tobytes()
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise InvalidArgument("batch name bytes: not UTF-8") from None
        # All bytes together may be text, and yet a name may begin in the middle of a character.
        inside = text.translate(_INSIDE) + b"\0"
        if any(map(inside.__getitem__, chain.from_iterable(_OFFSET.iter_unpack(names.offsets)))):
            raise InvalidArgument("batch name offsets: one is inside of a character")
    return names
