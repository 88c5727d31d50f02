"""Frames that were broken on their way, or made by somebody who lies: found, and named."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from quorate.batch import batch_count
from quorate.entry import HEADER_BYTES
from quorate.errors import InvalidArgument, QuorateError
from quorate.types import NodeId
from quorate.wire.calls import ListLogs, Status, decode_call, decode_result
from quorate.wire.frames import Frame, FrameKind, FrameLimits, Framer, encode_frame
from quorate.wire.handshake import decode_hello, open_welcome
from quorate.wire.messages import decode_envelopes
from quorate.wire.requests import (
    decode_append,
    decode_failure,
    decode_fetch,
    decode_receipts,
    decode_records,
    request_of,
)
from verification.spoiling import crc
from verification.wire_samples import LIMITS, FrameSample, frames, read, samples

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERED = {
    FrameKind.APPEND,
    FrameKind.FETCH,
    FrameKind.RECORDS,
    FrameKind.CALL,
    FrameKind.RESULT,
    FrameKind.FAILURE,
}
SAMPLES = samples()


def name(sample: FrameSample) -> str:
    return f"{sample.kind.name}-{len(sample.data)}"


def reading(frame: Frame, sample: FrameSample) -> object:
    """All that receivers do with a frame before they act on it."""
    found, _ = read(frame, sample.call)
    if frame.kind is FrameKind.APPEND or (frame.kind is FrameKind.CALL and frame.bulk):
        batch_count(frame.bulk)
    return found


def test_samples_are_read_and_encoded_again_byte_by_byte() -> None:
    for sample in SAMPLES:
        (frame,) = frames(sample.data)
        assert read(frame, sample.call)[1] == sample.data


# -- accidents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_every_flipped_bit_is_noticed(sample: FrameSample) -> None:
    """By the frame's CRC, by the limits, or by what the bulk part holds.

    A flipped length may first ask for more bytes than there are; those of the next frame show it.
    """
    good, narrow = sample.data, FrameLimits(4096, 4096)
    rest = encode_frame(FrameKind.PING, bytes(narrow.control))
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(QuorateError):
            for frame in Framer(narrow).feed(bytes(data) + rest):
                reading(frame, sample)


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_a_frame_that_is_cut_short_waits_for_its_rest(sample: FrameSample) -> None:
    good = sample.data
    for length in range(len(good)):
        framer = Framer(LIMITS)
        assert list(framer.feed(good[:length])) == []
        assert framer.waiting == length


@pytest.mark.parametrize("sample", SAMPLES, ids=name)
def test_a_control_part_of_another_length_is_refused(sample: FrameSample) -> None:
    """With a head that fits: whoever made it left something out, or added something."""
    control, bulk = sample.control, b"".join(sample.bulk)
    if sample.kind in (FrameKind.PING, FrameKind.PONG):
        return  # they say nothing, and nobody looks
    for wrong in (*(control[:length] for length in range(len(control))), control + b"\0"):
        with pytest.raises(InvalidArgument):
            reading(Frame(sample.kind, wrong, bulk), sample)


@pytest.mark.parametrize("sample", [one for one in SAMPLES if one.bulk], ids=name)
def test_a_bulk_part_of_another_length_is_refused(sample: FrameSample) -> None:
    bulk = b"".join(sample.bulk)
    for wrong in (*(bulk[:length] for length in range(len(bulk))), bulk + b"\0"):
        with pytest.raises(InvalidArgument):
            reading(Frame(sample.kind, sample.control, wrong), sample)


DECODERS: dict[FrameKind, Callable[[Frame], object]] = {
    FrameKind.HELLO: decode_hello,
    FrameKind.WELCOME: open_welcome,
    FrameKind.REFUSAL: open_welcome,
    FrameKind.PEER: lambda frame: decode_envelopes(frame, "shop", NodeId("n1"), NodeId("n2")),
    FrameKind.APPEND: decode_append,
    FrameKind.RECEIPTS: decode_receipts,
    FrameKind.FETCH: decode_fetch,
    FrameKind.RECORDS: decode_records,
    FrameKind.CALL: decode_call,
    FrameKind.RESULT: lambda frame: decode_result(frame, Status()),
    FrameKind.FAILURE: decode_failure,
}


@pytest.mark.parametrize("kind", DECODERS)
def test_a_frame_is_not_taken_for_one_of_another_kind(kind: FrameKind) -> None:
    """What goes the wrong way, or comes at the wrong time, is refused by its name."""
    for sample in SAMPLES:
        if DECODERS.get(sample.kind) is not DECODERS[kind]:
            frame = Frame(sample.kind, sample.control, b"".join(sample.bulk))
            with pytest.raises(InvalidArgument, match=sample.kind.name):
                DECODERS[kind](frame)


def test_requests_and_their_answers_are_known_by_their_number() -> None:
    for kind in FrameKind:
        frame = Frame(kind, b"\x2a\0\0\x01rest", b"")
        if kind in NUMBERED:
            assert request_of(frame) == 0x0100002A
            with pytest.raises(InvalidArgument, match=kind.name):
                request_of(Frame(kind, b"\x2a\0\0", b""))
        else:
            with pytest.raises(InvalidArgument, match=f"{kind.name} is no request"):
                request_of(frame)


# -- lies --------------------------------------------------------------------------------------

# Counts and lengths inside of control parts: kind, where, how wide, and the name in the answer.
COUNTS = [
    (FrameKind.PEER, 0, 4, "messages"),
    (FrameKind.RECEIPTS, 28, 4, "rows"),
    (FrameKind.RECORDS, 20, 4, "rows"),
    (FrameKind.APPEND, 32, 1, "names"),
    (FrameKind.APPEND, 33, 1, "names"),
    (FrameKind.FAILURE, 4, 1, "texts"),
    (FrameKind.FAILURE, 5, 2, "texts"),
    (FrameKind.FAILURE, 7, 1, "texts"),
]


@pytest.mark.parametrize(("kind", "place", "width", "word"), COUNTS)
def test_a_lie_about_a_count_is_refused_before_it_is_believed(
    kind: FrameKind, place: int, width: int, word: str
) -> None:
    sample = next(one for one in SAMPLES if one.kind is kind)
    right = int.from_bytes(sample.control[place : place + width], "little")
    most = (1 << 8 * width) - 1
    for lie in {0, right - 1, right + 1, most // 2, most} - {right, -1}:
        control = bytearray(sample.control)
        control[place : place + width] = lie.to_bytes(width, "little")
        frame = Frame(kind, bytes(control), b"".join(sample.bulk))
        tracemalloc.start()
        try:
            with pytest.raises(InvalidArgument) as caught:
                reading(frame, sample)
            assert tracemalloc.get_traced_memory()[1] < 64 << 10
        finally:
            tracemalloc.stop()
        if lie == most:
            assert word in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa4logs\xdd\xff\xff\xff\xff",
        b"\x81\xa4logs\x91\x84\xa4name\xdb\xff\xff\xff\xff",
        b"\x81\xa4logs\x91\x84\xabincarnation\xc6\xff\xff\xff\xff",
        b"\x81\xa4logs\x91\x84\xa5nodes\xdf\xff\xff\xff\xff",
        b"\x81\xa4junk\xdd\xff\xff\xff\xff",
    ],
    ids=["fields", "list", "text", "bytes", "dict", "unknown"],
)
def test_a_lie_about_a_length_in_a_shape_takes_no_memory(body: bytes) -> None:
    frame = Frame(FrameKind.RESULT, bytes(4) + body, b"")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="RESULT"):
            decode_result(frame, ListLogs())
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "front"),
    [
        (FrameKind.HELLO, b"\x82\xa7purpose\xa6client\xa1x"),
        (FrameKind.WELCOME, b"\x81\xa1x"),
        (FrameKind.REFUSAL, b"\x81\xa1x"),
        (FrameKind.CALL, b"\0\0\0\0\x82\xa1x"),
        (FrameKind.RESULT, b"\0\0\0\0\x81\xa1x"),
    ],
)
def test_a_shape_within_a_shape_without_end_is_refused(kind: FrameKind, front: bytes) -> None:
    for opening in (b"\x91", b"\x81\xa1x"):
        with pytest.raises(InvalidArgument):
            DECODERS[kind](Frame(kind, front + opening * 20_000, b""))


@pytest.mark.parametrize(
    ("kind", "control"),
    [
        (FrameKind.HELLO, b"\x81\xa7purpose\xa2\xff\xfe"),
        (FrameKind.HELLO, b"\x81\xa7purp\xffse\xa2ab"),
        (FrameKind.CALL, b"\0\0\0\0\x82\xa4call\xa8find-log\xa4name\xa2\xff\xfe"),
        (FrameKind.CALL, b"\0\0\0\0\x81\xa4call\xa2\xff\xfe"),
        (FrameKind.FAILURE, b"\0\0\0\0\x01\x02\0\0E\xff\xfe"),
        (FrameKind.FAILURE, b"\0\0\0\0\x02\x01\0\0\xff\xfeE"),
        (FrameKind.FAILURE, b"\0\0\0\0\x0a\x01\0\x02NOT_LEADERx\xff\xfe"),
    ],
)
def test_text_that_is_no_text_is_refused(kind: FrameKind, control: bytes) -> None:
    with pytest.raises(InvalidArgument):
        DECODERS[kind](Frame(kind, control, b""))


# -- entries in a bulk part --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FrameKind.PEER, FrameKind.RECORDS])
def test_sizes_that_do_not_cut_the_bulk_part_into_entries_are_refused(kind: FrameKind) -> None:
    sample = next(one for one in SAMPLES if one.kind is kind and len(one.bulk) == 2)
    first, second = map(len, sample.bulk)
    place = sample.control.index(first.to_bytes(4, "little"))
    stride = sample.control.index(second.to_bytes(4, "little"), place + 4) - place
    for sizes in ((first + 1, second - 1), (first + second, 0), (0, first + second), (first, 0)):
        control = bytearray(sample.control)
        for row, size in enumerate(sizes):
            control[place + row * stride : place + row * stride + 4] = size.to_bytes(4, "little")
        with pytest.raises(InvalidArgument):
            reading(Frame(kind, bytes(control), b"".join(sample.bulk)), sample)


@pytest.mark.parametrize("kind", [FrameKind.PEER, FrameKind.RECORDS])
def test_an_entry_of_a_kind_that_nobody_knows_is_named(kind: FrameKind) -> None:
    sample = next(one for one in SAMPLES if one.kind is kind and len(one.bulk) == 2)
    entry = bytearray(sample.bulk[0])
    entry[5] = 99
    entry[HEADER_BYTES - 4 : HEADER_BYTES] = crc(entry[: HEADER_BYTES - 4])
    with pytest.raises(InvalidArgument, match="entry kind 99 is not known"):
        reading(Frame(kind, sample.control, bytes(entry) + sample.bulk[1]), sample)
