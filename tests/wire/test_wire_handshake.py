"""The handshake: who is let in, and that a refusal names both values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.errors import (
    Busy,
    InvalidArgument,
    QuorateError,
    VersionMismatch,
    WrongCluster,
    error_for,
)
from quorate.wire.frames import UNIDENTIFIED, Frame, FrameKind, Framer
from quorate.wire.handshake import (
    PROTOCOL,
    STARTS_MAX,
    Hello,
    Introduction,
    NodeIdentity,
    Seen,
    Welcome,
    decode_hello,
    encode_hello,
    encode_refusal,
    encode_welcome,
    judge_hello,
    judge_members,
    judge_welcome,
    open_welcome,
)
from verification.wire_samples import frames

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C = bytes([10] * 16), bytes([11] * 16), bytes([12] * 16)
OWN = NodeIdentity("shop", "n1", A, 7)
MEMBERS = ("n1", "n2", "n3")
INTRODUCTION: dict[str, Any] = {
    "storage": B, "start": 3, "boot": 7, "earlier": {2: 6}, "formed": True,
    "known": {"n3": [C, 1, 5]}, "members": MEMBERS,
}  # fmt: skip
PEER: dict[str, Any] = {
    "purpose": "control", "cluster": "shop", "node": "n2", "target": "n1",
    "introduction": Introduction(**INTRODUCTION | {"known": {"n3": Seen(C, 1, 5)}}),
}  # fmt: skip
WELCOME: dict[str, Any] = {
    "cluster": "shop", "node": "n1", "introduction": PEER["introduction"], "protocol": PROTOCOL,
    "features": 1, "record_bytes": 1, "batch_bytes": 1, "nodes": {},
}  # fmt: skip

names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=255)
numbers = st.integers(0, (1 << 63) - 1)
ids = st.binary(min_size=16, max_size=16)
told = st.dictionaries(numbers, st.tuples(numbers, numbers), max_size=5)
introductions = st.builds(
    Introduction,
    storage=ids,
    start=numbers,
    boot=numbers,
    earlier=st.dictionaries(numbers, numbers, max_size=STARTS_MAX),
    formed=st.booleans(),
    known=st.dictionaries(names, st.builds(Seen, ids, numbers, numbers, told), max_size=7),
    members=st.lists(names, max_size=7).map(tuple),
)


def raw(kind: FrameKind, fields: object) -> Frame:
    return Frame(kind, msgspec.msgpack.encode(fields), b"")


def introduced(**changed: Any) -> dict[str, Any]:
    """The fields of a HELLO with this in its introduction."""
    return {"purpose": "bulk", "introduction": INTRODUCTION | changed}


# -- as bytes ----------------------------------------------------------------------------------


@FUZZ
@given(
    st.builds(
        Hello,
        purpose=st.sampled_from(["client", "control", "bulk"]),
        protocol=numbers,
        protocol_min=numbers,
        features=numbers,
        cluster=st.none() | names,
        node=st.none() | names,
        target=st.none() | names,
        introduction=st.none() | introductions,
    )
)
def test_every_hello_comes_back_as_it_was(hello: Hello) -> None:
    (frame,) = frames(encode_hello(hello))
    assert decode_hello(frame) == hello


@FUZZ
@given(
    st.builds(
        Welcome,
        cluster=names,
        node=names,
        introduction=introductions,
        protocol=numbers,
        features=numbers,
        record_bytes=numbers,
        batch_bytes=numbers,
        nodes=st.dictionaries(names, names, max_size=5),
    )
)
def test_every_welcome_comes_back_as_it_was(welcome: Welcome) -> None:
    (frame,) = frames(encode_welcome(welcome))
    assert open_welcome(frame) == welcome


@pytest.mark.parametrize("code", [error.code for error in QuorateError.__subclasses__()])
def test_every_refusal_is_raised_by_the_one_who_is_refused(code: str) -> None:
    (frame,) = frames(encode_refusal(error_for(code, f"why {code}")))
    with pytest.raises(QuorateError, match=f"why {code}") as caught:
        open_welcome(frame)
    assert (caught.value.code, caught.type) == (code, type(error_for(code, "")))


def test_a_code_of_a_newer_release_is_kept() -> None:
    with pytest.raises(QuorateError, match="too warm") as caught:
        open_welcome(raw(FrameKind.REFUSAL, {"code": "OVERHEATED", "message": "too warm"}))
    assert (caught.value.code, caught.value.retriable) == ("OVERHEATED", False)


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 5000, "\ud800" * 5000, ""])
def test_any_refusal_fits_what_a_stranger_takes(text: str) -> None:
    error = error_for("X" * 64, text)
    (frame,) = Framer(UNIDENTIFIED).feed(encode_refusal(error))
    with pytest.raises(QuorateError) as caught:
        open_welcome(frame)
    assert text.startswith(str(caught.value).partition("?")[0])


def test_what_is_a_default_here_is_sent_all_the_same() -> None:
    """The one who reads it has defaults of his own: his protocol is not the sender's."""
    (frame,) = frames(encode_hello(Hello("client")))
    sent = msgspec.msgpack.decode(frame.control)
    assert sent.keys() == set(Hello.__struct_fields__)
    assert sent["protocol"] == PROTOCOL


