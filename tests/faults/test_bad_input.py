"""Bad input over a bare socket: it gets its error, and nobody else notices."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from faults_rig import MIB, Raw, Writer, batch_of, lag_free, until
from msgspec.structs import replace

from quorate.config import Server
from quorate.errors import (
    EmptyBatch,
    InvalidArgument,
    LogNotFound,
    QuorateError,
    TooLarge,
    VersionMismatch,
    WrongCluster,
)
from quorate.testing.processes import cluster
from quorate.wire.calls import AwaitCatalog, FindLog, ReadEnds
from quorate.wire.frames import FrameKind, encode_frame
from quorate.wire.handshake import Hello, Introduction, encode_hello
from quorate.wire.requests import AppendRequest, Fetch, encode_append, encode_fetch, pack_request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.client.blocking import Log
    from quorate.testing.processes import Cluster

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

RECORD_BYTES = 4 << 10
BATCH_BYTES = 32 << 10
SETTINGS = {
    "limits": {"record_bytes": RECORD_BYTES, "batch_bytes": BATCH_BYTES},
    "storage": {"segment_bytes": 4 * MIB},
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("bad")
    with cluster(logs=["orders"], directory=directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def bystander(nodes: Cluster) -> Log:
    """Somebody who does nothing wrong."""
    return nodes.client().log("orders")


@pytest.fixture(autouse=True)
def nobody_else_notices(nodes: Cluster, bystander: Log) -> Iterator[None]:
    pids = [node.pid for node in nodes.nodes.values()]
    before = bystander.append(b"before")
    yield
    after = bystander.append(b"after")
    assert after.offset > before.offset
    assert after.term == before.term
    assert [node.pid for node in nodes.nodes.values() if node.running] == pids


@pytest.fixture
def raw(nodes: Cluster) -> Iterator[Raw]:
    """A client's connection to the leader."""
    with Raw(nodes.address(nodes.wait_leader("orders"))) as connection:
        connection.say_hello()
        yield connection


# -- frames that are whole: the connection lives -----------------------------------------------


def test_a_batch_over_its_limit_is_named_with_it(raw: Raw) -> None:
    log = raw.find("orders")
    batch = batch_of(*[bytes(1000)] * 40)
    assert len(batch) > BATCH_BYTES
    with pytest.raises(TooLarge, match=rf"{len(batch)} bytes.*{BATCH_BYTES}.*limits.batch_bytes"):
        raw.append(log, batch)
    assert raw.append(log, batch_of(b"small")).count == 1


def test_a_record_over_its_limit_is_named_with_it(raw: Raw) -> None:
    log = raw.find("orders")
    with pytest.raises(TooLarge, match=rf"{RECORD_BYTES + 1} bytes.*{RECORD_BYTES}.*record_bytes"):
        raw.append(log, batch_of(b"small", bytes(RECORD_BYTES + 1)))
    assert raw.append(log, batch_of(bytes(RECORD_BYTES))).count == 1


def test_a_batch_without_records_is_refused(raw: Raw) -> None:
    log = raw.find("orders")
    empty = bytearray(batch_of(b"x"))
    empty[12:16] = bytes(4)
    empty[4:8] = crc32c(empty[8:], crc32c(empty[:4])).to_bytes(4, "little")
    with pytest.raises((EmptyBatch, InvalidArgument), match="count is 0"):
        raw.append(log, bytes(empty))
    assert raw.append(log, batch_of(b"x")).count == 1


def test_every_flipped_bit_of_a_batch_is_refused(raw: Raw) -> None:
    log = raw.find("orders")
    batch = batch_of(b"a value", b"another")
    end = raw.call(ReadEnds(log.to_bytes(16, "little"))).end
    for bit in range(8 * len(batch)):
        spoilt = bytearray(batch)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(QuorateError) as refused:
            raw.append(log, bytes(spoilt))
        assert refused.value.code in ("INVALID_ARGUMENT", "VERSION_MISMATCH", "EMPTY_BATCH")
    assert raw.call(ReadEnds(log.to_bytes(16, "little"))).end == end
    assert raw.append(log, batch).count == 2


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 64, b"\xff" * 64, b"not a batch" * 100])
def test_what_is_no_batch_is_refused(raw: Raw, data: bytes) -> None:
    log = raw.find("orders")
    with pytest.raises((InvalidArgument, EmptyBatch)):
        raw.append(log, data)
    assert raw.append(log, batch_of(b"x")).count == 1


