"""Plain appends: the bytes of any APPEND, cut out of a read only where they are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.batch import encode_batch
from quorate.commands import ProducerStamp
from quorate.wire.frames import FrameKind, FrameLimits, Framer, encode_frame
from quorate.wire.plain import PLAIN_BYTES, encode_plain, split_plain
from quorate.wire.requests import AppendRequest, encode_append

LOG, OTHER = bytes(range(16)), bytes(16)
ROOM = 1 << 20
BATCH = encode_batch([b"some value"], times=5)


def number(log: bytes) -> int:
    return int.from_bytes(log, "little")


def test_the_bytes_are_those_of_an_append() -> None:
    append = AppendRequest(7, number(LOG), BATCH, deadline_ms=123)
    assert encode_plain([7], LOG, [BATCH], 123) == encode_append(append) + BATCH


def test_neighbours_are_cut_out_up_to_the_first_that_is_not_plain() -> None:
    plain = [encode_plain([request], LOG, [BATCH], 5) for request in (7, 8, 3)]
    special = encode_append(AppendRequest(9, number(LOG), BATCH, expect_offset=0)) + BATCH
    data = b"before" + b"".join(plain) + special + plain[0]
    cut = split_plain(data, len(b"before"), 100, ROOM)
    assert cut is not None
    assert (cut.log, cut.requests, cut.batches) == (
        LOG,
        [7, 8, 3],
        [BATCH] * 3,
    )
    assert data[cut.end :] == special + plain[0]


@pytest.mark.parametrize(
    "frame",
    [
        encode_append(AppendRequest(9, number(LOG), BATCH, expect_offset=0)) + BATCH,
        encode_append(AppendRequest(9, number(LOG), BATCH, fence="w")) + BATCH,
        encode_append(AppendRequest(9, number(LOG), BATCH, producer=ProducerStamp("p", 1, 1)))
        + BATCH,
        encode_frame(FrameKind.PING, b""),
        encode_frame(FrameKind.FETCH, bytes(34)) + bytes(100),
        encode_plain([1], LOG, [BATCH], 5)[:-1],
        encode_plain([1], LOG, [BATCH], 5)[: PLAIN_BYTES - 1],
        b"",
    ],
)
def test_what_is_not_plain_or_not_whole_is_left_alone(frame: bytes) -> None:
    assert split_plain(frame, 0, 100, ROOM) is None


def test_another_log_ends_the_appends_that_are_taken_together() -> None:
    data = encode_plain([1], LOG, [BATCH], 5) + encode_plain([2], OTHER, [BATCH], 5)
    cut = split_plain(data, 0, 100, ROOM)
    assert cut is not None
    assert (cut.requests, cut.end) == ([1], PLAIN_BYTES + len(BATCH))
    rest = split_plain(data, cut.end, 100, ROOM)
    assert rest is not None
    assert (rest.log, rest.requests, rest.end) == (OTHER, [2], len(data))


@pytest.mark.parametrize(
    ("deadlines", "taken", "earliest"),
    [
        ([500, 500, 500], 3, 500),
        ([500, 530, 480], 3, 480),
        ([500, 550, 450], 3, 450),
        ([500, 449, 500], 1, 500),
        ([500, 500, 551], 2, 500),
        ([60_000, 1, 1], 1, 60_000),
        ([0, 50, 51], 2, 0),
    ],
)
def test_appends_with_about_the_same_deadline_share_the_earliest(
    deadlines: list[int], taken: int, earliest: int
) -> None:
    frames = [encode_plain([7], LOG, [BATCH], deadline) for deadline in deadlines]
    cut = split_plain(b"".join(frames), 0, 100, ROOM)
    assert cut is not None
    assert (len(cut.requests), cut.deadline_ms) == (taken, earliest)
    assert cut.end == taken * len(frames[0])


def test_a_frame_that_is_not_taken_does_not_shorten_the_deadline() -> None:
    frames = [encode_plain([7], LOG, [BATCH], deadline) for deadline in (500, 480)]
    spoiled = frames[1][:-1], frames[1][:20] + b"\xff" + frames[1][21:]
    for second in spoiled:
        cut = split_plain(frames[0] + second, 0, 100, ROOM)
        assert cut is not None
        assert (len(cut.requests), cut.deadline_ms) == (1, 500)


def test_the_limits_end_the_appends_that_are_taken_together() -> None:
    data = b"".join(encode_plain([request], LOG, [BATCH], 5) for request in range(10))
    for frames, room, taken in ((3, ROOM, 3), (100, 4 * len(BATCH) + 1, 4), (0, ROOM, 0)):
        cut = split_plain(data, 0, frames, room)
        assert (len(cut.requests) if cut is not None else 0) == taken


def test_a_flipped_bit_before_the_batch_is_found() -> None:
    good = encode_plain([1], LOG, [BATCH], 5)
    for bit in range(8 * PLAIN_BYTES):
        spoiled = bytearray(good)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert split_plain(bytes(spoiled), 0, 100, ROOM) is None, bit


@given(st.binary(max_size=300), st.integers(0, 50))
def test_garbage_is_left_alone(data: bytes, start: int) -> None:
    assert split_plain(data, start, 100, ROOM) is None


@given(st.lists(st.integers(1, 400), max_size=60))
def test_a_framer_with_a_shortcut_loses_nothing_wherever_reads_end(cuts: list[int]) -> None:
    """Every frame is taken once and in order, by the shortcut or by the framer."""
    frames = [
        encode_plain([place], LOG, [BATCH], 5)
        if place % 3
        else encode_append(AppendRequest(place, number(LOG), BATCH, expect_offset=1)) + BATCH
        for place in range(40)
    ]
    stream = b"".join(frames)
    taken: list[int] = []

    def shortcut(chunk: bytes, start: int) -> int:
        cut = split_plain(chunk, start, 5, ROOM)
        if cut is None:
            return start
        taken.extend(cut.requests)
        return cut.end

    framer = Framer(FrameLimits(1000, ROOM))
    framer.shortcut = shortcut
    position = 0
    for cut in [*cuts, len(stream)]:
        for frame in framer.feed(stream[position : position + cut]):
            # The shortcut adds to the same list meanwhile.
            taken.append(int.from_bytes(frame.control[:4], "little"))  # noqa: PERF401
        position += cut
    assert taken == list(range(40))
    assert framer.waiting == 0