def test_fields_of_a_newer_release_are_skipped() -> None:
    """Else no cluster could be upgraded node by node."""
    hello = raw(FrameKind.HELLO, {"purpose": "client", "colour": ["red", {"x": 1}], "protocol": 2})
    assert decode_hello(hello) == Hello("client", protocol=2)
    welcome = raw(FrameKind.WELCOME, WELCOME | {"colour": "red"})
    assert open_welcome(welcome) == Welcome(**WELCOME)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "HELLO: Object missing required field `purpose`"),
        ({"purpose": "spy"}, "HELLO: Invalid enum value 'spy' - at `$.purpose`"),
        ({"purpose": 1}, "HELLO: Expected `str`, got `int` - at `$.purpose`"),
        ({"purpose": "bulk", "protocol": -1}, "HELLO: Expected `int` >= 0 - at `$.protocol`"),
        ({"purpose": "bulk", "protocol": True}, "Expected `int`, got `bool` - at `$.protocol`"),
        ({"purpose": "bulk", "features": 1 << 63}, "at `$.features`"),
        ({"purpose": "bulk", "node": ""}, "Expected `str` of length >= 1 - at `$.node`"),
        ({"purpose": "bulk", "node": "n" * 256}, "Expected `str` of length <= 255 - at `$.node`"),
        ({"purpose": "bulk", "target": "n1\0"}, "at `$.target`"),
        ({"purpose": "bulk", "cluster": "shop\n"}, "at `$.cluster`"),
        (introduced(storage=bytes(17)), "of length <= 16 - at `$.introduction.storage`"),
        (introduced(storage=bytes(3)), "of length >= 16 - at `$.introduction.storage`"),
        (introduced(storage="text"), "Expected `bytes`, got `str` - at `$.introduction.storage`"),
        (introduced(start=-1), "at `$.introduction.start`"),
        (introduced(boot=1 << 63), "at `$.introduction.boot`"),
        (introduced(earlier=dict.fromkeys(range(65), 1)), "length <= 64 - at `$.introduction.ea"),
        (introduced(known={"n3": [b"short", 1, 1]}), "at `$.introduction.known"),
        (["bulk"], "HELLO: Expected `object`, got `array`"),
    ],
)
def test_a_hello_is_refused_by_the_name_of_its_field(fields: object, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_hello(raw(FrameKind.HELLO, fields))
    assert message in str(caught.value)


@pytest.mark.parametrize("missing", WELCOME)
def test_a_welcome_says_everything(missing: str) -> None:
    fields = {name: value for name, value in WELCOME.items() if name != missing}
    with pytest.raises(InvalidArgument, match=f"WELCOME: .* `{missing}`"):
        open_welcome(raw(FrameKind.WELCOME, fields))


@pytest.mark.parametrize(
    "encode",
    [
        lambda: encode_hello(Hello("client", cluster="\ud800")),
        lambda: encode_hello(Hello("client", protocol=1 << 64)),
        lambda: encode_welcome(Welcome(**WELCOME | {"nodes": {"n1": object()}})),
    ],
    ids=["surrogate", "number", "object"],
)
def test_what_nobody_could_read_is_not_sent(encode: Callable[[], bytes]) -> None:
    with pytest.raises(InvalidArgument, match=r"^(HELLO|WELCOME): "):
        encode()


# -- judging a HELLO ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello",
    [
        Hello("client"),
        Hello("client", cluster="shop"),
        Hello("client", protocol=9),
        Hello(**PEER),
        Hello(**PEER | {"purpose": "bulk"}),
        Hello(**PEER | {"node": "n3"}),
    ],
)
def test_who_belongs_here_is_let_in(hello: Hello) -> None:
    assert judge_hello(hello, OWN) is None


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"protocol_min": 4, "protocol": 5}, VersionMismatch, ["4 to 5", "3 to 3", "n1"]),
        ({"protocol_min": 2, "protocol": 2}, VersionMismatch, ["2 to 2", "3 to 3", "n1"]),
        ({"cluster": "bank"}, WrongCluster, ["bank", "shop", "n1"]),
        ({"cluster": None}, WrongCluster, ["names its cluster", "shop"]),
        ({"target": "n3"}, WrongCluster, ["n3", "n1"]),
        ({"target": None}, WrongCluster, ["None", "n1"]),
        ({"node": None}, WrongCluster, ["None", "n1", "shop"]),
        ({"node": "n1"}, WrongCluster, ["n1 is not a peer of n1"]),
        ({"introduction": None}, WrongCluster, ["n2", "on which disk"]),
    ],
)
def test_a_stranger_is_refused_with_both_values(
    changed: dict[str, Any], error: type[QuorateError], named: list[str]
) -> None:
    problem = judge_hello(Hello(**PEER | changed), OWN)
    assert type(problem) is error
    for value in named:
        assert value in str(problem)


