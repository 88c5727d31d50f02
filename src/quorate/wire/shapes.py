"""Structures in MessagePack: their common base, and the types of fields that come from outside.

A shape is typed and its fields have ranges; both are checked when it is decoded, and a refusal
names the field. The receiver checks the rest: whether a log of that name exists, whether a window
is too long.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from quorate.errors import InvalidArgument, QuorateError

__all__ = [
    "ID_BYTES",
    "LOG_NAME_MAX",
    "NAME_MAX",
    "Id",
    "Milliseconds",
    "Name",
    "Number",
    "Shape",
    "Short",
    "Time",
    "check_log_name",
    "check_name",
    "decode_name",
    "decode_shape",
    "encode_name",
    "encode_shape",
    "wire_text",
]

# Bytes of an id that is drawn once and never again: of incarnations, instances of producers, disks.
ID_BYTES = 16
# Maximum bytes of a name that is packed by hand, and maximum characters of a name in a shape; the
# part that keeps the name may allow less.
NAME_MAX = 255
LOG_NAME_MAX = 249
# Maximum characters of an error's text: a REFUSAL with it still fits the limits of a stranger.
TEXT_MAX = 950

# Names end up in messages, log lines and labels: a line break or a NUL in one is a trap.
_NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+\Z"
_NAME = re.compile(_NAME_PATTERN)
_NOT_A_NAME = f"{{}} {{!r}} is no name: 1 to {NAME_MAX} bytes, without control characters"
# Characters that any file name, any shell and any list with commas takes as they are.
_LOG_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LOG_NAME_MAX}}}")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=_NAME_PATTERN)]
Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
# Offsets, indexes, terms: 63 bits, which no log fills.
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# A count within a request or an entry, such as partitions and chunks.
Short = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
# Microseconds since 1970, by the clock of a leader.
Time = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Shape(msgspec.Struct):
    """The base of all structures. A field that this release does not know is skipped, so that a
    newer release may add fields."""


ShapeT = TypeVar("ShapeT")


def encode_shape(what: str, shape: Shape) -> bytes:
    """The bytes of ``shape``. Raises InvalidArgument at a text or number that no receiver could
    read."""
    try:
        return msgspec.msgpack.encode(shape)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidArgument(f"{what}: {error}") from None


def decode_shape(what: str, data: bytes, decoder: msgspec.msgpack.Decoder[ShapeT]) -> ShapeT:
    """The shape in ``data``. Raises InvalidArgument, naming the field, unless ``data`` is exactly
    one."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what}: {error}") from None


def check_log_name(name: object) -> None:
    if not isinstance(name, str) or not _LOG_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidArgument(
            f"the name of a log is 1 to {LOG_NAME_MAX} letters, digits, dots, underscores or "
            f"hyphens, not {name!r}"
        )


def check_name(what: str, name: object) -> None:
    """Check any other name that a caller gives. ``what`` is its noun in the error."""
    if not isinstance(name, str):
        raise InvalidArgument(_NOT_A_NAME.format(what, name))
    encode_name(what, name)


def encode_name(what: str, name: str) -> bytes:
    """The bytes of a name that is packed by hand, under the same rule. ``what`` is its noun in the
    error."""
    try:
        data = name.encode()
    except UnicodeEncodeError as odd:
        raise InvalidArgument(f"{what} is not text that UTF-8 can hold: {odd.reason}") from None
    if len(data) > NAME_MAX or not _NAME.match(name):
        raise InvalidArgument(_NOT_A_NAME.format(what, name[:NAME_MAX]))
    return data


def decode_name(what: str, data: bytes) -> str:
    try:
        name = data.decode()
    except UnicodeDecodeError as odd:
        raise InvalidArgument(f"{what} is not UTF-8: {odd.reason}") from None
    if not _NAME.match(name):
        raise InvalidArgument(_NOT_A_NAME.format(what, name))
    return name


def wire_text(error: QuorateError) -> str:
    """The text of ``error``, fit to be sent: this cannot fail, whatever characters it has."""
    return str(error)[:TEXT_MAX].encode(errors="replace").decode()
