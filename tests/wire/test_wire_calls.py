"""Rare requests: every call with its answer, and what is refused by the name of its field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.commands import (
    EXPIRY_US_MAX,
    EXPIRY_US_MIN,
    WINDOW_MAX,
    Abort,
    Aborted,
    ChunkLabel,
    ChunkStaged,
    FenceChanged,
    LogCommand,
    OpenProducer,
    Part,
    ProducerOpened,
    Publish,
    Receipt,
    SetFence,
)
from quorate.errors import InvalidArgument
from quorate.wire import calls
from quorate.wire.calls import Call, LogCall, decode_call, decode_result, encode_call, encode_result
from quorate.wire.frames import Frame, FrameKind
from verification.wire_samples import RESULTS, frames

ID = bytes(range(16))
names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=255)
ids = st.binary(min_size=16, max_size=16)
short_names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60)
numbers = st.integers(0, (1 << 63) - 1)
times = st.integers(-(1 << 63), (1 << 63) - 1)
ms = st.integers(0, (1 << 32) - 1)
nodes = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3)
words = st.sampled_from(["leader", "follower", "candidate", "learner"])

parts = st.builds(Part, ms, ids, st.integers(1, 99), st.integers(1, 1 << 30))
found_logs = st.builds(calls.LogFound, names, ids, st.none() | names, nodes)
replicas = st.builds(calls.PeerStatus, names, st.none() | numbers, words, st.booleans())
statuses = st.builds(
    calls.LogStatus, names, ids, words, st.none() | names, numbers, numbers, numbers, numbers,
    numbers, numbers, st.lists(replicas, max_size=3), st.booleans(),
)  # fmt: skip


def to_log(command: type[LogCommand[Any]], *fields: st.SearchStrategy[Any]) -> Any:
    """A strategy for calls that bring a command to a log."""
    return st.builds(LogCall, ids, st.builds(command, *fields))


def kind_of(call: Call[Any]) -> type[Call[Any] | LogCommand[Any]]:
    return type(call.command) if isinstance(call, LogCall) else type(call)


# Every call, and every command that a call brings to a log, with a strategy for it and one for its
# answer.
ROUND_TRIPS: dict[
    type[Call[Any] | LogCommand[Any]], tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]
] = {
    calls.FindLog: (st.builds(calls.FindLog, names), found_logs),
    calls.ListLogs: (
        st.builds(calls.ListLogs),
        st.builds(calls.Logs, st.lists(found_logs, max_size=3)),
    ),
    calls.CreateLog: (st.builds(calls.CreateLog, names, ids, ms), found_logs),
    calls.DeleteLog: (st.builds(calls.DeleteLog, names, ids, ms), st.builds(calls.Done)),
    calls.SetLog: (
        st.builds(calls.SetLog, names, ids, ms, st.dictionaries(names, st.integers(0, 255))),
        st.builds(calls.Done),
    ),
    calls.ReadEnds: (
        st.builds(calls.ReadEnds, ids, st.booleans()),
        st.builds(calls.Ends, numbers, numbers, numbers),
    ),
    calls.TransferLog: (
        st.builds(calls.TransferLog, ids, st.none() | names),
        st.builds(calls.LeaderMoved, names),
    ),
    calls.OffsetAt: (st.builds(calls.OffsetAt, ids, times), st.builds(calls.OffsetFound, numbers)),
    OpenProducer: (
        to_log(
            OpenProducer,
            short_names,
            ids,
            st.integers(1, WINDOW_MAX),
            st.integers(EXPIRY_US_MIN, EXPIRY_US_MAX),
            st.none() | numbers,
        ),
        st.builds(ProducerOpened, numbers, numbers, st.booleans()),
    ),
    SetFence: (
        to_log(SetFence, st.none() | short_names, st.none() | short_names),
        st.builds(FenceChanged, numbers),
    ),
    ChunkLabel: (
        to_log(ChunkLabel, short_names, ids, numbers, ms, ids, ms),
        st.builds(ChunkStaged, numbers, st.booleans()),
    ),
    Publish: (
        to_log(
            Publish,
            short_names,
            numbers,
            st.lists(parts, max_size=3, unique_by=lambda part: part.partition).map(tuple),
            st.binary(min_size=32, max_size=32),
            st.none() | short_names,
        ),
        st.builds(Receipt, numbers, numbers, numbers, numbers, numbers),
    ),
    Abort: (
        to_log(Abort, short_names, numbers, st.none() | ids),
        st.builds(Aborted, numbers, numbers),
    ),
    calls.LastPublished: (
        st.builds(calls.LastPublished, ids, names),
        st.builds(calls.LastFound, st.none() | numbers, numbers, numbers, numbers, st.binary()),
    ),
    calls.Status: (
        st.builds(calls.Status),
        st.builds(
            calls.NodeStatus,
            names,
            names,
            nodes,
            st.lists(statuses, max_size=2),
            st.none() | ms,
            st.none() | st.booleans(),
        ),
    ),
    calls.AwaitCatalog: (
        st.builds(calls.AwaitCatalog, numbers, ms),
        st.builds(calls.CatalogReached, numbers, names),
    ),
}


def only(data: bytes) -> Frame:
    (frame,) = frames(data)
    return frame


@pytest.mark.parametrize("kind", ROUND_TRIPS, ids=lambda kind: kind.__name__)
@FUZZ
@given(st.data(), st.integers(0, (1 << 32) - 1))
def test_every_call_and_its_answer_come_back_as_they_were(
    kind: type[Call[Any] | LogCommand[Any]], data: st.DataObject, request: int
) -> None:
    asked, answers = ROUND_TRIPS[kind]
    call, found = data.draw(asked), data.draw(answers)
    batch = b"batch" if kind is ChunkLabel else b""
    encoded = encode_call(request, call, len(batch)) + batch
    assert decode_call(only(encoded)) == (request, call)
    assert decode_result(only(encode_result(request, found)), call) == found


def test_every_call_is_here_and_among_the_samples() -> None:
    every = {*Call.__subclasses__(), *LogCommand.__subclasses__()} - {LogCall, calls._LogMap}
    assert ROUND_TRIPS.keys() == {kind_of(call) for call, _ in RESULTS} == every


@pytest.mark.parametrize(
    "call", [call for call, _ in RESULTS], ids=lambda call: kind_of(call).__name__
)
def test_a_chunk_has_a_batch_behind_it_and_no_other_call_has(call: Call[Any]) -> None:
    wrong = b"" if kind_of(call) is ChunkLabel else b"batch"
    encoded = encode_call(1, call, len(wrong)) + wrong
    with pytest.raises(InvalidArgument, match="a chunk to be staged has a bulk part"):
        decode_call(only(encoded))


def asked(fields: object) -> Frame:
    return Frame(FrameKind.CALL, bytes(4) + msgspec.msgpack.encode(fields), b"")


OPENING = {"log": ID, "name": "p", "instance": ID, "window": 1, "expiry_us": EXPIRY_US_MIN}
PUBLISH = {"log": ID, "app": "a", "batch_id": 0, "parts": [], "digest": bytes(32)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "CALL: Object missing required field `call`"),
        ({"call": "explode"}, "CALL: Invalid value 'explode' - at `$.call`"),
        ({"call": "find-log"}, "CALL: Object missing required field `name`"),
        ({"call": "status", "colour": 1}, "CALL: Object contains unknown field `colour`"),
        ({"call": "find-log", "name": ""}, "of length >= 1 - at `$.name`"),
        ({"call": "find-log", "name": "n" * 256}, "of length <= 255 - at `$.name`"),
        ({"call": "find-log", "name": "a\0b"}, "at `$.name`"),
        ({"call": "find-log", "name": "ab\n"}, "at `$.name`"),
        ({"call": "find-log", "name": b"ab"}, "Expected `str`, got `bytes` - at `$.name`"),
        ({"call": "read-ends", "log": ID[:15]}, "of length >= 16 - at `$.log`"),
        ({"call": "read-ends", "log": ID + b"x"}, "of length <= 16 - at `$.log`"),
        ({"call": "read-ends", "log": ID, "barrier": 1}, "Expected `bool`, got `int`"),
        ({"call": "offset-at", "log": ID, "time_us": 1 << 63}, "at `$.time_us`"),
        ({"call": "offset-at", "log": ID, "time_us": 1.5}, "got `float` - at `$.time_us`"),
        ({"call": "await-catalog", "offset": -1, "timeout_ms": 1}, "at `$.offset`"),
        ({"call": "await-catalog", "offset": 1, "timeout_ms": -1}, "at `$.timeout_ms`"),
        ({"call": "await-catalog", "offset": 1, "timeout_ms": 1 << 32}, "at `$.timeout_ms`"),
        ({"call": "set-fence", "log": ID, "fence": "a\rb", "expect": None}, "at `$.fence`"),
        ({"call": "set-fence", "log": ID, "fence": "a"}, "missing required field `expect`"),
        ({"call": "open-producer", **OPENING, "window": 0}, "producer window is 0, not 1 to 1024"),
        ({"call": "publish", **PUBLISH, "parts": [1]}, "got `int` - at `$.parts["),
        ({"call": "publish", **PUBLISH, "parts": [1] * 8193}, "of length <= 8192 - at `$.parts`"),
        ([], "CALL: Expected `object`, got `array`"),
    ],
)
def test_a_call_is_refused_by_the_name_of_its_field(fields: object, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_call(asked(fields))
    assert message in str(caught.value)


def test_an_answer_of_another_type_is_refused() -> None:
    frame = only(encode_result(1, calls.OffsetFound(3)))
    with pytest.raises(InvalidArgument, match="RESULT: Object missing required field `index`"):
        decode_result(frame, LogCall(ID, SetFence(None, None)))


def test_an_answer_of_a_newer_release_may_say_more() -> None:
    body = msgspec.msgpack.encode({"offset": 3, "colour": {"red": [1, 2]}})
    frame = Frame(FrameKind.RESULT, bytes(4) + body, b"")
    assert decode_result(frame, calls.OffsetAt(ID, 0)) == calls.OffsetFound(3)


def test_what_is_not_asked_for_is_not_sent() -> None:
    """So an older release understands a call to which a newer one added something."""
    frame = only(encode_call(1, calls.ReadEnds(ID)))
    assert msgspec.msgpack.decode(frame.control[4:]).keys() == {"call", "log"}
    assert decode_call(frame) == (1, calls.ReadEnds(ID, barrier=True))


@pytest.mark.parametrize(
    "call",
    [
        calls.FindLog("\ud800"),
        calls.OffsetAt(ID, 1 << 64),
        calls.OffsetAt(ID, -(1 << 63) - 1),
        calls.FindLog(object()),  # type: ignore[arg-type]  # that is the mistake
    ],
    ids=["surrogate", "high", "low", "object"],
)
def test_what_nobody_could_read_is_not_sent(call: Call[Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^CALL: "):
        encode_call(1, call)
