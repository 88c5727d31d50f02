"""Frames, the unit of all traffic. docs/format-wire.md draws them::

    offset  size  field
         0     2  magic     "QR"
         2     1  version   of the frame's layout: 1
         3     1  kind      FrameKind
         4     4  control   bytes of the part that the CRC covers
         8     4  bulk      bytes of the part that proves itself: batches, or frames of entries
        12     4  CRC       CRC32C of bytes 0..12 and the control part
        16        control part, then bulk part

Lengths are compared with the receiver's limits before any byte is kept: an unidentified connection
gets little room, a client as much as a batch takes, a peer as much as the largest entry takes. A
frame that is not valid closes its connection: the start of the next frame cannot be found.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

from crc32c import crc32c

from quorate.errors import InvalidArgument, QuorateError, TooLarge, VersionMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "FRAME_BYTES",
    "FRAME_VERSION",
    "PEER",
    "UNIDENTIFIED",
    "Buffer",
    "Frame",
    "FrameKind",
    "FrameLimits",
    "Framer",
    "encode_frame",
]

Buffer = bytes | bytearray | memoryview

MAGIC = b"QR"
FRAME_VERSION = 1
# Bytes of the head, which stands before the control part.
FRAME_BYTES = 16

# Pieces of an incomplete frame of at least this many bytes are kept as they came; shorter ones are
# copied once more.
LONG_BYTES = 4096
# A bulk part of which PLACED_BYTES have come gets memory for all of it at once, if that is at most
# PLACED_TIMES as much: a claim alone gets no memory.
PLACED_BYTES = 32 << 10
PLACED_TIMES = 64

_PROVED_BYTES = 12
_PREFIX = MAGIC + bytes([FRAME_VERSION])
_PROVED = struct.Struct("<3sBII")
_HEAD = struct.Struct("<3sBIII")


class FrameKind(IntEnum):
    """The number of each kind of frame. Numbers never change."""

    HELLO = 1
    WELCOME = 2
    REFUSAL = 3
    PING = 4
    PONG = 5
    PEER = 8
    APPEND = 16
    RECEIPTS = 17
    FETCH = 18
    RECORDS = 19
    CALL = 20
    RESULT = 21
    FAILURE = 22


_KINDS = {int(kind): kind for kind in FrameKind}
# The kinds that have a bulk part. In other kinds no checksum would prove it.
_WITH_BULK = {
    int(kind) for kind in (FrameKind.PEER, FrameKind.APPEND, FrameKind.RECORDS, FrameKind.CALL)
}


class FrameLimits(NamedTuple):
    """The longest parts that a receiver takes, in bytes."""

    control: int
    bulk: int


# Before the handshake no client or peer has a reason to send more.
UNIDENTIFIED = FrameLimits(4096, 0)
# Between nodes: any entry that a node with any legal settings may have logged. The settings of the
# receiver do not count: an entry that it refused would be sent again for ever. An entry is a batch
# of up to 64 MiB with its rows; the control part has the size of each entry.
PEER = FrameLimits(8 << 20, 68 << 20)


@dataclass(slots=True)
class Frame:
    """One whole frame."""

    kind: FrameKind
    control: bytes
    # The frame's CRC does not cover it: the reader checks the batches or entries in it.
    bulk: bytes

    @property
    def size(self) -> int:
        return FRAME_BYTES + len(self.control) + len(self.bulk)


def encode_frame(kind: FrameKind, control: Buffer, bulk_bytes: int = 0) -> bytes:
    """Head and control part of a frame. The sender writes ``bulk_bytes`` bytes after it, as they
    are."""
    proved = _PROVED.pack(_PREFIX, kind, len(control), bulk_bytes)
    proof = crc32c(control, crc32c(proved)).to_bytes(4, "little")
    return b"".join((proved, proof, control))


class _Pieces:
    """The pieces that have come of an incomplete head, control part or bulk part.

    Long pieces are kept as they came, so that the whole is copied once. Short ones are put
    together: a single byte as an object would take fifty bytes.
    """

    __slots__ = ("_pieces", "_tail", "size")

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._tail = bytearray()
        self.size = 0

    def add(self, piece: bytes | memoryview) -> int:
        if len(piece) < LONG_BYTES:
            self._tail += piece
        else:
            self._pieces += (self._tail, piece)
            self._tail = bytearray()
        self.size += len(piece)
        return len(piece)

    def joined(self) -> bytes:
        return b"".join((*self._pieces, self._tail))


class Framer:
    """Cuts a stream of bytes into frames.

    Most frames lie whole in the bytes that are fed. The pieces of another frame are gathered:
    memory grows with the bytes received, not with the length that a head claims. The rest of a long
    bulk part may be received where it belongs: that saves two copies.
    """

    __slots__ = (
        "_failure", "_missing", "_pieces", "_place", "begun", "gap", "limits", "shortcut",
    )  # fmt: skip

    def __init__(self, limits: FrameLimits = UNIDENTIFIED) -> None:
        # Called before each frame with the bytes of a read and the place where the rest begins. It
        # may handle some whole frames itself, and returns where the first other frame begins.
        self.shortcut: Callable[[bytes, int], int] | None = None
        # May be raised once the other side has introduced itself: holds from the next frame on.
        self.limits = limits
        # A frame whose bulk part has not come as a whole; ``bulk`` is empty in it.
        self.begun: Frame | None = None
        # Pieces of that bulk part, or of a head with its control part.
        self._pieces = _Pieces()
        # Bytes that have to come before the pieces are looked at; 0 if no piece is gathered.
        self._missing = 0
        # Memory for a whole bulk part, and the gap in it for the bytes that have not come yet. They
        # may be received into the gap instead of being fed: :meth:`filled` is told their number.
        self._place = bytearray()
        self.gap: memoryview | None = None
        self._failure: QuorateError | None = None

    @property
    def waiting(self) -> int:
        """Bytes that have come of a frame that is not complete."""
        front = self.begun.size if self.begun is not None else 0
        placed = len(self._place) - len(self.gap) if self.gap is not None else 0
        return front + self._pieces.size + placed

    def filled(self, size: int) -> Frame | None:
        """Note that ``size`` bytes were received into the gap, and return the frame if it is
        complete."""
        assert self.gap is not None and self.begun is not None, "only a gap is filled"
        if size < len(self.gap):
            self.gap = self.gap[size:]
            return None
        begun, place = self.begun, self._place
        self.begun, self._place, self.gap = None, bytearray(), None
        # The bytearray is not changed from now on and reads like bytes, so a copy is not needed.
        return Frame(begun.kind, begun.control, cast("bytes", place))

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take ``data`` and yield every frame that it completes; the caller goes through them at
        once.

        Raises InvalidArgument, TooLarge or VersionMismatch at the first frame that is not valid,
        and from then on for ever: there is no way to find the next.
        """
        if self._failure is not None:
            raise self._failure
        if self.gap is not None:
            data = memoryview(data)
            size = min(len(data), len(self.gap))
            self.gap[:size] = data[:size]
            frame, data = self.filled(size), data[size:]
            if frame is None:
                return
            yield frame
        chunk, start = bytes(data), 0  # no copy if ``data`` is bytes already
        if self._missing > len(chunk):
            self._missing -= self._pieces.add(chunk)
            return
        if self.begun is not None:
            start = self._missing
            self._pieces.add(memoryview(chunk)[:start])
            yield Frame(self.begun.kind, self.begun.control, self._gathered())
        elif self._missing:
            self._pieces.add(chunk)
            chunk = self._gathered()
        needed = FRAME_BYTES
        while len(chunk) - start >= FRAME_BYTES:
            if self.shortcut is not None:
                start = self.shortcut(chunk, start)
                if len(chunk) - start < FRAME_BYTES:
                    break
            prefix, number, control_bytes, bulk_bytes, proof = _HEAD.unpack_from(chunk, start)
            limits = self.limits
            if (
                prefix != _PREFIX
                or number not in (_WITH_BULK if bulk_bytes else _KINDS)
                or control_bytes > limits.control
                or bulk_bytes > limits.bulk
            ):
                lengths = FrameLimits(control_bytes, bulk_bytes)
                raise self._failed(_why_not(prefix, number, lengths, limits))
            middle = start + FRAME_BYTES + control_bytes
            if middle > len(chunk):
                needed += control_bytes
                break
            kind = _KINDS[number]
            control = chunk[start + FRAME_BYTES : middle]
            if crc32c(control, crc32c(chunk[start : start + _PROVED_BYTES])) != proof:
                raise self._failed(InvalidArgument(f"frame {kind.name}: CRC does not match"))
            start = middle + bulk_bytes
            if start > len(chunk):
                self.begun = Frame(kind, control, b"")
                had = len(chunk) - middle
                if had >= PLACED_BYTES and bulk_bytes <= had * PLACED_TIMES:
                    self._place = bytearray(bulk_bytes)
                    self._place[:had] = memoryview(chunk)[middle:]
                    self.gap = memoryview(self._place)[had:]
                else:
                    self._gather(chunk, middle, bulk_bytes)
                return
            yield Frame(kind, control, chunk[middle:start])
        if start < len(chunk):
            self._gather(chunk, start, needed)

    def _gather(self, chunk: bytes, start: int, needed: int) -> None:
        """Begin to gather ``needed`` bytes, with the bytes of ``chunk`` from ``start`` on."""
        self._missing = needed - self._pieces.add(memoryview(chunk)[start:])

    def _gathered(self) -> bytes:
        data = self._pieces.joined()
        self.begun, self._pieces, self._missing = None, _Pieces(), 0
        return data

    def _failed(self, failure: QuorateError) -> QuorateError:
        self._failure = failure
        return failure


def _why_not(prefix: bytes, number: int, lengths: FrameLimits, limits: FrameLimits) -> QuorateError:
    """The error for a head after which the receiver cannot go on."""
    magic, version = prefix[:2], prefix[2]
    if magic != MAGIC:
        return InvalidArgument(f"a frame begins with {MAGIC!r}, not with {magic!r}")
    if version != FRAME_VERSION:
        return VersionMismatch(f"frame version {version}, this release speaks {FRAME_VERSION}")
    if number not in _KINDS:
        return InvalidArgument(f"frame kind {number} is not known to this release")
    name = _KINDS[number].name
    if lengths.bulk and number not in _WITH_BULK:
        return InvalidArgument(f"frame {name} has no bulk part; this one has {lengths.bulk} bytes")
    part = "control" if lengths.control > limits.control else "bulk"
    length, limit = getattr(lengths, part), getattr(limits, part)
    return TooLarge(f"frame {name}: {part} part of {length} bytes, limit {limit}")