def test_lists_of_nodes_are_compared_as_sets() -> None:
    said = PEER["introduction"]
    assert judge_members("n2", said, OWN, ["n3", "n2", "n1"]) is None
    for members in (["n1", "n2"], ["n1", "n2", "n3", "n4"], ["n2", "n3", "n4"]):
        problem = judge_members("n2", said, OWN, members)
        assert type(problem) is WrongCluster
        listed = ", ".join(members)
        told = f"[cluster.nodes] of n2 has n1, n2, n3, that of n1 has {listed}; give all nodes"
        assert told in str(problem)
    outside = judge_members("n9", said, OWN, MEMBERS)
    assert str(outside) == "node n9 is not a peer of n1 in shop"


def test_a_client_of_another_cluster_is_refused() -> None:
    problem = judge_hello(Hello("client", cluster="bank"), OWN)
    assert str(problem) == "cluster bank was asked for, n1 is of shop"


# -- judging a WELCOME -------------------------------------------------------------------------


def test_who_was_meant_is_accepted() -> None:
    welcome = Welcome(**WELCOME)
    assert judge_welcome(welcome, Hello(**PEER)) is None
    assert judge_welcome(welcome, Hello("client")) is None
    assert judge_welcome(welcome, Hello("client", cluster="shop")) is None


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"protocol": 4}, VersionMismatch, ["protocol 4", "3 to 3", "n1"]),
        ({"protocol": 2}, VersionMismatch, ["protocol 2", "3 to 3", "n1"]),
        ({"cluster": "bank"}, WrongCluster, ["bank", "shop", "n1"]),
        ({"node": "n3"}, WrongCluster, ["n1", "n3"]),
    ],
)
def test_another_one_who_answers_is_refused_with_both_values(
    changed: dict[str, Any], error: type[QuorateError], named: list[str]
) -> None:
    problem = judge_welcome(Welcome(**WELCOME | changed), Hello(**PEER))
    assert type(problem) is error
    for value in named:
        assert value in str(problem)


def test_a_refusal_is_no_welcome_and_other_frames_are_neither() -> None:
    with pytest.raises(Busy, match="full"):
        open_welcome(raw(FrameKind.REFUSAL, {"code": "BUSY", "message": "full"}))
    for code in ("", "BU\nSY", 7):
        with pytest.raises(InvalidArgument, match=r"REFUSAL: .*code"):
            open_welcome(raw(FrameKind.REFUSAL, {"code": code, "message": "full"}))
