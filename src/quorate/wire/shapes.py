"""Structures in MessagePack: their common base, and the names that come from outside.

A shape is typed and its fields have ranges; both are checked when it is decoded, and a refusal
names the field. The receiver checks the rest: whether a log of that name exists, whether a window
is too long.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from quorate.errors import InvalidArgument, QuorateError
from quorate.fields import NAME_MAX, NAME_PATTERN

__all__ = [
    "LOG_NAME_MAX",
    "Shape",
    "check_log_name",
    "check_name",
    "decode_name",
    "decode_shape",
    "encode_name",
    "encode_shape",
    "wire_text",
]

# Maximum characters of the name of a log.
LOG_NAME_MAX = 249
# Maximum characters of an error's text: a REFUSAL with it still fits the limits before HELLO.
TEXT_MAX = 950

_NAME = re.compile(NAME_PATTERN)
_NOT_A_NAME = f"{{}} {{!r}} is no name: 1 to {NAME_MAX} bytes, without control characters"
# Characters that any file name, any shell and any list with commas takes as they are.
_LOG_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LOG_NAME_MAX}}}")


class Shape(msgspec.Struct):
    """The base of all structures. A field that this release does not know is skipped, so that a
    newer release may add fields."""


ShapeT = TypeVar("ShapeT")


def encode_shape(what: str, shape: msgspec.Struct | dict[str, Any]) -> bytes:
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
        raise InvalidArgument(f"{what} cannot be written as UTF-8: {odd.reason}") from None
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
