"""Who speaks to whom: the first frame in each direction, and why a connection is refused.

The one who dials says HELLO, the other answers WELCOME, or REFUSAL and closes. Nothing else is
looked at before. A mistake is named with both values, so that whoever reads it knows which of the
two is wrong.
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
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.shapes import (
    ID_BYTES,
    Id,
    Name,
    Number,
    Shape,
    decode_shape,
    encode_shape,
    wire_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FEATURES",
    "PROTOCOL",
    "PROTOCOL_MIN",
    "Hello",
    "Identity",
    "Refusal",
    "Welcome",
    "decode_hello",
    "encode_hello",
    "encode_refusal",
    "encode_welcome",
    "judge_hello",
    "judge_welcome",
    "open_welcome",
]

# The protocol that this release speaks, and the oldest that it still understands.
PROTOCOL = 1
PROTOCOL_MIN = 1
# Kinds of entries and messages that this release knows; a group uses what all of them know.
FEATURES = 1


class Hello(Shape):
    """From the one who dials. Every field is sent: defaults differ from release to release."""

    # What the link is for: a client's requests, a peer's votes and heartbeats, or its entries.
    purpose: Literal["client", "control", "bulk"]
    protocol: Number = PROTOCOL
    protocol_min: Number = PROTOCOL_MIN
    features: Number = FEATURES
    # Clients may not know it; peers must.
    cluster: Name | None = None
    # Of peers: who dials, whom it means to reach, and on which disk it lives.
    node: Name | None = None
    target: Name | None = None
    storage: Annotated[bytes, msgspec.Meta(max_length=ID_BYTES)] = b""
    # Drawn when the process started: a clone has another. 64 bits.
    boot: int = 0


class Welcome(Shape):
    """From the one who was dialled."""

    cluster: Name
    node: Name
    storage: Id
    boot: int
    # The newest that both speak.
    protocol: Number
    features: Number
    # The limits that a client has to keep to.
    record_bytes: Number
    batch_bytes: Number
    # node id -> "host:port" for clients.
    nodes: dict[str, str]


class Refusal(Shape):
    code: Name
    message: str


class Identity(msgspec.Struct, frozen=True):
    """What a node compares a HELLO with."""

    cluster: str
    node: str
    storage: bytes
    boot: int


_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)
_refusals = msgspec.msgpack.Decoder(Refusal)


def encode_hello(hello: Hello) -> bytes:
    return encode_frame(FrameKind.HELLO, encode_shape("HELLO", hello))


def encode_welcome(welcome: Welcome) -> bytes:
    return encode_frame(FrameKind.WELCOME, encode_shape("WELCOME", welcome))


def encode_refusal(error: QuorateError) -> bytes:
    refusal = Refusal(error.code, wire_text(error))
    return encode_frame(FrameKind.REFUSAL, encode_shape("REFUSAL", refusal))


def decode_hello(frame: Frame) -> Hello:
    """Raises InvalidArgument unless ``frame`` is a HELLO."""
    if frame.kind is not FrameKind.HELLO:
        raise InvalidArgument(f"a connection begins with HELLO, not with {frame.kind.name}")
    return decode_shape("HELLO", frame.control, _hellos)


def open_welcome(frame: Frame) -> Welcome:
    """The answer to a HELLO. Raises what the other side refused with."""
    if frame.kind is FrameKind.REFUSAL:
        refusal = decode_shape("REFUSAL", frame.control, _refusals)
        raise error_for(refusal.code, refusal.message)
    if frame.kind is FrameKind.WELCOME:
        return decode_shape("WELCOME", frame.control, _welcomes)
    raise InvalidArgument(f"HELLO is answered by WELCOME, not by {frame.kind.name}")


# -- judging -----------------------------------------------------------------------------------


def judge_hello(
    hello: Hello, own: Identity, members: Mapping[str, bytes | None]
) -> QuorateError | None:
    """Why the one who says ``hello`` is not let in; None if it is.

    ``members`` are the nodes of the cluster with the storage id that each is bound to, None for
    one that was never met.
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
    return _judge_peer(hello, own, members)


def _judge_peer(
    hello: Hello, own: Identity, members: Mapping[str, bytes | None]
) -> QuorateError | None:
    if hello.cluster is None:
        return WrongCluster(f"a peer names its cluster; {own.node} is of {own.cluster}")
    if hello.target != own.node:
        return WrongCluster(f"node {hello.target} was dialled, this is {own.node}")
    if hello.node is None or hello.node not in members or hello.node == own.node:
        return WrongCluster(f"node {hello.node} is not a peer of {own.node} in {own.cluster}")
    if hello.storage == own.storage:
        return WrongCluster(
            f"node {hello.node} has storage id {own.storage.hex()}, which is that of {own.node}: "
            f"one of the two is a copy"
        )
    return _judge_storage(own.node, hello.node, hello.storage, members[hello.node])


def judge_welcome(welcome: Welcome, hello: Hello, bound: bytes | None) -> QuorateError | None:
    """Why the one who answers ``hello`` is not the one who was meant; None if it is.

    ``bound`` is the storage id that it is known with, None if it was never met.
    """
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
    if hello.purpose == "client":
        return None
    return _judge_storage(str(hello.node), welcome.node, welcome.storage, bound)


def _judge_storage(own: str, node: str, storage: bytes, bound: bytes | None) -> QuorateError | None:
    if len(storage) != ID_BYTES:
        return WrongCluster(
            f"node {node} has a storage id of {len(storage)} bytes, {own} expects {ID_BYTES}"
        )
    if bound is not None and bound != storage:
        return WrongCluster(
            f"node {node} has storage id {storage.hex()}, {own} knows it with {bound.hex()}: "
            f"a wiped or copied disk is not its old self"
        )
    return None
