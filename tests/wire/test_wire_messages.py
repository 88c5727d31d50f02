"""What replicas say to each other: every message survives the wire, and nothing else passes."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ, chain
from quorate.errors import InvalidArgument
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Envelope,
    Heartbeat,
    HeartbeatReply,
    Message,
    MessageKind,
    Mismatch,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestId,
    StateHash,
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.types import ORIGIN, BootId, GroupId, Index, NodeId, Position, Term
from quorate.wire.frames import Frame, FrameKind
from quorate.wire.messages import MESSAGES_MAX, decode_envelopes, encode_envelopes
from verification.wire_samples import MESSAGES, frames

N1, N2 = NodeId("n1"), NodeId("n2")
# Where the body of the first message begins: the count, then the head of the message.
BODY = 4 + 40
ENTRIES = chain(1, 1, 2, 5)

u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)
terms = u64.map(Term)
indexes = u64.map(Index)
requests = st.builds(RequestId, u64, u64)
positions = st.builds(Position, indexes, terms, u32)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, terms, requests, positions),
    st.builds(PreVoteReply, terms, requests, st.booleans()),
    st.builds(Vote, terms, positions, st.booleans()),
    st.builds(VoteReply, terms, st.booleans(), st.integers(0, 2**64 - 1), st.booleans()),
    st.builds(Compare, terms, u64, positions),
    st.builds(
        Append,
        terms,
        u64,
        positions,
        st.integers(0, 4).map(lambda count: ENTRIES[:count]),
        indexes,
    ),
    st.builds(Ack, terms, u64, indexes),
    st.builds(Mismatch, terms, u64, indexes, indexes, terms),
    st.builds(Heartbeat, terms, u64, positions),
    st.builds(HeartbeatReply, terms, u64, u64, st.booleans(), st.booleans()),
    st.builds(ReadIndex, terms, requests),
    st.builds(
        ReadIndexReply, terms, requests, st.none() | st.integers(0, (1 << 64) - 2).map(Index)
    ),
    st.builds(StateHash, terms, indexes, u64),
    st.builds(Transfer, terms, positions, terms),
    st.builds(TransferRefused, terms, terms),
)
envelopes = st.builds(
    lambda incarnation, counter, nonce, message: Envelope(
        GroupId("shop", incarnation), N1, N2, BootId(counter, nonce), message
    ),
    st.integers(0, (1 << 128) - 1), u64, u64, messages,
)  # fmt: skip


def envelope(message: Message, incarnation: int = 7) -> Envelope:
    return Envelope(GroupId("shop", incarnation), N1, N2, BootId(5, 99), message)


def sent(*messages: Message) -> Frame:
    (frame,) = frames(b"".join(encode_envelopes([envelope(message) for message in messages])))
    return frame


def received(frame: Frame) -> list[Envelope]:
    return decode_envelopes(frame, "shop", N1, N2)


# -- round trips -------------------------------------------------------------------------------


@FUZZ
@given(st.lists(envelopes, min_size=1, max_size=8))
def test_messages_of_many_groups_come_back_as_they_were(said: list[Envelope]) -> None:
    (frame,) = frames(b"".join(encode_envelopes(said)))
    assert received(frame) == said


def test_every_class_and_every_kind_that_is_used_has_a_sample() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))
    reserved = {MessageKind.FILL, MessageKind.FILL_REPLY}
    assert {sent(message).control[36] for message in MESSAGES} == set(MessageKind) - reserved


def test_who_speaks_to_whom_is_what_the_connection_says() -> None:
    (found,) = decode_envelopes(sent(Vote(Term(1), ORIGIN)), "bank", NodeId("a"), NodeId("b"))
    assert (found.group, found.source, found.target) == (GroupId("bank", 7), "a", "b")


def test_entries_are_sent_as_they_are_stored() -> None:
    append = Append(Term(5), 1, ORIGIN, ENTRIES, Index(0))
    front, *bulk = encode_envelopes([envelope(append), envelope(append)])
    assert b"".join(bulk) == b"".join(one.header + one.body for one in ENTRIES * 2)
    assert all(
        piece is stored
        for piece, stored in zip(
            bulk, [part for one in ENTRIES * 2 for part in (one.header, one.body)], strict=True
        )
    )
    assert len(front) == 16 + 4 + 2 * (40 + 48 + 4 * len(ENTRIES))


def test_a_turn_of_many_groups_fits_one_frame() -> None:
    many = [envelope(VoteReply(Term(1), True), incarnation) for incarnation in range(1000)]
    (frame,) = frames(b"".join(encode_envelopes(many)))
    assert received(frame) == many


# -- refusing ----------------------------------------------------------------------------------


def refused(frame: Frame) -> str:
    with pytest.raises(InvalidArgument) as caught:
        received(frame)
    return str(caught.value)


def changed(frame: Frame, place: int, value: bytes) -> Frame:
    control = bytearray(frame.control)
    control[place : place + len(value)] = value
    return Frame(frame.kind, bytes(control), frame.bulk)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"\0\0\0\0", f"PEER: 0 messages, not 1 to {MESSAGES_MAX}"),
        (0, b"\xff\xff\xff\xff", f"PEER: 4294967295 messages, not 1 to {MESSAGES_MAX}"),
        (0, b"\2", "PEER: the control part ends after 62 bytes"),
        (36, b"\0", "PEER: message kind 0 is not known to this release"),
        (36, b"\x0e", "PEER: message kind 14 is not known to this release"),
        (36, b"\xff", "PEER: message kind 255 is not known to this release"),
        (38, b"\1", "PEER: reserved bytes are 000100, not 0"),
        (40, b"\x0b", "PEER: message kind 4 takes 18 bytes, not 11"),
        (52, b"\2", "PEER: a flag is 2"),
    ],
)
def test_a_message_is_refused_by_what_is_wrong(place: int, value: bytes, message: str) -> None:
    assert refused(changed(sent(VoteReply(Term(3), True)), place, value)) == message


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (PreVoteReply(Term(1), RequestId(1, 2), True), "PEER: a flag is 128"),
        (HeartbeatReply(Term(1), 2, 3, True), "PEER: two flags are 128"),
    ],
)
def test_a_flag_is_0_or_1(message: Message, problem: str) -> None:
    frame = sent(message)
    assert refused(changed(frame, len(frame.control) - 1, b"\x80")) == problem


def test_what_is_left_over_is_refused() -> None:
    frame = sent(VoteReply(Term(3), True))
    longer = Frame(frame.kind, frame.control + b"\0\0", frame.bulk + b"\0")
    assert refused(longer) == "PEER: 2 control and 1 bulk bytes are left over"


def test_a_lie_about_the_number_of_entries_is_refused() -> None:
    frame = sent(Append(Term(5), 1, ORIGIN, ENTRIES, Index(0)))
    place = BODY + 44
    assert frame.control[place : place + 4] == bytes([len(ENTRIES), 0, 0, 0])
    assert "4294967295 sizes" in refused(changed(frame, place, b"\xff" * 4))
    assert "message kind 6 takes 60 bytes, not 64" in refused(changed(frame, place, b"\3"))
    assert "bulk part ends" in refused(changed(frame, place + 4, b"\xff" * 4))
    assert "too short for an entry header" in refused(changed(frame, place + 4, bytes(4)))


def test_an_append_may_have_no_entries_and_then_no_bulk() -> None:
    append = Append(Term(5), 1, ORIGIN, (), Index(0))
    assert received(sent(append)) == [envelope(append)]
    assert "left over" in refused(Frame(FrameKind.PEER, sent(append).control, b"x"))
