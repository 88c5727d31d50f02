"""The limits of connections: counts, bytes and times."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

from quorate.config import KIB, MIB, _bounded, _Section
from quorate.errors import InvalidArgument

__all__ = ["NetworkLimits", "open_files_max"]


def open_files_max() -> int:
    """The number of files and sockets that the system lets this process have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else sys.maxsize


@dataclass(frozen=True, slots=True)
class NetworkLimits(_Section):
    """The limits of connections, and the times after which the other side is given up."""

    # Connected clients, in all and from one IP address; more are refused with BUSY. Peers are not
    # counted: each has one link of each purpose, and no number of clients takes that away.
    connections: int = _bounded(4096, 1, 1_000_000)
    connections_per_address: int = _bounded(1024, 1, 1_000_000)
    # Connections that have not said HELLO; beyond that the one that waited longest is refused.
    strangers: int = _bounded(256, 1, 1_000_000)
    # Open files that are kept free of clients, and half of them of strangers: a node that cannot
    # open a file cannot go on. A quarter of the number that the system allows, if that is less.
    spare_files: int = _bounded(256, 0, 1_000_000)
    # A stranger that has not said HELLO after this time is refused.
    handshake_ms: int = _bounded(5000, 10, 600_000)
    # A node that was dialled and has not answered WELCOME after this time counts as unreachable.
    dial_ms: int = _bounded(2000, 10, 600_000)
    # After this time without a sign of life a PING is sent; after three times as long the
    # connection is dead.
    keepalive_ms: int = _bounded(10_000, 10, 600_000)
    # The keepalive period of links between nodes: after a partition heals, a link that still waits
    # for its retransmission timer is worth less than a new one.
    peer_keepalive_ms: int = _bounded(1000, 10, 600_000)
    # A frame that a client began must be complete after this time, even if its bytes keep arriving:
    # clients are many, and each could hold memory for nothing. A peer has two links, and it sends a
    # frame again that was cut off: for its frames only silence counts.
    frame_ms: int = _bounded(30_000, 10, 600_000)
    # Unsent bytes at which the sender is told to pause.
    write_pause_bytes: int = _bounded(1 * MIB, 1, 1024 * MIB)
    # Unsent bytes above which the next send ends the connection: the other side does not read.
    write_buffer_bytes: int = _bounded(128 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Unsent bytes above which messages to a peer are dropped, as a network would.
    peer_buffer_bytes: int = _bounded(64 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Bytes of entries at which the next message to a peer begins another frame. One message may
    # be larger.
    peer_frame_bytes: int = _bounded(4 * MIB, 1, 64 * MIB)
    # A lost link is dialled again at once, then after times that double from the first to the
    # second, less a random part.
    redial_min_ms: int = _bounded(10, 1, 600_000)
    redial_max_ms: int = _bounded(1000, 1, 600_000)
    # A peer is dialled again after this time if the error is not retriable: it is a node of another
    # cluster, for example.
    redial_refused_ms: int = _bounded(10_000, 1, 600_000)
    # When the system has no more sockets, the next connection is accepted after this time.
    accept_retry_ms: int = _bounded(100, 1, 60_000)
    # When a node stops, its queued bytes are sent for this time at most.
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
