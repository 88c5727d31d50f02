"""Messages as bytes: encoded, cut into frames and decoded as between real nodes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from quorate.config import Limits
from quorate.entry import HEADER_BYTES
from quorate.errors import QuorateError
from quorate.raft.messages import Append
from quorate.types import EntryKind
from quorate.wire.frames import PEER, Framer
from quorate.wire.messages import decode_envelopes, encode_envelopes
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.raft.messages import Envelope

__all__ = ["largest_message", "over_the_wire"]

# Settings that bound a message with entries: one of any size, or several up to a limit.
SIZES = ("batch_bytes", "entry_bytes", "append_bytes")
# The largest size that an operator may set.
LEGAL_BYTES = max(item.metadata["range"][1] for item in fields(Limits) if item.name in SIZES)


def largest_message(limits: Iterable[Limits]) -> int:
    """The bytes of batches in one message, if nodes have these limits."""
    sizes: list[int] = [getattr(one, name) for one in limits for name in SIZES]
    return max(sizes)


def over_the_wire(envelope: Envelope, largest: int) -> Envelope:
    """``envelope`` as its receiver gets it, whatever its own settings are. The decoded message must
    equal the message that was sent, also if it arrives in two reads.

    Batches are small here. So the size that a node takes is small, too: the same share of
    ``largest``, the limit of messages in this run, as of the limit of all messages.
    """
    data = b"".join(encode_envelopes([envelope]))
    middle = len(data) // 2
    framer = Framer(PEER._replace(bulk=PEER.bulk * largest // LEGAL_BYTES + _rows(envelope)))
    cluster, source, target = envelope.group.cluster, envelope.source, envelope.target
    try:
        frames = [*framer.feed(data[:middle]), *framer.feed(data[middle:])]
        received = [
            one for frame in frames for one in decode_envelopes(frame, cluster, source, target)
        ]
    except QuorateError as problem:
        raise Violation("wire", f"{source} sent an unreadable message: {problem}") from problem
    if received != [envelope]:
        raise Violation("wire", f"{source} sent {envelope}, {target} gets {received}")
    return received[0]


def _rows(envelope: Envelope) -> int:
    """The bytes of a message without its appended batches: these do not get smaller."""
    message = envelope.message
    entries = message.entries if type(message) is Append else ()
    return sum(
        HEADER_BYTES + 8 * entry.runs + 24 * entry.stamps
        if entry.kind is EntryKind.DATA
        else entry.size
        for entry in entries
    )
