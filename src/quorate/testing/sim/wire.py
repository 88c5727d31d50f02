"""Messages as bytes: encoded, cut into frames and decoded as between real nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import QuorateError
from quorate.testing.sim.violation import Violation
from quorate.wire.frames import PEER, Framer
from quorate.wire.messages import decode_envelopes, encode_envelopes

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope

__all__ = ["over_the_wire"]


def over_the_wire(envelope: Envelope) -> Envelope:
    """``envelope`` as its receiver gets it, whatever its own settings are. It must be what was
    sent, and in two reads as well."""
    data = b"".join(encode_envelopes([envelope]))
    middle = len(data) // 2
    framer = Framer(PEER)
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
