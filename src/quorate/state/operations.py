"""What control entries ask for, and their bodies.

An operation is checked when it is made, so whoever holds one holds a sound one; whether the state
allows it is another question. Bodies are little-endian and padded with zeros to a multiple of 8
bytes, so that the batches of the entry behind stay aligned::

    PRODUCER  open      version u8, 1, length of name u8, 0, window u32, expiry u64,
                        instance 16 bytes, name
    PRODUCER  expire    version u8, 2, 0, 0, number of epochs u32, epochs u64 each
    FENCE     set       version u8, 1, length of fence u8, length of expect u8, fence, expect
    STAGE     drop      version u8, 1, reason u8, 0, number of attempts u32, attempts u64 each
    STAGE     forget    version u8, 2, 0, 0, number of apps u32, publishes u64 each

A length of 0 says: no fence. Every operation has one body: one that encodes otherwise is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument
from quorate.types import EntryKind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DROPPED_AT_ONCE",
    "DROPS_MAX",
    "EPOCHS_MAX",
    "EXPIRY_US_MAX",
    "EXPIRY_US_MIN",
    "FORGOTTEN_MAX",
    "INSTANCE_BYTES",
    "NAME_BYTES_MAX",
    "WINDOW_MAX",
    "DropReason",
    "DropStaged",
    "ExpireProducers",
    "ForgetApps",
    "OpenProducer",
    "Operation",
    "SetFence",
    "check_name",
    "check_range",
    "decode_operation",
    "encode_operation",
]

VERSION = 1
# Of a producer's name, and of a fence.
NAME_BYTES_MAX = 255
INSTANCE_BYTES = 16
# Runs that a producer may ask to be kept.
WINDOW_MAX = 1024
EXPIRY_US_MIN = 1_000_000
EXPIRY_US_MAX = 10 * 365 * 24 * 3600 * 1_000_000
# Producers that one entry expires, so that applying it takes no long time; more wait for the next.
EPOCHS_MAX = 256
# Attempts that one entry drops: no leader lets more be staged. And apps that one forgets.
DROPS_MAX = 65_536
# Attempts that a leader drops with one entry, so that applying it takes no long time; for more it
# writes several, in several turns.
DROPPED_AT_ONCE = 4096
# What a leader forgets with one entry that nobody asked for: such entries live on the reserve of a
# disk. More wait for the next.
FORGOTTEN_MAX = 256

_OPEN = struct.Struct("<BBBBIQ16s")
_SET = struct.Struct("<BBBB")
_NAMED = struct.Struct("<BBBBI")
_OPEN_CODE, _EXPIRE_CODE, _SET_CODE, _DROP_CODE, _FORGET_CODE = 1, 2, 1, 1, 2
_INDEX_MAX = 2**64 - 1


def check_name(what: str, name: str) -> None:
    """Refuse what is too short, too long or not text. ``what`` says whose name it is."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError as odd:
        raise InvalidArgument(f"{what} is not text that UTF-8 can hold: {odd.reason}") from odd
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidArgument(f"{what} has {size} bytes, not 1 to {NAME_BYTES_MAX}")


def check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}, not {low} to {high}")


def _check_rising(what: str, indexes: tuple[int, ...], most: int) -> None:
    """Entries that are named: at least one, each once."""
    check_range(f"number of {what}s", len(indexes), 1, most)
    check_range(what, indexes[0], 1, _INDEX_MAX)
    check_range(what, indexes[-1], 1, _INDEX_MAX)
    if any(one >= other for one, other in pairwise(indexes)):
        raise InvalidArgument(f"{what}s are not in rising order")


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """Begin to write under ``name``; whoever wrote under it before is fenced off."""

    name: str
    # Random, drawn by whoever opens: a repeat of the same opening is known by it.
    instance: bytes
    # How many of the newest runs are kept to answer a repeated batch with its offset.
    window: int
    # Forgotten after so much time without a batch, in microseconds of append time.
    expiry_us: int

    def __post_init__(self) -> None:
        check_name("producer name", self.name)
        if len(self.instance) != INSTANCE_BYTES:
            raise InvalidArgument(
                f"producer instance has {len(self.instance)} bytes, not {INSTANCE_BYTES}"
            )
        check_range("producer window", self.window, 1, WINDOW_MAX)
        check_range("producer expiry in µs", self.expiry_us, EXPIRY_US_MIN, EXPIRY_US_MAX)


@dataclass(frozen=True, slots=True)
class ExpireProducers:
    """Forget producers that were idle for their expiry."""

    # Rising, at least one.
    epochs: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_rising("epoch", self.epochs, EPOCHS_MAX)


@dataclass(frozen=True, slots=True)
class SetFence:
    """Replace the fence ``expect`` by ``fence``; None is no fence."""

    fence: str | None
    expect: str | None

    def __post_init__(self) -> None:
        for what, fence in (("fence", self.fence), ("expected fence", self.expect)):
            if fence is not None:
                check_name(what, fence)


