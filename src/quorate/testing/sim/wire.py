"""Messages as bytes: encoded, cut into frames and decoded as between real nodes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from quorate.config import Limits
from quorate.entry import HEADER_BYTES
from quorate.errors import QuorateError
from quorate.raft.messages import Append
from quorate.testing.sim.violation import Violation
from quorate.types import EntryKind
from quorate.wire.frames import PEER, Framer
from quorate.wire.messages import decode_envelopes, encode_envelopes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.raft.messages import Envelope

__all__ = ["largest_message", "over_the_wire"]

# Settings that bound a message with entries: one of any size, or several up to a limit.
SIZES = ("batch_bytes", "entry_bytes", "append_bytes")
# What an operator may set at most.
LEGAL_BYTES = max(item.metadata["range"][1] for item in fields(Limits) if item.name in SIZES)


def largest_message(limits: Iterable[Limits]) -> int:
    """The bytes of batches in one message, if nodes have these limits."""
    sizes: list[int] = [getattr(one, name) for one in limits for name in SIZES]
    return max(sizes)


def over_the_wire(envelope: Envelope, largest: int) -> Envelope:
    """``envelope`` as its receiver gets it, whatever its own settings are. It must be what was
    sent, and in two reads as well.

    Batches are small here. So what a node takes is as small: the same part of ``largest``, which
    is what nodes may send here, as of what they may ever send.
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
        raise Violation("wire", f"{source} sent what cannot be read: {problem}") from problem
    if received != [envelope]:
        raise Violation("wire", f"{source} sent {envelope}, {target} gets {received}")
    return received[0]


def _rows(envelope: Envelope) -> int:
    """The bytes of a message beside batches that are appended: they do not get smaller."""
    message = envelope.message
    entries = message.entries if type(message) is Append else ()
    return sum(
        HEADER_BYTES + 8 * entry.runs + 24 * entry.stamps
        if entry.kind is EntryKind.DATA
        else entry.size
        for entry in entries
    )
