"""The operations of control entries, and the encoding of their bodies.

An operation checks its fields when it is made, so every operation is well-formed; the state may
refuse it all the same. Bodies are little-endian and padded with zeros to a multiple of 8 bytes, so
that the batches of the next entry stay aligned::

    PRODUCER  open      version u8, 1, length of name u8, 0, window u32, expiry u64,
                        instance 16 bytes, name
    PRODUCER  expire    version u8, 2, 0, 0, number of epochs u32, epochs u64 each
    FENCE     set       version u8, 1, length of fence u8, length of expect u8, fence, expect
    STAGE     drop      version u8, 1, reason u8, 0, number of attempts u32, attempts u64 each
    STAGE     forget    version u8, 2, 0, 0, number of apps u32, publishes u64 each

A length of 0 means: no fence. Every operation has exactly one body; any other body is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from quorate.commands import OpenProducer, SetFence, check_range
from quorate.errors import InvalidArgument
from quorate.types import EntryKind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DROPPED_AT_ONCE",
    "DROPS_MAX",
    "EPOCHS_MAX",
    "FORGOTTEN_MAX",
    "DropReason",
    "DropStaged",
    "ExpireProducers",
    "ForgetApps",
    "Operation",
    "decode_operation",
    "encode_operation",
]

VERSION = 1
# Maximum number of producers that one entry expires, which bounds the time to apply it; more wait
# for the next entry.
EPOCHS_MAX = 256
# Maximum number of attempts that one entry drops, because no leader lets more be staged, and of
# apps that one entry forgets.
DROPS_MAX = 65_536
# Maximum number of attempts that a leader drops with one entry, which bounds the time to apply it;
# for more attempts it writes several entries, in several turns.
DROPPED_AT_ONCE = 4096
# Maximum number of idle attempts or apps that a leader forgets with one entry. No request asked for
# such an entry, and it uses the reserve of the disk. More attempts or apps wait for the next entry.
FORGOTTEN_MAX = 256

_OPEN = struct.Struct("<BBBBIQ16s")
_SET = struct.Struct("<BBBB")
_NAMED = struct.Struct("<BBBBI")
_OPEN_CODE, _EXPIRE_CODE, _SET_CODE, _DROP_CODE, _FORGET_CODE = 1, 2, 1, 1, 2
_INDEX_MAX = 2**64 - 1


def _check_rising(what: str, indexes: tuple[int, ...], most: int) -> None:
    """Check indexes that name entries: one to ``most`` of them, in rising order, each once."""
    check_range(f"number of {what}s", len(indexes), 1, most)
    check_range(what, indexes[0], 1, _INDEX_MAX)
    check_range(what, indexes[-1], 1, _INDEX_MAX)
    if any(one >= other for one, other in pairwise(indexes)):
        raise InvalidArgument(f"{what}s are not in rising order")


@dataclass(frozen=True, slots=True)
class ExpireProducers:
    """Forget the producers that were idle for their expiry."""

    # The epochs of these producers, in rising order, at least one.
    epochs: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_rising("epoch", self.epochs, EPOCHS_MAX)


class DropReason(IntEnum):
    """The reason to drop staged chunks. Numbers are part of the format and are never reused."""

    # Their writer aborted them.
    ABORTED = 1
    # Staging was full, and a newer run of the same app needed the space.
    REPLACED = 2
    # No chunk was added to their attempt for the expiry of staged chunks.
    EXPIRED = 3
    # No chunk was added to their attempt for a shorter time, and another run needed space.
    IDLE = 4


@dataclass(frozen=True, slots=True)
class DropStaged:
    """Drop the staged chunks of some attempts."""

    reason: DropReason
    # The index of the first chunk of each attempt, in rising order, at least one.
    attempts: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_rising("attempt", self.attempts, DROPS_MAX)


@dataclass(frozen=True, slots=True)
class ForgetApps:
    """Forget the last publishes of apps that were idle for their expiry."""

    # The index of the last publish of each app, in rising order, at least one.
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
    """The operation of the entry with this body. Raises InvalidArgument for a body that
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
        raise InvalidArgument(f"{kind.name} operation has bytes that no release writes")
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


# The decoders by entry kind, version and code of the operation.
_DECODERS: dict[tuple[int, ...], Callable[[bytes], Operation]] = {
    (EntryKind.PRODUCER, VERSION, _OPEN_CODE): _decode_open,
    (EntryKind.PRODUCER, VERSION, _EXPIRE_CODE): _decode_expire,
    (EntryKind.FENCE, VERSION, _SET_CODE): _decode_set,
    (EntryKind.STAGE, VERSION, _DROP_CODE): _decode_drop,
    (EntryKind.STAGE, VERSION, _FORGET_CODE): _decode_forget,
}
