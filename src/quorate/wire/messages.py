"""Messages between replicas, as bytes: one PEER frame carries messages of many groups.

The connection determines sender, receiver and cluster; each message adds its group, the boot of its
sender and its body. Entries of all appends follow as the bulk part, as they are stored::

    control:  4 bytes  messages
              each     incarnation 16, boot counter 8, boot nonce 8, kind 1, 0 3, body length 4,
                       then the body: the numbers of the message in the order of its fields; after
                       those of an append the bytes of each entry's frame, 4 a frame
    bulk:     the frames of the entries of every append, in order
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from quorate.entry import Entry, decode_entry
from quorate.errors import InvalidArgument
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Envelope,
    Heartbeat,
    HeartbeatReply,
    Message,
    MessageKind,
    Mismatch,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestId,
    StateHash,
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.types import BootId, GroupId, Index, NodeId, Position, Term
from quorate.wire.frames import Buffer, Frame, FrameKind, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["decode_envelopes", "encode_envelopes"]

# A frame that claims more messages is refused: a turn makes a few per group.
MESSAGES_MAX = 65_536
# In place of an index that the leader does not know.
NO_INDEX = (1 << 64) - 1

_COUNT = struct.Struct("<I")
_HEAD = struct.Struct("<16sQQB3sI")
_RESERVED = bytes(3)


def _flag(number: int) -> bool:
    """A flag of one byte, 0 or 1 only: every message has one encoding."""
    if number > 1:
        raise InvalidArgument(f"PEER: a flag is {number}")
    return number == 1


def _two_flags(number: int) -> tuple[bool, bool]:
    """The flags of the lowest two bits of one byte."""
    if number > 3:
        raise InvalidArgument(f"PEER: two flags are {number}")
    return bool(number & 1), bool(number & 2)


# For each kind: its layout, its fields as numbers, and the message of such numbers.
_CODECS: dict[
    type[Message],
    tuple[MessageKind, struct.Struct, Callable[[Any], tuple[int, ...]], Callable[..., Message]],
] = {
    PreVote: (
        MessageKind.PRE_VOTE,
        struct.Struct("<QQQQQI"),
        lambda m: (m.term, *m.request, *m.last),
        lambda term, boot, number, *last: PreVote(term, RequestId(boot, number), Position(*last)),
    ),
    PreVoteReply: (
        MessageKind.PRE_VOTE_REPLY,
        struct.Struct("<QQQB"),
        lambda m: (m.term, *m.request, m.granted),
        lambda term, boot, number, granted: PreVoteReply(
            term, RequestId(boot, number), _flag(granted)
        ),
    ),
    Vote: (
        MessageKind.VOTE,
        struct.Struct("<QQQIB"),
        lambda m: (m.term, *m.last, m.transfer),
        lambda term, index, last_term, chain, transfer: Vote(
            term, Position(index, last_term, chain), _flag(transfer)
        ),
    ),
    VoteReply: (
        MessageKind.VOTE_REPLY,
        struct.Struct("<QBQB"),
        lambda m: (m.term, m.granted, m.room, m.full),
        lambda term, granted, room, full: VoteReply(term, _flag(granted), room, _flag(full)),
    ),
    Compare: (
        MessageKind.COMPARE,
        struct.Struct("<QQQQI"),
        lambda m: (m.term, m.number, *m.prev),
        lambda term, number, *prev: Compare(term, number, Position(*prev)),
    ),
    Ack: (
        MessageKind.ACK,
        struct.Struct("<QQQ"),
        lambda m: (m.term, m.number, m.match),
        Ack,
    ),
    Mismatch: (
        MessageKind.MISMATCH,
        struct.Struct("<QQQQQ"),
        lambda m: (m.term, m.number, m.prev, m.hint_index, m.hint_term),
        Mismatch,
    ),
    Heartbeat: (
        MessageKind.HEARTBEAT,
        struct.Struct("<QQQQI"),
        lambda m: (m.term, m.round, *m.committed),
        lambda term, number, *committed: Heartbeat(term, number, Position(*committed)),
    ),
    HeartbeatReply: (
        MessageKind.HEARTBEAT_REPLY,
        struct.Struct("<QQQB"),
        lambda m: (m.term, m.round, m.room, m.full | m.unfit << 1),
        lambda term, number, room, flags: HeartbeatReply(term, number, room, *_two_flags(flags)),
    ),
    ReadIndex: (
        MessageKind.READ_INDEX,
        struct.Struct("<QQQ"),
        lambda m: (m.term, *m.request),
        lambda term, boot, number: ReadIndex(term, RequestId(boot, number)),
    ),
    ReadIndexReply: (
        MessageKind.READ_INDEX_REPLY,
        struct.Struct("<QQQQ"),
        lambda m: (m.term, *m.request, NO_INDEX if m.index is None else m.index),
        lambda term, boot, number, index: ReadIndexReply(
            term, RequestId(boot, number), None if index == NO_INDEX else index
        ),
    ),
    StateHash: (
        MessageKind.STATE_HASH,
        struct.Struct("<QQQB"),
        lambda m: (m.term, m.index, m.digest, m.asks),
        lambda term, index, digest, asks: StateHash(term, index, digest, _flag(asks)),
    ),
    Transfer: (
        MessageKind.TRANSFER,
        struct.Struct("<QQQIQ"),
        lambda m: (m.term, *m.last, m.number),
        lambda term, index, last_term, chain, number: Transfer(
            term, Position(index, last_term, chain), number
        ),
    ),
    TransferRefused: (
        MessageKind.TRANSFER_REFUSED,
        struct.Struct("<QQ"),
        lambda m: (m.term, m.number),
        TransferRefused,
    ),
}
# term, number, prev (index, term, chain), committed, entries; the sizes of the entries follow
_APPEND = struct.Struct("<QQQQIQI")

_DECODERS = {int(kind): (layout, make) for kind, layout, _, make in _CODECS.values()}


def encode_envelopes(envelopes: Sequence[Envelope]) -> list[Buffer]:
    """One PEER frame with these messages, all from one node to another, as buffers to write."""
    parts: list[bytes] = [_COUNT.pack(len(envelopes))]
    bulk: list[Buffer] = []
    bulk_bytes = 0
    for envelope in envelopes:
        message = envelope.message
        if type(message) is Append:
            kind, body = MessageKind.APPEND, _append_body(message)
            for entry in message.entries:
                bulk += (entry.header, entry.body)
                bulk_bytes += entry.size
        else:
            kind, layout, numbers, _ = _CODECS[type(message)]
            body = layout.pack(*numbers(message))
        incarnation = envelope.group.incarnation.to_bytes(16, "little")
        parts += (_HEAD.pack(incarnation, *envelope.boot, kind, _RESERVED, len(body)), body)
    return [encode_frame(FrameKind.PEER, b"".join(parts), bulk_bytes), *bulk]


def _append_body(message: Append) -> bytes:
    entries = message.entries
    numbers = _APPEND.pack(
        message.term, message.number, *message.prev, message.committed, len(entries)
    )
    return numbers + struct.pack(f"<{len(entries)}I", *[entry.size for entry in entries])


def decode_envelopes(frame: Frame, cluster: str, source: NodeId, target: NodeId) -> list[Envelope]:
    """The messages of a PEER frame that ``source`` sent to ``target``.

    Raises InvalidArgument at a message that this release could not have sent. Every entry is proved
    by its CRCs here; the receiver judges whether it follows the entries before it.
    """
    if frame.kind is not FrameKind.PEER:
        raise InvalidArgument(f"PEER is expected here, not {frame.kind.name}")
    return _Decoder(frame, cluster, source, target).decode()


class _Decoder:
    """Reads the control and the bulk part of a PEER frame side by side."""

    __slots__ = (
        "_bulk",
        "_bulk_position",
        "_cluster",
        "_control",
        "_position",
        "_source",
        "_target",
    )

    def __init__(self, frame: Frame, cluster: str, source: NodeId, target: NodeId) -> None:
        self._control = frame.control
        self._bulk = memoryview(frame.bulk)
        self._position = 0
        self._bulk_position = 0
        self._cluster, self._source, self._target = cluster, source, target

    def decode(self) -> list[Envelope]:
        (count,) = self._take(_COUNT)
        if not 0 < count <= MESSAGES_MAX:
            raise InvalidArgument(f"PEER: {count} messages, not 1 to {MESSAGES_MAX}")
        envelopes = [self._envelope() for _ in range(count)]
        left = len(self._control) - self._position, len(self._bulk) - self._bulk_position
        if left != (0, 0):
            raise InvalidArgument(f"PEER: {left[0]} control and {left[1]} bulk bytes are left over")
        return envelopes

    def _take(self, layout: struct.Struct) -> tuple[Any, ...]:
        start = self._position
        self._position += layout.size
        if self._position > len(self._control):
            raise InvalidArgument(f"PEER: the control part ends after {len(self._control)} bytes")
        return layout.unpack_from(self._control, start)

    def _envelope(self) -> Envelope:
        incarnation, counter, nonce, kind, reserved, length = self._take(_HEAD)
        if reserved != _RESERVED:
            raise InvalidArgument(f"PEER: reserved bytes are {reserved.hex()}, not 0")
        group = GroupId(self._cluster, int.from_bytes(incarnation, "little"))
        start = self._position
        message = self._message(kind)
        taken = self._position - start
        if taken != length:
            raise InvalidArgument(f"PEER: message kind {kind} takes {taken} bytes, not {length}")
        return Envelope(group, self._source, self._target, BootId(counter, nonce), message)

    def _message(self, kind: int) -> Message:
        if kind == MessageKind.APPEND:
            return self._append()
        if kind not in _DECODERS:
            raise InvalidArgument(f"PEER: message kind {kind} is not known to this release")
        layout, make = _DECODERS[kind]
        return make(*self._take(layout))

    def _append(self) -> Append:
        term, number, index, prev_term, chain, committed, count = self._take(_APPEND)
        prev = Position(Index(index), Term(prev_term), chain)
        start = self._position
        self._position += 4 * count
        if self._position > len(self._control):
            raise InvalidArgument(f"PEER: the control part does not hold {count} sizes of entries")
        sizes = struct.unpack_from(f"<{count}I", self._control, start)
        entries = tuple(map(self._entry, sizes))
        return Append(Term(term), number, prev, entries, Index(committed))

    def _entry(self, size: int) -> Entry:
        start = self._bulk_position
        self._bulk_position += size
        if self._bulk_position > len(self._bulk):
            raise InvalidArgument(f"PEER: the bulk part ends after {len(self._bulk)} bytes")
        return decode_entry(self._bulk[start : self._bulk_position])