def test_a_log_that_nobody_knows_is_not_found(raw: Raw) -> None:
    nobodys = (1 << 127) + 1
    with pytest.raises(LogNotFound, match=f"{nobodys:032x}"):
        raw.append(nobodys, batch_of(b"x"))
    with pytest.raises(LogNotFound, match="no-such-log"):
        raw.call(FindLog("no-such-log"))
    with pytest.raises(LogNotFound, match=f"{nobodys:032x}"):
        raw.call(ReadEnds(nobodys.to_bytes(16, "little")))
    raw.send(encode_fetch(Fetch(7, nobodys, 0, 1000)))
    with pytest.raises(LogNotFound, match=f"{nobodys:032x}"):
        raw.answer()
    assert raw.find("orders")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"\x81\xa4call\xabmake-coffee", "make-coffee"),
        (b"\x82\xa4call\xa8find-log\xa4name\x01", r"\$\.name"),
        (b"\x83\xa4call\xa8find-log\xa4name\xa1x\xa5sugar\x01", "sugar"),
        (b"\x82\xa4call\xa8find-log\xa4name\xa0", r"\$\.name"),
        (b"\x81\xa4call\xa8find-log", "name"),
        (b"\xc0", "CALL"),
        (b"", "CALL"),
        (b"\xdf\xff\xff\xff\xff", "CALL"),
    ],
    ids=["tag", "type", "field", "empty", "missing", "nil", "nothing", "huge map"],
)
def test_a_call_that_nobody_understands_is_named(raw: Raw, body: bytes, named: str) -> None:
    raw.send(encode_frame(FrameKind.CALL, pack_request(7) + body))
    with pytest.raises(InvalidArgument, match=named):
        raw.answer()
    assert raw.find("orders")


def test_what_only_peers_ask_is_refused_to_a_client(raw: Raw) -> None:
    with pytest.raises(InvalidArgument, match="AwaitCatalog"):
        raw.call(AwaitCatalog(0, 1))
    assert raw.find("orders")


def test_names_of_an_append_that_do_not_fit_are_refused(raw: Raw) -> None:
    log = raw.find("orders")
    batch = batch_of(b"x")
    head = bytearray(encode_append(AppendRequest(9, log, batch))[16:])
    head[-2] = 200  # bytes of a fence that is not there
    raw.send(encode_frame(FrameKind.APPEND, bytes(head), len(batch)), batch)
    with pytest.raises(InvalidArgument, match="names of 200"):
        raw.answer()
    assert raw.append(log, batch).count == 1


# -- frames that are not: the connection ends --------------------------------------------------


def head(kind: int = 16, control: int = 0, bulk: int = 0, version: int = 1) -> bytes:
    """The head of a frame, without a proof."""
    lengths = control.to_bytes(4, "little") + bulk.to_bytes(4, "little")
    return b"QR" + bytes([version, kind]) + lengths + bytes(4)


@pytest.mark.parametrize(
    "data",
    [
        head(control=Server().control_bytes + 1),
        head(bulk=2 * BATCH_BYTES + 1),
        head(control=0xFFFF_FFFF, bulk=0xFFFF_FFFF),
        head(version=2),
        head(kind=99),
        head(kind=20, bulk=1),
        encode_frame(FrameKind.CALL, b"abcd")[:12] + b"\0\0\0\0abcd",
        encode_frame(FrameKind.CALL, b"a"),
        encode_frame(FrameKind.WELCOME, b""),
        encode_frame(FrameKind.PEER, b""),
        encode_hello(Hello("client")),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
        bytes(64),
    ],
    ids=[
        *("control", "bulk", "both", "version", "kind", "no bulk", "crc", "no number", "welcome"),
        *("peer", "second hello", "http", "tls", "zeros"),
    ],
)
def test_what_is_no_frame_ends_its_connection(raw: Raw, data: bytes) -> None:
    raw.send(data)
    assert raw.closed


@pytest.mark.parametrize("size", [1, 15, 16, 40])
def test_a_frame_that_breaks_off_is_forgotten(nodes: Cluster, size: int) -> None:
    leader = nodes.wait_leader("orders")
    with Raw(nodes.address(leader)) as raw:
        raw.say_hello()
        log = raw.find("orders")
        batch = batch_of(b"never")
        raw.send((encode_append(AppendRequest(1, log, batch)) + batch)[:size])
    values = {record.value for record in nodes.client().log("orders").read(0)}
    assert b"never" not in values


def test_garbage_harms_nobody(nodes: Cluster) -> None:
    """Connections that send noise, and connections that send spoilt frames, all the while."""
    draw = random.Random(7)
    leader = nodes.wait_leader("orders")
    with Writer(nodes.client(), "orders") as writer:
        for _ in range(60):
            with Raw(nodes.address(leader)) as raw:
                raw.send(draw.randbytes(draw.randrange(1, 5000)))
            with Raw(nodes.address(leader)) as raw:
                raw.say_hello()
                log, batch = raw.find("orders"), batch_of(b"spoilt")
                frame = bytearray(encode_append(AppendRequest(1, log, batch)) + batch)
                frame[draw.randrange(len(frame))] ^= 1 << draw.randrange(8)
                raw.send(bytes(frame))
        writer.goes_on()
    until(lambda: nodes.nodes[leader].running, "the leader runs")
    values = [record.value for record in nodes.client().log("orders").read(0)]
    assert b"spoilt" not in values
    assert set(writer.acked) <= set(values)


