"""How much and how long a socket may take."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

from quorate.config import KIB, MIB, _bounded, _Section
from quorate.errors import InvalidArgument

__all__ = ["NetworkLimits", "open_files_max"]


def open_files_max() -> int:
    """How many files and sockets the system lets this process have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else sys.maxsize


@dataclass(frozen=True, slots=True)
class NetworkLimits(_Section):
    """What is bounded about connections, and for how long anybody is waited for."""

    # Clients at once, in all and from one IP address; more are refused with BUSY. Peers are not
    # counted: each has one link of each purpose, and no crowd of clients takes it away.
    connections: int = _bounded(4096, 1, 1_000_000)
    connections_per_address: int = _bounded(1024, 1, 1_000_000)
    # Connections that have not said who they are; beyond that the one that waited longest goes.
    strangers: int = _bounded(256, 1, 1_000_000)
    # Open files that no client gets, and half of them no stranger: a node that cannot open a file
    # cannot go on. A quarter of what the system allows, if that is less.
    spare_files: int = _bounded(256, 0, 1_000_000)
    # A stranger that has not said HELLO by then is refused.
    handshake_ms: int = _bounded(5000, 10, 600_000)
    # A node that was dialled and has not answered WELCOME by then counts as unreachable.
    dial_ms: int = _bounded(2000, 10, 600_000)
    # Nothing came for this long: PING. Nothing for three times as long: the connection is dead.
    keepalive_ms: int = _bounded(10_000, 10, 600_000)
    # The same for links between nodes: after a partition heals, a link that still waits for its
    # retransmission timer is worth less than a new one.
    peer_keepalive_ms: int = _bounded(1000, 10, 600_000)
    # A frame that a client began must be complete by then, however its bytes trickle in: clients
    # are many, and each could hold memory for nothing. A peer has two links, and what is cut off
    # it sends again: for its frames only silence counts.
    frame_ms: int = _bounded(30_000, 10, 600_000)
    # Unsent bytes at which the one who sends is told to pause.
    write_pause_bytes: int = _bounded(1 * MIB, 1, 1024 * MIB)
    # Unsent bytes at which a connection takes no more and ends: the other side does not read.
    write_buffer_bytes: int = _bounded(128 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Unsent bytes at which messages to a peer are dropped, as a network would.
    peer_buffer_bytes: int = _bounded(64 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Bytes of entries at which the next message to a peer begins another frame. One message may
    # be larger.
    peer_frame_bytes: int = _bounded(4 * MIB, 1, 64 * MIB)
    # A lost link is dialled again at once, then after times that double from the first to the
    # second, less a random part.
    redial_min_ms: int = _bounded(10, 1, 600_000)
    redial_max_ms: int = _bounded(1000, 1, 600_000)
    # A peer that must not be talked to, such as one of another cluster, is tried again this late.
    redial_refused_ms: int = _bounded(10_000, 1, 600_000)
    # The system has no more sockets: the next connection is taken after this long.
    accept_retry_ms: int = _bounded(100, 1, 60_000)
    # What is queued when a node stops has this long to leave.
    close_ms: int = _bounded(1000, 1, 600_000)

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        for lower, upper in (
            ("write_pause_bytes", "write_buffer_bytes"),
            ("peer_buffer_bytes", "write_buffer_bytes"),
            ("redial_min_ms", "redial_max_ms"),
        ):
            if getattr(self, lower) > getattr(self, upper):
                raise InvalidArgument(
                    f"network.{lower} = {getattr(self, lower)} must be at most "
                    f"network.{upper} = {getattr(self, upper)}"
                )
