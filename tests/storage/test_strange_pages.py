"""Pages of another log in the files of this one: a disk misdirected a write, or gave back a page of
another node's disk.

The pages are whole. What they say is true of another log, and of this one it must not be believed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged, WrongDirectory
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint, read_position
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    PAGE,
    VOTE_BYTES,
    VOTE_COPIES,
    LogId,
    SegmentHeader,
    decode_vote,
    encode_vote,
    newest_vote,
    segment_name,
    vote_place,
)
from quorate.storage.offline.verify_log import audit_log
from quorate.types import ORIGIN, Index, NodeId, Term, VoteRecord
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import IDENTITY, grow, open_disk, opening, run

if TYPE_CHECKING:
    from pathlib import Path

LOG = grow(ORIGIN, 50, 50)
OTHERS = [
    pytest.param(LogId(2, IDENTITY.storage), id="another log of the node"),
    pytest.param(LogId(1, b"another disk".ljust(16, b"\0")), id="another node"),
]
# Higher in every respect.
RECORD = VoteRecord(900, Term(800), NodeId("n9"), 700)


def voted() -> SimulatedDisk:
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=(Term(3), NodeId("n2")), entries=LOG)))
    run(flusher.prove(Index(2)))
    return disk


@pytest.mark.parametrize("other", OTHERS)
def test_a_page_of_a_vote_record_is_that_of_its_own_log_only(other: LogId) -> None:
    page = encode_vote(RECORD, other)
    assert decode_vote(page, other) == RECORD
    assert decode_vote(page, IDENTITY) is None


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", VOTE_COPIES)
@pytest.mark.parametrize("number", [900, 901])
def test_a_vote_record_of_another_log_does_not_outweigh_the_other_copy(
    other: LogId, name: str, number: int, tmp_path: Path
) -> None:
    disk = voted()
    strange = encode_vote(replace(RECORD, number=number), other)
    disk.spoil(name, vote_place(number), strange)
    for file, inode in disk.files.items():
        (tmp_path / file).write_bytes(bytes(inode.content))
    report = audit_log(tmp_path, 1, IDENTITY.storage, lambda _: None)
    assert [(one.file, one.what) for one in report.warnings] == [
        (name, "this copy of the vote record is bad")
    ]
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.record.term, log.record.vote) == (3, "n2"), crash
        assert (log.last, log.damage, log.record.unsure) == (LOG[1].position, [], False), crash


@pytest.mark.parametrize("other", OTHERS)
def test_vote_records_of_another_log_alone_stop_the_log(other: LogId) -> None:
    disk = voted()
    for name in VOTE_COPIES:
        for number in (899, 900):
            page = encode_vote(replace(RECORD, number=number), other)
            disk.spoil(name, vote_place(number), page)
    with pytest.raises(Damaged, match="no copy of the vote record can be read"):
        open_disk(disk)


def test_a_log_whose_vote_records_are_all_of_another_is_not_a_new_one() -> None:
    """Before its first segment there is nothing else that says that it was opened."""
    disk = SimulatedDisk()
    run(opening(disk))
    assert newest_vote([disk.files["vote-a"].content], IDENTITY) is not None
    for name in VOTE_COPIES:
        disk.spoil(name, 0, bytes(VOTE_BYTES))
        disk.spoil(name, PAGE, encode_vote(replace(RECORD, number=1), LogId(2, bytes(16))))
    with pytest.raises(Damaged, match="no copy of the vote record can be read"):
        open_disk(disk)


@pytest.mark.parametrize("other", OTHERS)
def test_the_checkpoint_of_another_log_counts_for_nothing(other: LogId) -> None:
    """It covers entries that this log never had: its node would be unsure of its end."""
    disk = voted()
    checkpoint = Checkpoint(LOG[1].position._replace(index=Index(40)), [b"of another log"])
    file = disk.create(CHECKPOINT)
    file.write(0, [*checkpoint.pieces(other)])
    file.sync()
    disk.sync_directory()
    assert read_checkpoint(disk, other) == checkpoint
    assert read_checkpoint(disk, IDENTITY) is None
    assert read_position(disk, IDENTITY) is None
    log, _ = open_disk(disk)
    assert (log.last, log.damage, log.record.unsure) == (LOG[1].position, [], False)


# -- segments --------------------------------------------------------------------------------------


def segmented() -> SimulatedDisk:
    """A log of three segments with one entry in each; two are sealed."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    for entry in grow(ORIGIN, 30, 20_000, 20_000):
        run(flusher.plan(Flush(1, (Term(1), NodeId("n1")), None, (entry,))))
    run(flusher.prove(Index(3)))
    for _ in range(4):
        run(flusher.chores(Index(3)))
    return disk


def misdirect(disk: SimulatedDisk, number: int, other: LogId) -> None:
    """Let the header of the ``other`` log's segment stand in the place of that of this one."""
    name = segment_name(number)
    header = SegmentHeader.decode(disk.open(name).read(0, PAGE))
    assert header is not None
    disk.spoil(name, 0, replace(header, log=other, nonce=77).encode())


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_header_of_another_log_costs_no_entry(number: int, other: LogId) -> None:
    disk = segmented()
    misdirect(disk, number, other)
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        given = [entry.index for entry in log.entries(Index(1), Index(4))]
        assert (given, log.record.unsure) == ([1, 2, 3], False), crash
    log, _ = open_disk(disk)
    what = {(one.file, one.what) for one in log.damage if one.start == 0}
    assert what == {(segment_name(number), "the segment's header is bad")}


@pytest.mark.parametrize("other", OTHERS)
def test_a_directory_of_which_every_segment_is_of_another_log_is_refused(other: LogId) -> None:
    disk = segmented()
    for number in (1, 2, 3):
        misdirect(disk, number, other)
    before = disk.copy()
    with pytest.raises(WrongDirectory, match="belongs to another log or another node's disk"):
        open_disk(disk)
    assert {name: bytes(inode.content) for name, inode in disk.files.items()} == {
        name: bytes(inode.content) for name, inode in before.files.items()
    }
