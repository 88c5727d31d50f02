"""The limits of a node beside those of its replicas: connections, and the requests of clients and
peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.config.section import KIB, MIB, Section, bounded
from quorate.errors import InvalidArgument

__all__ = ["CONNECTIONS_MAX", "NetworkLimits", "Server"]

# The highest limit of connections that a node takes.
CONNECTIONS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class NetworkLimits(Section):
    """The limits of connections, and the times after which the other side is given up."""

    section: ClassVar[str] = "network"

    # Connected clients, in all and from one IP address; more are refused with BUSY. Peers are not
    # counted: each has one link of each purpose, and no number of clients takes that away.
    connections: int = bounded(4096, 1, CONNECTIONS_MAX)
    connections_per_address: int = bounded(1024, 1, CONNECTIONS_MAX)
    # Connections that have not said HELLO; beyond that the one that waited longest is refused.
    unidentified: int = bounded(256, 1, 1_000_000)
    # Open files that are kept free of clients, and half of them of those connections: a node that
    # cannot open a file cannot go on. A quarter of the number that the system allows, if that is
    # less.
    spare_files: int = bounded(256, 0, 1_000_000)
    # A connection that has not said HELLO after this time is refused.
    handshake_ms: int = bounded(5000, 10, 600_000)
    # A node that was dialled and has not answered WELCOME after this time counts as unreachable.
    dial_ms: int = bounded(2000, 10, 600_000)
    # After this time without a sign of life a PING is sent; after three times as long the
    # connection is dead.
    keepalive_ms: int = bounded(10_000, 10, 600_000)
    # The keepalive period of links between nodes: after a partition heals, a link that still waits
    # for its retransmission timer is worth less than a new one.
    peer_keepalive_ms: int = bounded(1000, 10, 600_000)
    # A frame that a client began must be complete after this time, even if its bytes keep arriving:
    # clients are many, and each could hold memory for nothing. A peer has two links, and it sends a
    # frame again that was cut off: for its frames only silence counts.
    frame_ms: int = bounded(30_000, 10, 600_000)
    # Unsent bytes at which the sender is told to pause.
    write_pause_bytes: int = bounded(1 * MIB, 1, 1024 * MIB)
    # Unsent bytes above which the next send ends the connection: the other side does not read.
    write_buffer_bytes: int = bounded(128 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Unsent bytes above which messages to a peer are dropped, as a network would.
    peer_buffer_bytes: int = bounded(64 * MIB, 64 * KIB, 64 * 1024 * MIB)
    # Bytes of entries at which the next message to a peer begins another frame. One message may
    # be larger.
    peer_frame_bytes: int = bounded(4 * MIB, 1, 64 * MIB)
    # A lost link is dialled again at once, then after times that double from the first to the
    # second, less a random part.
    redial_min_ms: int = bounded(10, 1, 600_000)
    redial_max_ms: int = bounded(1000, 1, 600_000)
    # A peer is dialled again after this time if the error is not retriable: it is a node of another
    # cluster, for example.
    redial_refused_ms: int = bounded(10_000, 1, 600_000)
    # When the system has no more sockets, the next connection is accepted after this time.
    accept_retry_ms: int = bounded(100, 1, 60_000)
    # When a node stops, its queued bytes are sent for this time at most.
    close_ms: int = bounded(1000, 1, 600_000)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
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


@dataclass(frozen=True, slots=True)
class Server(Section):
    """Bounds of the requests of clients and peers at a node, and the answer at each bound."""

    section: ClassVar[str] = "server"

    # Appends of all clients without an answer, and their bytes; more is BUSY. One connection gets
    # half. The keys pending_appends and pending_bytes of NODE.toml set these and those of a log.
    client_appends: int = bounded(16_384, 1, 10_000_000)
    client_append_bytes: int = bounded(64 * MIB, 1, 64 * 1024 * MIB)
    # Bytes of appends of one connection that are proposed together, as far as half of
    # limits.batch_bytes allows; the others are proposed after them.
    together_bytes: int = bounded(256 * KIB, 1, 64 * MIB)
    # Frames of clients, and their bytes, that one pass of the event loop handles: work of some
    # milliseconds. The others wait for the next pass.
    pass_frames: int = bounded(4096, 1, 1_000_000)
    pass_bytes: int = bounded(4 * MIB, 1, 1024 * MIB)
    # Reads and calls of one connection without an answer; more is BUSY. Appends count, too, while
    # their log is searched.
    waiting_requests: int = bounded(256, 1, 100_000)
    # Bytes of a client's request beside its batch; more ends the connection. A publish may name
    # 8,192 parts.
    control_bytes: int = bounded(4 * MIB, 4 * KIB, 64 * MIB)
    # Calls longer than the first are counted until they have an answer; the second bounds their
    # bytes, and more is BUSY. One connection gets half.
    short_call_bytes: int = bounded(4 * KIB, 0, 64 * MIB)
    call_bytes: int = bounded(64 * MIB, 8 * KIB, 64 * 1024 * MIB)
    # Bytes of one read, and the time that it waits for records; a read that asks for more gets so
    # much.
    fetch_bytes: int = bounded(4 * MIB, 1, 64 * MIB)
    fetch_wait_ms: int = bounded(60_000, 1, 600_000)
    # Unread bytes of one connection above which its reads wait until the client has read. Few
    # enough that even over a slow line no answer takes so long that its client gives up.
    unread_bytes: int = bounded(16 * MIB, 1, 1024 * MIB)
    # A read that waited so long for earlier answers to leave is BUSY. A client waits a little
    # longer for an answer of a node.
    room_wait_ms: int = bounded(3000, 1, 600_000)
    # Bytes of answers in memory for clients that do not read. Above the first, reads and other long
    # answers are BUSY for connections that hold more than their share; above the second, the
    # connection that holds most is closed.
    unsent_busy_bytes: int = bounded(256 * MIB, 1, 64 * 1024 * MIB)
    unsent_close_bytes: int = bounded(512 * MIB, 1, 64 * 1024 * MIB)
    # Calls of one link of a peer without an answer; more is BUSY.
    peer_calls: int = bounded(256, 1, 100_000)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if 2 * self.control_bytes > self.call_bytes:
            raise InvalidArgument(
                f"server.call_bytes = {self.call_bytes} must be at least twice "
                f"server.control_bytes = {self.control_bytes}: a call of that size would be BUSY "
                f"for ever"
            )
        if self.unsent_busy_bytes > self.unsent_close_bytes:
            raise InvalidArgument(
                f"server.unsent_busy_bytes = {self.unsent_busy_bytes} must be at most "
                f"server.unsent_close_bytes = {self.unsent_close_bytes}"
            )
