"""The handshake: the first frame in each direction, and the reasons to refuse a connection.

The side that dials sends HELLO, the other answers WELCOME, or REFUSAL and closes. No other frame is
looked at before. An error names both values, so that its reader knows which of the two is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from quorate.errors import (
    InvalidArgument,
    QuorateError,
    VersionMismatch,
    WrongCluster,
    error_for,
)
from quorate.fields import Id, Name, Number  # noqa: TC001  # msgspec reads them
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.shapes import Shape, decode_shape, encode_shape, wire_text

if TYPE_CHECKING:
    from collections.abc import Collection


__all__ = [
    "FEATURES",
    "PROTOCOL",
    "PROTOCOL_MIN",
    "STARTS_MAX",
    "HandshakeRefusal",
    "Hello",
    "Introduction",
    "NodeIdentity",
    "Seen",
    "Welcome",
    "decode_hello",
    "decode_refusal",
    "encode_hello",
    "encode_refusal",
    "encode_welcome",
    "judge_hello",
    "judge_members",
    "judge_welcome",
    "open_welcome",
]

# The protocol that this release speaks, and the oldest that it still understands.
PROTOCOL = 3
PROTOCOL_MIN = 3
# Kinds of entries and messages that this release knows; a group uses those that all its nodes know.
FEATURES = 1
# Maximum earlier starts that a node tells of itself; see server/identity/roster.py.
STARTS_MAX = 64


class Seen(Shape, array_like=True):
    """A node as the sender knows it: its disk and the newest of its starts."""

    storage: Id
    # The newest start that the node showed to the sender; 0 if it showed none.
    start: Number
    boot: Number
    # Starts that others told the sender, and that the node has not shown to be its own. By the node
    # that it showed them to: that one's place in the `members` of the introduction.
    told: dict[Number, tuple[Number, Number]] = msgspec.field(default_factory=dict)

    @property
    def starts(self) -> list[tuple[int, int]]:
        """All starts that the sender knows, each with the random number of its process."""
        shown = [(self.start, self.boot)] if self.start else []
        return [*shown, *self.told.values()]


class Introduction(Shape):
    """A node's introduction to a peer: its disk, its start, and the other nodes that it knows.

    server/identity/roster.py judges it.
    """

    storage: Id
    # How often the node was started on this disk, and a random number that this process drew: a
    # copy of the disk has another one.
    start: Number
    boot: Number
    # Earlier starts with their random numbers, as far back as a peer may remember.
    earlier: Annotated[dict[Number, Number], msgspec.Meta(max_length=STARTS_MAX)]
    # Whether its first start is complete.
    formed: bool
    # node id -> its disk and start, for each node whose disk is known.
    known: dict[Name, Seen]
    # All nodes of the cluster, as its own list has them. Protocol 1 did not tell them.
    members: tuple[Name, ...] = ()


class Hello(Shape):
    """The first frame of the side that dials. Every field is sent: defaults differ from release to
    release."""

    # The use of the link: a client's requests, a peer's votes and heartbeats, or its entries.
    purpose: Literal["client", "control", "bulk"]
    protocol: Number = PROTOCOL
    protocol_min: Number = PROTOCOL_MIN
    features: Number = FEATURES
    # The id of the cluster. Clients may not know it; peers must.
    cluster: Name | None = None
    # Only from peers: the node that dials, the node that it means to reach, and its introduction.
    node: Name | None = None
    target: Name | None = None
    introduction: Introduction | None = None


class Welcome(Shape):
    """The answer of the side that was dialled."""

    cluster: Name
    node: Name
    introduction: Introduction
    # The newest protocol that both sides speak.
    protocol: Number
    features: Number
    # The limits that a client has to keep to.
    record_bytes: Number
    batch_bytes: Number
    # node id -> "host:port" for clients.
    nodes: dict[str, str]


class HandshakeRefusal(Shape):
    """The answer instead of WELCOME: the error, after which the connection is closed."""

    code: Name
    message: str
    # The node that dialled as the sender knows it, if it knows its disk.
    known: Seen | None = None
    # Whether an earlier process of the node that dialled has a link to the sender now.
    linked: bool = False

    @property
    def error(self) -> QuorateError:
        return error_for(self.code, self.message)


class NodeIdentity(msgspec.Struct, frozen=True):
    """The facts about this node that a HELLO is compared with."""

    cluster: str
    node: str
    storage: bytes
    # A random number that the process drew.
    boot: int


_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)
_refusals = msgspec.msgpack.Decoder(HandshakeRefusal)


def encode_hello(hello: Hello) -> bytes:
    return encode_frame(FrameKind.HELLO, encode_shape("HELLO", hello))


def encode_welcome(welcome: Welcome) -> bytes:
    return encode_frame(FrameKind.WELCOME, encode_shape("WELCOME", welcome))


def encode_refusal(
    error: QuorateError, known: Seen | None = None, *, linked: bool = False
) -> bytes:
    refusal = HandshakeRefusal(error.code, wire_text(error), known, linked)
    return encode_frame(FrameKind.REFUSAL, encode_shape("REFUSAL", refusal))


def decode_hello(frame: Frame) -> Hello:
    """The HELLO in ``frame``. Raises InvalidArgument at any other frame."""
    if frame.kind is not FrameKind.HELLO:
        raise InvalidArgument(f"a connection begins with HELLO, not with {frame.kind.name}")
    return decode_shape("HELLO", frame.control, _hellos)


def open_welcome(frame: Frame) -> Welcome:
    """The WELCOME that answers a HELLO. Raises the error of a REFUSAL."""
    if frame.kind is FrameKind.REFUSAL:
        raise decode_refusal(frame).error
    if frame.kind is FrameKind.WELCOME:
        return decode_shape("WELCOME", frame.control, _welcomes)
    raise InvalidArgument(f"HELLO is answered by WELCOME, not by {frame.kind.name}")


def decode_refusal(frame: Frame) -> HandshakeRefusal:
    return decode_shape("REFUSAL", frame.control, _refusals)


# -- judging -----------------------------------------------------------------------------------


def judge_hello(hello: Hello, own: NodeIdentity) -> QuorateError | None:
    """The error with which the sender of ``hello`` is refused; None if it is let in.

    The introduction of a peer is judged by server/identity/roster.py.
    """
    if hello.protocol < PROTOCOL_MIN or hello.protocol_min > PROTOCOL:
        return VersionMismatch(
            f"protocol {hello.protocol_min} to {hello.protocol} was offered, {own.node} speaks "
            f"{PROTOCOL_MIN} to {PROTOCOL}"
        )
    if hello.cluster not in (None, own.cluster):
        return WrongCluster(
            f"cluster {hello.cluster} was asked for, {own.node} is of {own.cluster}"
        )
    if hello.purpose == "client":
        return None
    return _judge_peer(hello, own)


def _judge_peer(hello: Hello, own: NodeIdentity) -> QuorateError | None:
    if hello.cluster is None:
        return WrongCluster(f"a peer names its cluster; {own.node} is of {own.cluster}")
    if hello.target != own.node:
        return WrongCluster(f"node {hello.target} was dialled, this is {own.node}")
    if hello.node is None or hello.node == own.node:
        return WrongCluster(f"node {hello.node} is not a peer of {own.node} in {own.cluster}")
    if hello.introduction is None:
        return WrongCluster(f"node {hello.node} does not say on which disk it lives")
    return None


def judge_members(
    peer: str, said: Introduction, own: NodeIdentity, members: Collection[str]
) -> QuorateError | None:
    """The error if ``peer`` is not of the same cluster; None if both lists have the same nodes.

    Two lists that overlap would be two groups with majorities of their own.
    """
    if {*said.members} != {*members}:
        return WrongCluster(
            f"[cluster.nodes] of {peer} has {_listed(said.members)}, that of {own.node} has "
            f"{_listed(members)}; give all nodes the same list and restart those that had another"
        )
    if peer not in members:
        return WrongCluster(f"node {peer} is not a peer of {own.node} in {own.cluster}")
    return None


def _listed(members: Collection[str]) -> str:
    return ", ".join(sorted(members)) or "no node"


def judge_welcome(welcome: Welcome, hello: Hello) -> QuorateError | None:
    """The error if the node that answers ``hello`` is not the one that was meant; else None."""
    if not hello.protocol_min <= welcome.protocol <= hello.protocol:
        return VersionMismatch(
            f"{welcome.node} answers with protocol {welcome.protocol}, {hello.protocol_min} to "
            f"{hello.protocol} was offered"
        )
    if hello.cluster not in (None, welcome.cluster):
        return WrongCluster(
            f"cluster {hello.cluster} was asked for, {welcome.node} is of {welcome.cluster}"
        )
    if hello.target not in (None, welcome.node):
        return WrongCluster(f"node {hello.target} was dialled, {welcome.node} answers")
    return None
