"""Messages as bytes: encoded, cut into frames and decoded as between real nodes.

Each receiver takes frames up to its own limits, as a node does (server/node.py). A frame that is
larger ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import QuorateError, TooLarge
from quorate.testing.sim.violation import Violation
from quorate.wire.frames import FrameLimits, Framer
from quorate.wire.messages import decode_envelopes, encode_envelopes

if TYPE_CHECKING:
    from quorate.config import Config
    from quorate.raft.messages import Envelope

__all__ = ["over_the_wire", "peer_limits"]

CONTROL_BYTES = 1 << 20
# Bytes of entries at which another frame begins: as small as the batches here, as the default is as
# large as those of real clients.
FRAME_BYTES = 50


def peer_limits(config: Config) -> FrameLimits:
    """What a node takes from a peer."""
    limits = config.limits
    entries = max(limits.append_bytes, limits.entry_bytes, 2 * limits.batch_bytes)
    return FrameLimits(CONTROL_BYTES, FRAME_BYTES + entries)


def over_the_wire(envelope: Envelope, limits: FrameLimits) -> Envelope | None:
    """``envelope`` as its receiver gets it. It must be what was sent, and in two reads as well.

    None if the frame is larger than what the receiver takes.
    """
    data = b"".join(encode_envelopes([envelope]))
    middle = len(data) // 2
    framer = Framer(limits)
    cluster, source, target = envelope.group.cluster, envelope.source, envelope.target
    try:
        frames = [*framer.feed(data[:middle]), *framer.feed(data[middle:])]
        received = [
            one for frame in frames for one in decode_envelopes(frame, cluster, source, target)
        ]
    except TooLarge:
        return None
    except QuorateError as problem:
        raise Violation("wire", f"{source} sent what cannot be read: {problem}") from problem
    if received != [envelope]:
        raise Violation("wire", f"{source} sent {envelope}, {target} gets {received}")
    return received[0]
