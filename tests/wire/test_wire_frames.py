"""Frames are cut out of a stream wherever it was broken up, and what is no frame is named."""

from __future__ import annotations

import itertools
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.errors import InvalidArgument, QuorateError, TooLarge, VersionMismatch
from quorate.wire.frames import (
    FRAME_BYTES,
    PLACED_BYTES,
    PLACED_TIMES,
    UNIDENTIFIED,
    Buffer,
    Frame,
    FrameKind,
    FrameLimits,
    Framer,
    encode_frame,
)
from verification.wire_samples import LIMITS, samples

if TYPE_CHECKING:
    from collections.abc import Iterator

WITH_BULK = [FrameKind.PEER, FrameKind.APPEND, FrameKind.RECORDS, FrameKind.CALL]
WIDE = FrameLimits(4 << 20, 4 << 20)


@st.composite
def whole_frames(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(FrameKind))
    bulk = draw(st.binary(max_size=40)) if kind in WITH_BULK else b""
    return Frame(kind, draw(st.binary(max_size=40)), bulk)


def data_of(frame: Frame) -> bytes:
    data = encode_frame(frame.kind, frame.control, len(frame.bulk)) + frame.bulk
    assert len(data) == frame.size
    return data


def fed(framer: Framer, pieces: list[Buffer]) -> list[Frame]:
    return [frame for piece in pieces for frame in framer.feed(piece)]


def cut(data: bytes, size: int) -> list[Buffer]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@contextmanager
def memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


# -- cutting -----------------------------------------------------------------------------------


@FUZZ
@given(st.lists(whole_frames(), max_size=6), st.lists(st.integers(0, 600), max_size=8), st.data())
def test_any_stream_gives_its_frames_however_it_is_broken_up(
    frames: list[Frame], places: list[int], data: st.DataObject
) -> None:
    stream = b"".join(map(data_of, frames)) + data_of(Frame(FrameKind.APPEND, b"tail", b"more"))
    stream = stream[: len(stream) - data.draw(st.integers(1, 24))]
    bounds = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    pieces: list[Buffer] = [stream[start:stop] for start, stop in itertools.pairwise(bounds)]
    framer = Framer(LIMITS)
    assert fed(framer, pieces) == frames
    assert framer.waiting == len(stream) - sum(frame.size for frame in frames)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 4095, 4096, 4097, 65_536, 1 << 20])
def test_long_frames_come_out_of_pieces_of_any_size(size: int) -> None:
    frames = [
        Frame(FrameKind.APPEND, bytes(range(200)) * 30, bytes(range(251)) * 80),
        Frame(FrameKind.CALL, b"c" * 20_000, b""),
        Frame(FrameKind.PING, b"", b""),
        Frame(FrameKind.RECORDS, b"", b"r" * 9000),
    ]
    framer = Framer(LIMITS)
    assert fed(framer, cut(b"".join(map(data_of, frames)), size)) == frames
    assert framer.waiting == 0


@pytest.mark.parametrize("place", range(1, 60))
def test_a_frame_may_be_broken_anywhere(place: int) -> None:
    frame = Frame(FrameKind.PEER, b"c" * 20, b"b" * 24)
    data = data_of(frame)
    framer = Framer(LIMITS)
    assert fed(framer, [data[:place]]) == []
    assert framer.waiting == place
    assert fed(framer, [b""]) == []
    assert fed(framer, [data[place:] + data]) == [frame, frame]
    assert framer.waiting == 0


@pytest.mark.parametrize("size", [1000, 40_000, 1 << 20])
def test_the_rest_of_a_long_bulk_part_is_received_where_it_belongs(size: int) -> None:
    long = Frame(FrameKind.RECORDS, b"control", bytes(range(251)) * 1200)
    stream = data_of(long)
    framer, position = Framer(WIDE), 50_000
    assert fed(framer, [stream[:position]]) == []
    found = None
    while framer.gap is not None:
        assert framer.waiting == position
        taken = min(size, len(framer.gap))
        framer.gap[:taken] = stream[position : position + taken]
        position += taken
        assert found is None
        found = framer.filled(taken)
    assert (found, framer.waiting) == (long, 0)
    assert fed(framer, [stream[:position], stream[position:] + stream]) == [long, long]


