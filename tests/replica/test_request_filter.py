"""What a full segment has to do with an append: only what that append needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import led, refused
from quorate.commands import Abort, ChunkLabel, Receipt, SetFence
from quorate.config import KIB, Config, Limits, Storage
from quorate.errors import Busy, TooLarge
from quorate.replica.engine_io import Operate, Propose, Room, Stage
from quorate.storage.flusher import UNPROMISED_PAGES
from quorate.storage.layout import PAGE

if TYPE_CHECKING:
    from verification.hand import HandCluster

SEGMENT_BYTES = 32 * KIB
# All that a segment takes.
LARGEST = SEGMENT_BYTES - UNPROMISED_PAGES * PAGE
# So many chunks that the entry that drops them all takes more.
CHUNKS = LARGEST // 8 + 1

ATTEMPT = bytes(16)


def chunk(number: int) -> ChunkLabel:
    return ChunkLabel("app", ATTEMPT, 1, 0, ATTEMPT, number)


@pytest.fixture
def crowded() -> HandCluster:
    """A node that leads, with small segments and many chunks staged by one app."""
    storage = Storage(segment_bytes=SEGMENT_BYTES, reserve_bytes=0)
    cluster = led(1, Config(limits=Limits(batch_bytes=1000), storage=storage))
    for number in range(CHUNKS):
        cluster.turn("n1", [Stage(10_000 + number, chunk(number), b"x", 1)])
    cluster.turn("n1", [Room(LARGEST)])
    return cluster


def test_chunks_of_one_are_no_obstacle_to_appends_of_others(crowded: HandCluster) -> None:
    crowded.turn("n1", [Propose(1, bytes(1000), 1)])
    assert isinstance(crowded.answers[1], Receipt)
    crowded.turn("n1", [Operate(2, SetFence("one", None))])
    assert not isinstance(crowded.answers[2], Exception)


def test_whoever_finds_no_room_in_this_turn_may_find_it_in_the_next(crowded: HandCluster) -> None:
    crowded.turn("n1", [Propose(token, bytes(1000), 1) for token in (1, 2)])
    assert isinstance(crowded.answers[1], Receipt)
    refused(crowded, 2, Busy)


@pytest.mark.parametrize("drop", [Stage(1, chunk(CHUNKS), b"x", 1), Operate(1, Abort("app", 1))])
def test_what_may_drop_more_than_a_segment_takes_is_not_worth_a_wait(
    crowded: HandCluster, drop: Stage | Operate
) -> None:
    crowded.turn("n1", [drop])
    assert "storage.segment_bytes" in refused(crowded, 1, TooLarge)
