"""Requests that carry records, and their answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ, chain
from quorate.commands import ProducerStamp
from quorate.entry import decode_entry
from quorate.errors import InvalidArgument, NotLeader, QuorateError, error_for
from quorate.types import Index, NodeId, Term
from quorate.wire.frames import Frame, FrameKind, FrameLimits, Framer
from quorate.wire.requests import (
    AppendRequest,
    Extent,
    Fetch,
    Receipts,
    decode_append,
    decode_failure,
    decode_fetch,
    decode_receipts,
    decode_records,
    encode_append,
    encode_failure,
    encode_fetch,
    encode_receipts,
    encode_records,
    extent_of,
    pack_request,
)
from quorate.wire.shapes import TEXT_MAX
from verification.wire_samples import frames

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
logs = st.integers(0, (1 << 128) - 1)
names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)


def only(data: bytes) -> Frame:
    (frame,) = frames(data)
    return frame


# -- round trips -------------------------------------------------------------------------------


@FUZZ
@given(
    st.builds(
        AppendRequest,
        u32,
        logs,
        st.binary(max_size=50),
        st.none() | st.integers(0, (1 << 64) - 2),
        st.none() | names,
        st.none() | st.builds(ProducerStamp, names, u64, u64),
        u32,
    )
)
def test_every_append_comes_back_as_it_was(append: AppendRequest) -> None:
    assert decode_append(only(encode_append(append) + append.batch)) == append


@FUZZ
@given(st.builds(Fetch, u32, logs, u64, u32, u32, u64))
def test_every_fetch_comes_back_as_it_was(fetch: Fetch) -> None:
    assert decode_fetch(only(encode_fetch(fetch))) == fetch


@FUZZ
@given(
    st.builds(
        Receipts,
        u64.map(Index),
        u64.map(Term),
        u64,
        u32,
        st.lists(st.tuples(u32, st.integers(1, 3000), u32, u32), max_size=20),
    )
)
def test_receipts_come_back_as_they_were(receipts: Receipts) -> None:
    assert decode_receipts(only(encode_receipts(receipts))) == receipts


@FUZZ
@given(u32, u64, u64, st.lists(st.tuples(u64, u32, u64), max_size=5))
def test_records_come_back_as_they_were(
    request: int, first: int, end: int, facts: list[tuple[int, int, int]]
) -> None:
    entries = chain(*([3] * len(facts)))
    rows = [
        (offset, count, entry.size, time)
        for (offset, count, time), entry in zip(facts, entries, strict=True)
    ]
    bulk = b"".join(entry.header + entry.body for entry in entries)
    found = decode_records(only(encode_records(request, first, end, rows) + bulk))
    assert found[:3] == (request, first, end)
    assert [(*row[:2], row[2].append_time) for row in found.rows] == facts
    assert [decode_entry(bytes(entry.frame)) for *_, entry in found.rows] == list(entries)


def test_what_records_bring_is_known_before_they_are_there() -> None:
    entries = chain(3, 3, 3)
    rows = [(40 + 5 * place, 5, entry.size, 9) for place, entry in enumerate(entries)]
    bulk = b"".join(entry.header + entry.body for entry in entries)
    framer = Framer(FrameLimits(1 << 20, 1 << 20))
    data = encode_records(7, 10, 90, rows) + bulk
    assert list(framer.feed(data[:-1])) == []
    assert framer.begun is not None
    extent = extent_of(framer.begun)
    assert extent == Extent(40, 55, len(bulk), 90)
    [whole] = framer.feed(data[-1:])
    assert decode_records(whole).extent == extent


@pytest.mark.parametrize("rows", [[], [(40, 0, 100, 9)], [(40, 5, 100, 9), (0, 5, 100, 9)]])
def test_records_that_cannot_be_have_no_extent(rows: list[tuple[int, int, int, int]]) -> None:
    frame = only(encode_records(7, 10, 90, rows) + bytes(sum(row[2] for row in rows)))
    with pytest.raises(InvalidArgument, match="without records, or out of order"):
        extent_of(frame)


@FUZZ
@given(u32, st.sampled_from(["NOT_LEADER", "TIMEOUT", "ERROR", "NEW_ONE"]), st.text(max_size=1000))
def test_every_failure_comes_back_as_it_was(request: int, code: str, message: str) -> None:
    failure = decode_failure(only(encode_failure(request, error_for(code, message))))
    assert failure.request == request
    assert (failure.error.code, type(failure.error)) == (code, type(error_for(code, "")))
    assert str(failure.error) == message.encode(errors="replace").decode()


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 70_000, "\ud800", "a\0b"])
def test_whatever_went_wrong_can_be_told(text: str) -> None:
    error = decode_failure(only(encode_failure(1, NotLeader(text)))).error
    assert type(error) is NotLeader
    assert str(error) == text[:TEXT_MAX].encode(errors="replace").decode()


# -- what cannot be sent -----------------------------------------------------------------------

GOOD_STAMP = ProducerStamp("loader-7", 3, 1)
GOOD_APPEND = AppendRequest(1, 2, b"batch", producer=GOOD_STAMP)
GOOD_FETCH = Fetch(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", -1),
        ("request", 1 << 32),
        ("log", -1),
        ("log", 1 << 128),
        ("expect_offset", -1),
        ("expect_offset", (1 << 64) - 1),
        ("expect_offset", 1 << 64),
        ("expect_offset", 1.5),
        ("deadline_ms", -1),
        ("deadline_ms", 1 << 32),
        ("deadline_ms", 30.0),
        ("deadline_ms", None),
        ("epoch", -1),
        ("epoch", 1 << 64),
        ("sequence", -1),
    ],
)
def test_an_append_with_a_number_out_of_range_is_not_sent(field: str, value: Any) -> None:
    append = GOOD_APPEND
    if field in ProducerStamp._fields:
        append = append._replace(producer=GOOD_STAMP._replace(**{field: value}))
    else:
        append = append._replace(**{field: value})
    with pytest.raises(InvalidArgument, match=f"^{field} is {value}, not a whole number of 0 to "):
        encode_append(append)


@pytest.mark.parametrize("field", Fetch._fields)
@pytest.mark.parametrize("value", [-1, 1 << 128])
def test_a_fetch_with_a_number_out_of_range_is_not_sent(field: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field} is {value}, not a whole number of 0 to "):
        encode_fetch(GOOD_FETCH._replace(**{field: value}))


@pytest.mark.parametrize("number", [-1, 1 << 32, 0.5])
def test_a_call_has_a_number_in_range(number: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^request is {number}, not a whole number"):
        pack_request(number)


NO_NAMES = ["", "a\0b", "a\nb", "a\x7f", "a\x85", "n" * 256, "é" * 128, "a\n"]


@pytest.mark.parametrize("name", [*NO_NAMES, "\ud800"])
def test_a_name_that_is_none_is_not_sent(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^fence "):
        encode_append(GOOD_APPEND._replace(fence=name))
    with pytest.raises(InvalidArgument, match=r"^producer "):
        encode_append(GOOD_APPEND._replace(producer=GOOD_STAMP._replace(name=name)))


def test_the_longest_names_are_sent() -> None:
    append = GOOD_APPEND._replace(
        fence="é" * 127 + "x", producer=GOOD_STAMP._replace(name="p" * 255)
    )
    assert decode_append(only(encode_append(append) + append.batch)) == append


@pytest.mark.parametrize("place", ["fence", "producer"])
@pytest.mark.parametrize("name", [b"a\0b", b"a\nb", b"\xff\xfe\xfd"])
def test_a_name_that_is_none_is_refused(place: str, name: bytes) -> None:
    append = GOOD_APPEND._replace(fence="abc", producer=GOOD_STAMP._replace(name="xyz"))
    front = {"fence": b"abc", "producer": b"xyz"}[place]
    control = only(encode_append(append) + append.batch).control.replace(front, name)
    with pytest.raises(InvalidArgument, match=f"^{place} "):
        decode_append(Frame(FrameKind.APPEND, control, b"batch"))


@FUZZ
@given(st.text(max_size=100), st.none() | names)
def test_a_refusal_keeps_the_leader_that_it_names(message: str, leader: str | None) -> None:
    known = NodeId(leader) if leader is not None else None
    error = decode_failure(only(encode_failure(1, NotLeader(message, leader=known)))).error
    assert isinstance(error, NotLeader)
    assert error.leader == leader


@pytest.mark.parametrize("code", [b"BUSY", b"LATER"])
def test_only_the_refusal_of_a_node_that_does_not_lead_names_a_leader(code: bytes) -> None:
    control = bytes([1, 0, 0, 0, len(code), 3, 0, 2]) + code + b"whyn2"
    with pytest.raises(InvalidArgument, match=f"{code.decode()} names a leader"):
        decode_failure(Frame(FrameKind.FAILURE, control, b""))


@pytest.mark.parametrize("leader", [b"\0", b"a\nb"])
def test_a_leader_that_is_no_name_is_refused(leader: bytes) -> None:
    control = bytes([1, 0, 0, 0, 10, 1, 0, len(leader)]) + b"NOT_LEADERx" + leader
    with pytest.raises(InvalidArgument, match=r"^leader "):
        decode_failure(Frame(FrameKind.FAILURE, control, b""))


def test_a_code_that_is_none_is_refused() -> None:
    for code in (b"", b"A\nB"):
        control = bytes([1, 0, 0, 0, len(code), 1, 0, 0]) + code + b"x"
        with pytest.raises(InvalidArgument, match=r"^code "):
            decode_failure(Frame(FrameKind.FAILURE, control, b""))


def test_no_expectation_is_not_the_highest_offset() -> None:
    for offset in (None, 0, (1 << 64) - 2):
        append = AppendRequest(1, 2, b"", expect_offset=offset)
        assert decode_append(only(encode_append(append))).expect_offset == offset


@pytest.mark.parametrize("error", QuorateError.__subclasses__())
def test_every_error_keeps_its_class_and_code(error: type[QuorateError]) -> None:
    failure = decode_failure(only(encode_failure(9, error("why"))))
    assert (failure.request, type(failure.error), str(failure.error)) == (9, error, "why")