def test_a_bulk_part_gets_no_place_before_much_of_it_came() -> None:
    little = PLACED_BYTES - 1
    for length, had, placed in (
        (4 << 20, little, False),
        (1 << 20, little + 1, True),
        (PLACED_TIMES * PLACED_BYTES, PLACED_BYTES, True),
        (PLACED_TIMES * PLACED_BYTES + 1, PLACED_BYTES, False),
    ):
        framer = Framer(WIDE)
        assert fed(framer, [encode_frame(FrameKind.APPEND, b"", length) + bytes(had)]) == []
        assert (framer.gap is not None) is placed


def test_what_was_fed_may_change_afterwards() -> None:
    """A reader that uses one buffer again and again overwrites what it handed over."""
    frame = Frame(FrameKind.APPEND, b"c" * 9000, b"b" * 9000)
    framer = Framer(LIMITS)
    found: list[Frame] = []
    buffer = bytearray(5000)
    for piece in cut(data_of(frame) * 3, len(buffer)):
        buffer[: len(piece)] = piece
        found += framer.feed(memoryview(buffer)[: len(piece)])
        buffer[:] = b"\xff" * len(buffer)
    assert found == [frame] * 3


def test_parts_are_bytes_whatever_was_fed() -> None:
    frame = Frame(FrameKind.APPEND, b"control", b"bulk")
    for kind in (bytes, bytearray, memoryview):
        (found,) = Framer(LIMITS).feed(kind(data_of(frame)))
        assert found == frame
        assert type(found.control) is type(found.bulk) is bytes


def test_limits_that_are_raised_hold_from_the_next_frame_on() -> None:
    """Also for one that arrived in the same piece: after HELLO much more is allowed."""
    hello, append = Frame(FrameKind.HELLO, b"", b""), Frame(FrameKind.APPEND, b"", b"b" * 100)
    framer = Framer()
    found = []
    for frame in framer.feed(data_of(hello) + data_of(append)):
        framer.limits = LIMITS
        found.append(frame)
    assert found == [hello, append]


# -- refusing ----------------------------------------------------------------------------------


def refusal(data: bytes, limits: FrameLimits = LIMITS) -> str:
    framer = Framer(limits)
    with pytest.raises(QuorateError) as caught:
        fed(framer, [data])
    return f"{caught.value.code}: {caught.value}"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"GE", "INVALID_ARGUMENT: a frame begins with b'QR', not with b'GE'"),
        (2, b"\2", "VERSION_MISMATCH: frame version 2, this release speaks 1"),
        (3, b"\x63", "INVALID_ARGUMENT: frame kind 99 is not known to this release"),
        (3, b"\0", "INVALID_ARGUMENT: frame kind 0 is not known to this release"),
        (3, b"\x15", "INVALID_ARGUMENT: frame RESULT has no bulk part; this one has 4 bytes"),
        (4, b"\1\0\1\0", "TOO_LARGE: frame APPEND: control part of 65537 bytes, limit 65536"),
        (8, b"\xff" * 4, "TOO_LARGE: frame APPEND: bulk part of 4294967295 bytes, limit 1048576"),
        (12, b"\0" * 4, "INVALID_ARGUMENT: frame APPEND: CRC does not match"),
        (16, b"C", "INVALID_ARGUMENT: frame APPEND: CRC does not match"),
    ],
    ids=["magic", "version", "kind", "no kind", "no bulk", "control", "bulk", "CRC", "content"],
)
def test_what_is_no_frame_is_refused_by_its_name(place: int, value: bytes, message: str) -> None:
    data = bytearray(data_of(Frame(FrameKind.APPEND, b"control", b"bulk")))
    data[place : place + len(value)] = value
    assert refusal(bytes(data)) == message