# -- strangers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "kind", "named"),
    [
        (Hello("client", protocol=0, protocol_min=0), VersionMismatch, "0 to 0.*3 to 3"),
        (Hello("client", protocol=9, protocol_min=9), VersionMismatch, "9 to 9.*3 to 3"),
        (Hello("client", cluster="elsewhere"), WrongCluster, "elsewhere.*test-"),
        (Hello("control"), WrongCluster, "names its cluster"),
        (Hello("control", cluster="elsewhere", node="n2", target="n1"), WrongCluster, "elsewhere"),
    ],
    ids=["old", "new", "cluster", "nameless peer", "peer of elsewhere"],
)
def test_a_stranger_is_told_why_not(
    nodes: Cluster, hello: Hello, kind: type[QuorateError], named: str
) -> None:
    with Raw(nodes.address("n1")) as raw:
        with pytest.raises(kind, match=named):
            raw.say_hello(hello)
        assert raw.closed


@pytest.mark.parametrize("purpose", ["control", "bulk"])
def test_a_peer_must_be_who_it_says(nodes: Cluster, purpose: str) -> None:
    with Raw(nodes.address("n1")) as raw:
        own = raw.say_hello().introduction

    def refused(node: str, target: str, introduction: Introduction) -> str:
        hello = Hello(
            "control", cluster=nodes.id, node=node, target=target, introduction=introduction
        )
        hello.purpose = purpose  # type: ignore[assignment]  # one of the two
        with Raw(nodes.address("n1")) as raw:
            with pytest.raises(WrongCluster) as error:
                raw.say_hello(hello)
            assert raw.closed
            return str(error.value)

    empty = Introduction(bytes(16), 1, 1, {}, False, {}, ("n1", "n2", "n3"))
    with Raw(nodes.address("n2")) as raw:
        other = raw.say_hello().introduction
    another = replace(other, start=other.start + 1, earlier={other.start: other.boot + 1})
    assert "n7 is not a peer of n1" in refused("n7", "n1", empty)
    assert "n1 is not a peer of n1" in refused("n1", "n1", empty)
    assert "node n3 was dialled, this is n1" in refused("n2", "n3", empty)
    assert "storage id 00000000" in refused("n2", "n1", empty)
    assert "one of the two is a copy" in refused("n2", "n1", own)
    assert "two copies of its data directory" in refused("n2", "n1", another)


@pytest.mark.parametrize(
    "data",
    [
        encode_frame(FrameKind.PEER, b""),
        encode_frame(FrameKind.PEER, bytes(100)),
        encode_frame(FrameKind.PEER, b"\xff" * 500, 500) + bytes(500),
        encode_frame(FrameKind.APPEND, bytes(34)),
        encode_frame(FrameKind.CALL, pack_request(1) + b"\x81\xa4call\xa6status"),
        bytes(64),
    ],
    ids=["empty", "zeros", "ones", "append", "call", "no frame"],
)
def test_a_peer_that_talks_nonsense_is_cut_off_and_replaced(nodes: Cluster, data: bytes) -> None:
    """Somebody who knows all that a peer has to say about itself: the real one just dials again."""
    leader = nodes.wait_leader("orders")
    follower = nodes.others(leader)[0]
    with Raw(nodes.address(follower)) as raw:
        introduction = raw.say_hello().introduction
    hello = Hello(
        "control", cluster=nodes.id, node=follower, target=leader, introduction=introduction
    )
    with Raw(nodes.address(leader)) as raw:
        raw.say_hello(hello)
        raw.send(data)
        assert raw.closed
    until(lambda: lag_free(nodes, "orders"), "the real one is back")


@pytest.mark.parametrize(
    "data",
    [
        encode_frame(FrameKind.CALL, pack_request(1) + b"\x81\xa4call\xa6status"),
        encode_frame(FrameKind.FETCH, bytes(44)),
        encode_frame(FrameKind.HELLO, b"\xc1"),
        encode_frame(FrameKind.HELLO, b"\x81\xa7purpose\xa5coffee"),
    ],
    ids=["call", "fetch", "no shape", "purpose"],
)
def test_whoever_does_not_say_hello_first_is_refused(nodes: Cluster, data: bytes) -> None:
    with Raw(nodes.address("n1")) as raw:
        raw.send(data)
        frame = raw.receive()
        assert frame is not None
        assert frame.kind is FrameKind.REFUSAL
        assert b"INVALID_ARGUMENT" in frame.control
        assert raw.closed


@pytest.mark.parametrize(
    "data",
    [head(kind=1, control=4097), head(kind=1, version=2), bytes(16), b"GET / HTTP/1.1\r\n\r\n"],
    ids=["long", "version", "zeros", "http"],
)
def test_a_stranger_that_sends_no_frame_is_cut_off(nodes: Cluster, data: bytes) -> None:
    with Raw(nodes.address("n1")) as raw:
        raw.send(data)
        assert raw.closed