class DropReason(IntEnum):
    """Why staged chunks were dropped. Numbers are part of the format and are never reused."""

    # Their writer gave them up.
    ABORTED = 1
    # There was no room, and a newer run of the same app needed some.
    REPLACED = 2
    # Nothing was added to them for too long.
    EXPIRED = 3
    # The same, for not as long, and somebody else needed the room.
    IDLE = 4


@dataclass(frozen=True, slots=True)
class DropStaged:
    """Forget what some attempts have staged."""

    reason: DropReason
    # Each named by the index of its first chunk; rising, at least one.
    attempts: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_rising("attempt", self.attempts, DROPS_MAX)


@dataclass(frozen=True, slots=True)
class ForgetApps:
    """Forget what apps published last that have published nothing for long."""

    # Each named by the index of its last publish; rising, at least one.
    publishes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_rising("publish", self.publishes, DROPS_MAX)


Operation = OpenProducer | ExpireProducers | SetFence | DropStaged | ForgetApps


def encode_operation(operation: Operation) -> tuple[EntryKind, bytes]:
    """The kind and the body of the entry that carries ``operation``."""
    match operation:
        case OpenProducer(name, instance, window, expiry_us):
            label = name.encode()
            head = _OPEN.pack(VERSION, _OPEN_CODE, len(label), 0, window, expiry_us, instance)
            return EntryKind.PRODUCER, _padded(head + label)
        case ExpireProducers(epochs):
            return EntryKind.PRODUCER, _named(_EXPIRE_CODE, 0, epochs)
        case SetFence(fence, expect):
            labels = (fence or "").encode(), (expect or "").encode()
            head = _SET.pack(VERSION, _SET_CODE, *map(len, labels))
            return EntryKind.FENCE, _padded(head + labels[0] + labels[1])
        case DropStaged(reason, attempts):
            return EntryKind.STAGE, _named(_DROP_CODE, reason, attempts)
        case ForgetApps(publishes):
            return EntryKind.STAGE, _named(_FORGET_CODE, 0, publishes)


def _named(code: int, detail: int, indexes: tuple[int, ...]) -> bytes:
    head = _NAMED.pack(VERSION, code, detail, 0, len(indexes))
    return head + struct.pack(f"<{len(indexes)}Q", *indexes)


def _padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % 8)


def decode_operation(kind: EntryKind, body: bytes) -> Operation:
    """What the entry with this body asks for. Raises InvalidArgument for a body that
    :func:`encode_operation` does not make."""
    decode = _DECODERS.get((kind, *body[:2]))
    if decode is None:
        raise InvalidArgument(
            f"{kind.name} operation {body[:2].hex() or 'without bytes'} is not known here"
        )
    try:
        operation = decode(body)
    except (struct.error, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"{kind.name} operation cannot be read: {odd}") from odd
    if encode_operation(operation) != (kind, body):
        raise InvalidArgument(f"{kind.name} operation has bytes that nobody writes")
    return operation


def _decode_open(body: bytes) -> OpenProducer:
    _, _, length, _, window, expiry_us, instance = _OPEN.unpack_from(body)
    name = body[_OPEN.size :][:length].decode()
    return OpenProducer(name, instance, window, expiry_us)


def _decode_expire(body: bytes) -> ExpireProducers:
    return ExpireProducers(_unpack_named("epochs", body, EPOCHS_MAX)[1])


def _decode_drop(body: bytes) -> DropStaged:
    reason, attempts = _unpack_named("attempts", body, DROPS_MAX)
    check_range("reason", reason, min(DropReason), max(DropReason))
    return DropStaged(DropReason(reason), attempts)


def _decode_forget(body: bytes) -> ForgetApps:
    return ForgetApps(_unpack_named("apps", body, DROPS_MAX)[1])


def _unpack_named(what: str, body: bytes, most: int) -> tuple[int, tuple[int, ...]]:
    _, _, detail, _, count = _NAMED.unpack_from(body)
    check_range(f"number of {what}", count, 1, most)
    return detail, struct.unpack_from(f"<{count}Q", body, _NAMED.size)


def _decode_set(body: bytes) -> SetFence:
    _, _, fence, expect = _SET.unpack_from(body)
    labels = body[_SET.size :]
    return SetFence(_label(labels[:fence]), _label(labels[fence:][:expect]))


def _label(data: bytes) -> str | None:
    return data.decode() if data else None


# By kind, version and the number of the operation.
_DECODERS: dict[tuple[int, ...], Callable[[bytes], Operation]] = {
    (EntryKind.PRODUCER, VERSION, _OPEN_CODE): _decode_open,
    (EntryKind.PRODUCER, VERSION, _EXPIRE_CODE): _decode_expire,
    (EntryKind.FENCE, VERSION, _SET_CODE): _decode_set,
    (EntryKind.STAGE, VERSION, _DROP_CODE): _decode_drop,
    (EntryKind.STAGE, VERSION, _FORGET_CODE): _decode_forget,
}
