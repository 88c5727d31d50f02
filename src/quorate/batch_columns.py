"""The columns of a batch: encoded, checked before any size is believed, and read in place.

A column of cells is their bytes, and the offsets that cut them into cells. ``batch`` draws the
parts of each column. The checks take no step of Python per record.
"""

from __future__ import annotations

import reprlib
import struct
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.errors import InvalidArgument, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

__all__ = [
    "BATCH_BYTES_MAX",
    "Column",
    "Headers",
    "Keys",
    "Pair",
    "checked_column",
    "checked_headers",
    "checked_keys",
    "column_length",
    "encode_column",
    "expect",
]


# Maximum bytes of a batch: below 2^31, so that no int32 offset can overflow.
BATCH_BYTES_MAX = (1 << 31) - 8

_OFFSET = struct.Struct("<i")

# The number of offsets that are compared in one go, and the sign bit of each.
_LANES = 4096
_SIGNS = int.from_bytes(b"\0\0\0\x80" * _LANES, "little")
# For each byte value: 1 if it continues a UTF-8 character, 0 if it begins one.
_INSIDE = bytes(0x80 <= byte < 0xC0 for byte in range(256))

Pair = tuple[str, bytes]
_NOT_ENCODED = (TypeError, ValueError, struct.error)


# -- encoding ------------------------------------------------------------------------------------


def column_length(name: str, column: Sequence[object]) -> int:
    try:
        return len(column)
    except TypeError:
        raise InvalidArgument(f"{name} is not a sequence: {reprlib.repr(column)}") from None


def encode_column(name: str, column: Sequence[Any], count: int) -> list[bytes]:
    """The parts of a column; none if it says nothing. The item at fault is searched only after the
    encoding has failed."""
    kind, encode = _KINDS[name]
    length = column_length(name, column)
    if length != count:
        raise InvalidArgument(f"{name} has {length} items for {count} records")
    try:
        return encode(column)
    except _NOT_ENCODED:
        for place, item in enumerate(column):
            try:
                encode([item])
            except _NOT_ENCODED:
                message = f"{name}[{place}] is not {kind}: {reprlib.repr(item)}"
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


# The items of each column in words, and its encoder.
_KINDS: dict[str, tuple[str, Callable[[Sequence[Any]], list[bytes]]]] = {
    "values": ("bytes", _cells),
    "keys": ("bytes", _keys),
    "times": ("int64", _times),
    "headers": ("(str, bytes) pairs", _headers),
}


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


# -- checking ------------------------------------------------------------------------------------


def expect(part: str, field: str, found: object, right: object) -> None:
    if found != right:
        raise InvalidArgument(f"batch {part}: {field} is {found!r}, not {right!r}")


def checked_column(parts: dict[str, memoryview], name: str, cells: int) -> Column:
    data = parts[f"{name} bytes"]
    expect(f"{name} bytes", "length", len(data), _checked_end(parts, name, cells))
    return Column(parts[f"{name} offsets"], data)


def checked_keys(parts: dict[str, memoryview], count: int) -> Keys:
    keys = Keys(parts["key validity"], checked_column(parts, "key", count))
    expect("key validity", "length", len(keys.validity), (count + 7) // 8)
    expect("key validity", "rest", keys.validity[-1] >> (count - 1) % 8 >> 1, 0)
    return keys


def checked_headers(parts: dict[str, memoryview], count: int) -> Headers:
    pairs = _checked_end(parts, "header", count)
    names = _checked_text(checked_column(parts, "name", pairs))
    contents = checked_column(parts, "content", pairs)
    return Headers(parts["header offsets"], names, contents)


def _checked_end(parts: dict[str, memoryview], name: str, cells: int) -> int:
    """The last of ``cells + 1`` offsets, which begin with 0 and never fall."""
    part = f"{name} offsets"
    offsets = parts[part]
    expect(part, "length", len(offsets), 4 * (cells + 1))
    expect(part, "first", _OFFSET.unpack_from(offsets)[0], 0)
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
