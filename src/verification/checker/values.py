"""Values that name their sender, so that every reader of a value knows its origin.

A value begins with its identity: the client, and the number of values that client sent before. The
rest is drawn from identity and size, so that a byte that changed on the way is noticed.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import repeat

__all__ = [
    "CLIENTS_MAX",
    "NOBODY",
    "NUMBERS_MAX",
    "ByValue",
    "identity",
    "identity_of",
    "show_values",
    "value_of",
]

_NUMBER_BITS = 40
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
NUMBERS_MAX = 1 << _NUMBER_BITS
# A client is one process: a process that is started again takes another number.
CLIENTS_MAX = 1 << 23
IDENTITY_BYTES = 8

# Set in the identities of values that no client can have sent.
_FOREIGN = 1 << 63
# The identity that stands for no value at all.
NOBODY = (1 << 64) - 1


def identity_of(client: int, number: int) -> int:
    """The identity of a client's value. Clients number their values from 0, without gaps."""
    if not 0 <= client < CLIENTS_MAX or not 0 <= number < NUMBERS_MAX:
        raise ValueError(f"client {client}, number {number}: out of range")
    return client << _NUMBER_BITS | number


def value_of(client: int, number: int, size: int) -> bytes:
    """The value that a client sends under this number; at least 8 bytes."""
    if size < IDENTITY_BYTES:
        raise ValueError(f"a value of {size} bytes has no room for its identity")
    return _value(identity_of(client, number), size)


def identity(value: bytes) -> int:
    """The identity of ``value``; a value that no client can have sent gets one of its own."""
    claimed = int.from_bytes(value[:IDENTITY_BYTES], "big")
    if len(value) >= IDENTITY_BYTES and claimed < _FOREIGN and value == _value(claimed, len(value)):
        return claimed
    return _FOREIGN | int.from_bytes(blake2b(value, digest_size=8).digest(), "big") >> 2


def _value(claimed: int, size: int) -> bytes:
    head = claimed.to_bytes(IDENTITY_BYTES, "big")
    rest = size - IDENTITY_BYTES
    drawn = blake2b(head + size.to_bytes(8, "big"), digest_size=32).digest()
    return head + (drawn * (rest // 32 + 1))[:rest]


def show_values(first: int, count: int = 1) -> str:
    """Name values with consecutive identities for people: client and numbers."""
    if first >= _FOREIGN:
        return f"foreign value {first & ~_FOREIGN:x}"
    client, number = first >> _NUMBER_BITS, first & _NUMBER_MASK
    return f"{client}#{number}" if count == 1 else f"{client}#{number}..{number + count - 1}"


class ByValue:
    """A number for each value: -1 unless it was set.

    Clients count their values, so an array per client serves as a dict would, in a tenth of the
    memory.
    """

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[int, array[int]] = {}

    def __getitem__(self, identity: int) -> int:
        column = self._columns.get(identity >> _NUMBER_BITS)
        number = identity & _NUMBER_MASK
        return column[number] if column is not None and number < len(column) else -1

    def __setitem__(self, identity: int, what: int) -> None:
        column = self._columns.get(identity >> _NUMBER_BITS)
        if column is None:
            column = self._columns[identity >> _NUMBER_BITS] = array("q")
        number = identity & _NUMBER_MASK
        if number >= len(column):
            column.extend(repeat(-1, number + 1 - len(column)))
        column[number] = what

    def claim(self, first: int, count: int, what: int) -> list[int]:
        """Set the unset entries of values with consecutive identities; return the other values."""
        column = self._columns.get(first >> _NUMBER_BITS)
        # The values come in order, as they are sent.
        if column is not None and first & _NUMBER_MASK == len(column):
            column.extend(repeat(what, count))
            return []
        claimed = []
        for identity in range(first, first + count):
            if self[identity] < 0:
                self[identity] = what
            else:
                claimed.append(identity)
        return claimed