@pytest.mark.parametrize("limits", [UNIDENTIFIED, LIMITS])
def test_a_part_may_be_as_long_as_its_limit_and_no_longer(limits: FrameLimits) -> None:
    longest = encode_frame(FrameKind.HELLO, bytes(limits.control))
    assert len(fed(Framer(limits), [longest])) == 1
    head = encode_frame(FrameKind.HELLO, bytes(limits.control + 1))[:FRAME_BYTES]
    assert refusal(head, limits).endswith(f"of {limits.control + 1} bytes, limit {limits.control}")
    head = encode_frame(FrameKind.PEER, b"", limits.bulk + 1)
    assert refusal(head, limits).endswith(f"of {limits.bulk + 1} bytes, limit {limits.bulk}")


def test_a_control_part_is_judged_before_the_bulk_part_is_there() -> None:
    data = bytearray(encode_frame(FrameKind.APPEND, b"control", 1 << 20))
    data[-1] ^= 1
    assert refusal(bytes(data)) == "INVALID_ARGUMENT: frame APPEND: CRC does not match"


def test_nothing_is_found_behind_what_is_no_frame() -> None:
    good = data_of(Frame(FrameKind.PING, b"", b""))
    framer = Framer(LIMITS)
    found = []
    with pytest.raises(InvalidArgument, match="not with b'XX'"):
        for frame in framer.feed(good + b"XX" + good):
            found.append(frame)  # noqa: PERF402  # those before the error count
    assert found == [Frame(FrameKind.PING, b"", b"")]
    for data in (good, b"", b"\0"):
        with pytest.raises(InvalidArgument, match="not with b'XX'"):
            fed(framer, [data])


@pytest.mark.parametrize(
    ("error", "data"),
    [
        (TooLarge, encode_frame(FrameKind.PEER, b"", (1 << 32) - 1)),
        (TooLarge, encode_frame(FrameKind.APPEND, b"", (4 << 20) + 1)),
        (TooLarge, b"QR\1\x08" + b"\xff" * 12),
        (VersionMismatch, b"QR\2\x14" + b"\xff" * 12),
        (InvalidArgument, b"\xff" * 16),
    ],
)
def test_a_lie_about_a_length_takes_no_memory(error: type[QuorateError], data: bytes) -> None:
    framer = Framer(WIDE)
    with memory():
        with pytest.raises(error):
            fed(framer, [data])
        assert tracemalloc.get_traced_memory()[1] < 32 << 10


def test_memory_grows_with_what_came_not_with_what_is_claimed() -> None:
    framers = [Framer(WIDE) for _ in range(100)]
    head = encode_frame(FrameKind.APPEND, b"control", 4 << 20)
    with memory():
        for framer in framers:
            assert fed(framer, [head, b"b" * 1000]) == []
        assert tracemalloc.get_traced_memory()[1] < 100 * 4000


@pytest.mark.parametrize("size", [2, 7, 1000])
def test_short_pieces_take_no_more_room_than_their_bytes(size: int) -> None:
    """An object for each would be a way to take fifty times what was sent."""
    length = 100_000
    pieces = cut(encode_frame(FrameKind.APPEND, b"control", length + 1) + bytes(length), size)
    framer = Framer(WIDE)
    with memory():
        assert fed(framer, pieces) == []
        assert tracemalloc.get_traced_memory()[0] < 2 * length


def test_a_long_frame_is_copied_once() -> None:
    """When it is complete there are the pieces that were fed and the whole, and nothing else."""
    length, size = 4 << 20, 64 << 10
    pieces = cut(encode_frame(FrameKind.APPEND, b"control", length) + bytes(length), size)
    framer = Framer(WIDE)
    with memory():
        (frame,) = fed(framer, pieces)
        assert tracemalloc.get_traced_memory()[1] < length + 2 * size
    assert len(frame.bulk) == length


def test_every_kind_has_a_sample() -> None:
    assert {sample.kind for sample in samples()} == set(FrameKind)
