"""Rare requests: every call with its answer, and what is refused by the name of its field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.errors import InvalidArgument
from quorate.testing.wire_samples import RESULTS, frames
from quorate.wire import calls
from quorate.wire.calls import Call, decode_call, decode_result, encode_call, encode_result
from quorate.wire.frames import Frame, FrameKind

ID = bytes(range(16))
names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=255)
ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, (1 << 63) - 1)
times = st.integers(-(1 << 63), (1 << 63) - 1)
ms = st.integers(0, (1 << 32) - 1)
nodes = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3)
words = st.sampled_from(["leader", "follower", "candidate", "learner"])

found_logs = st.builds(calls.LogFound, names, ids, st.none() | names, nodes)
replicas = st.builds(calls.ReplicaStatus, names, st.none() | numbers, words, st.booleans())
statuses = st.builds(
    calls.LogStatus, names, ids, words, st.none() | names, numbers, numbers, numbers, numbers,
    numbers, numbers, st.lists(replicas, max_size=3), st.booleans(),
)  # fmt: skip
# Every call, with a strategy for it and one for its answer.
ROUND_TRIPS: dict[type[Call[Any]], tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    calls.FindLog: (st.builds(calls.FindLog, names), found_logs),
    calls.ListLogs: (
        st.builds(calls.ListLogs),
        st.builds(calls.Logs, st.lists(found_logs, max_size=3)),
    ),
    calls.CreateLog: (st.builds(calls.CreateLog, names, ids, ms), found_logs),
    calls.DeleteLog: (st.builds(calls.DeleteLog, names, ids, ms), st.builds(calls.Done)),
    calls.ReadEnds: (
        st.builds(calls.ReadEnds, ids, st.booleans()),
        st.builds(calls.Ends, numbers, numbers, numbers),
    ),
    calls.OffsetAt: (st.builds(calls.OffsetAt, ids, times), st.builds(calls.OffsetFound, numbers)),
    calls.OpenProducer: (
        st.builds(calls.OpenProducer, ids, names, ids, numbers, numbers),
        st.builds(calls.ProducerOpened, numbers, numbers),
    ),
    calls.SetFence: (
        st.builds(calls.SetFence, ids, st.none() | names, st.none() | names),
        st.builds(calls.FenceSet, numbers),
    ),
    calls.StageChunk: (
        st.builds(calls.StageChunk, ids, names, ids, numbers, ms, ids, ms),
        st.builds(calls.ChunkStaged, numbers, st.booleans()),
    ),
    calls.Publish: (
        st.builds(
            calls.Publish,
            ids,
            names,
            numbers,
            st.lists(st.builds(calls.PublishPart, ms, ids, ms, numbers), max_size=3),
            st.binary(min_size=32, max_size=32),
            st.none() | names,
        ),
        st.builds(calls.Published, numbers, numbers, numbers, numbers, numbers),
    ),
    calls.AbortStaged: (
        st.builds(calls.AbortStaged, ids, names, numbers, st.none() | ids),
        st.builds(calls.Aborted, numbers, numbers),
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
    kind: type[Call[Any]], data: st.DataObject, request: int
) -> None:
    asked, answers = ROUND_TRIPS[kind]
    call, found = data.draw(asked), data.draw(answers)
    batch = b"batch" if kind is calls.StageChunk else b""
    encoded = encode_call(request, call, len(batch)) + batch
    assert decode_call(only(encoded)) == (request, call)
    assert decode_result(only(encode_result(request, found)), call) == found


def test_every_call_is_here_and_among_the_samples() -> None:
    assert ROUND_TRIPS.keys() == {type(call) for call, _ in RESULTS} == set(Call.__subclasses__())


@pytest.mark.parametrize(
    "call", [call for call, _ in RESULTS], ids=lambda call: type(call).__name__
)
def test_a_chunk_has_a_batch_behind_it_and_no_other_call_has(call: Call[Any]) -> None:
    wrong = b"" if isinstance(call, calls.StageChunk) else b"batch"
    encoded = encode_call(1, call, len(wrong)) + wrong
    with pytest.raises(InvalidArgument, match="a chunk to be staged has a bulk part"):
        decode_call(only(encoded))


def asked(fields: object) -> Frame:
    return Frame(FrameKind.CALL, bytes(4) + msgspec.msgpack.encode(fields), b"")


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
        decode_result(frame, calls.SetFence(ID, None, None))


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
