"""A checkpoint covers only entries that were durable here, so it proves them.

No block stands behind the newest one, so rot in it looks like a write that a crash tore. A
checkpoint that covers an entry of it says that this is no torn write.
"""

from __future__ import annotations

import pytest

from quorate.entry import HEADER_BYTES
from quorate.errors import Damaged
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint, read_position
from quorate.storage.flusher import Flush
from quorate.storage.layout import BLOCK_BYTES, PAGE, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import IDENTITY, grow, open_disk, opening, run

SEGMENT = segment_name(1)
LOG = grow(ORIGIN, 50, 50, 50, 50)
# Blocks: entries 1 and 2; entries 3 and 4.
LAST = 2 * PAGE
FRAME = HEADER_BYTES + 50
ROT = {
    "zeros": (LAST, bytes(PAGE)),
    "garbage": (LAST, b"\xa5" * PAGE),
    "the head of the block": (LAST, bytes(BLOCK_BYTES)),
    "the header of entry 3": (LAST + BLOCK_BYTES, bytes(HEADER_BYTES)),
    "the body of entry 3": (LAST + BLOCK_BYTES + HEADER_BYTES, bytes(8)),
}


def killed(covered: int) -> SimulatedDisk:
    """The disk of a node that was killed after a checkpoint of its first ``covered`` entries."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=(Term(1), NodeId("n1")), entries=LOG[:2])))
    run(flusher.plan(Flush(2, entries=LOG[2:])))
    run(flusher.keep(Checkpoint(LOG[covered - 1].position, iter([b"state"]))))
    return disk


def rotten(kind: str, covered: int = 3) -> SimulatedDisk:
    disk = killed(covered)
    disk.spoil(SEGMENT, *ROT[kind])
    return disk


@pytest.mark.parametrize("kind", ROT)
def test_a_log_that_ends_before_its_checkpoint_lost_its_end(kind: str) -> None:
    log, _ = open_disk(rotten(kind))
    assert log.record.unsure
    assert log.last == LOG[1].position
    assert any("the checkpoint covers entries up to 3" in damage.what for damage in log.damage)
    assert Recovered.of(log).checkpoint is None


@pytest.mark.parametrize("kind", ROT)
def test_a_checkpoint_still_proves_the_end_after_every_crash_of_an_open(kind: str) -> None:
    for crash in crash_states(rotten(kind), opening):
        log, _ = open_disk(crash.disk)
        assert log.record.unsure, f"{crash} left a node that is sure of {log.last.index}"


@pytest.mark.parametrize("kind", ROT)
def test_a_torn_write_behind_the_checkpoint_is_no_loss(kind: str) -> None:
    log, _ = open_disk(rotten(kind, covered=2))
    assert not log.record.unsure
    assert not log.damage
    assert log.last == LOG[1].position


def test_a_checkpoint_with_a_rotten_state_still_proves_its_entries() -> None:
    disk = rotten("zeros")
    size = len(disk.files[CHECKPOINT].content)
    disk.spoil(CHECKPOINT, size - 1, b"\xff")
    log, _ = open_disk(disk)
    assert log.record.unsure


def test_a_checkpoint_whose_head_is_bad_proves_nothing() -> None:
    disk = rotten("zeros")
    disk.spoil(CHECKPOINT, 8, b"\xff")
    assert read_position(disk, IDENTITY) is None
    log, _ = open_disk(disk)
    assert not log.record.unsure


def test_a_log_that_contradicts_its_checkpoint_is_not_started_from() -> None:
    """An old content of the newest page came back: other entries, which were truncated once."""
    disk = killed(covered=3)
    _, flusher = open_disk(disk)
    other = grow(LOG[1].position, 60, 60)
    run(flusher.plan(Flush(3, truncate_from=Index(3), entries=other)))
    log, _ = open_disk(disk)
    assert log.last == other[-1].position
    with pytest.raises(Damaged, match=rf"{SEGMENT} has another entry 3 than the checkpoint"):
        Recovered.of(log)
