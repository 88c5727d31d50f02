"""The vote record stands in two files, on two pages of each: no spoilt page and no torn write after
it takes a vote back that was answered."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged, InvariantBroken
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    CLEAN,
    PAGE,
    SPARE,
    VOTE_BYTES,
    VOTE_COPIES,
    decode_votes,
    encode_vote,
    newest_vote,
)
from quorate.storage.recovery.open import open_log
from quorate.storage.vote import plan_vote
from quorate.types import ORIGIN, Index, NodeId, Term, VoteRecord
from verification.disk.crashes import crash_states
from verification.disk.simulated import SimulatedDisk, SimulatedFile
from verification.disk.small import IDENTITY, SEGMENT_BYTES, grow, open_disk, opening, run
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from verification.disk.small import Open

VOTES = [(Term(term), NodeId(f"n{term}")) for term in (1, 2, 3)]
PLACES = [(name, place) for name in VOTE_COPIES for place in range(0, VOTE_BYTES, PAGE)]


def voted() -> SimulatedDisk:
    """A node that voted in two terms, and answered both."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=VOTES[0], entries=grow(ORIGIN, 50))))
    run(flusher.plan(Flush(2, vote=VOTES[1])))
    return disk


def flipped(disk: SimulatedDisk, name: str, place: int) -> None:
    disk.spoil(name, place, b"\xa5")


def older(disk: SimulatedDisk, name: str, place: int) -> None:
    disk.spoil(name, place, disk.files[name].older[place])


def whole(disk: SimulatedDisk, name: str, _: int) -> None:
    disk.spoil(name, 0, bytes(VOTE_BYTES))


@pytest.mark.parametrize("spoil", [flipped, older, whole])
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_copy_that_rots_while_its_node_runs_takes_no_vote_back(
    name: str, place: int, spoil: Callable[[SimulatedDisk, str, int], None]
) -> None:
    """The next record is torn in the other copy, or in the same one."""

    def voting(disk: SimulatedDisk) -> Generator[str, None, Open]:
        opened = open_disk(disk)
        spoil(disk, name, place)

        def plan() -> Generator[str, None, Open]:
            yield from opened[1].plan(Flush(3, vote=VOTES[2]))
            return opened

        return plan()

    for crash in crash_states(voted(), voting):
        log, _ = open_disk(crash.disk)
        vote = (log.record.term, log.record.vote)
        assert vote == VOTES[2] or (vote == VOTES[1] and not crash.ended), crash


@pytest.mark.parametrize("name", VOTE_COPIES)
def test_a_copy_that_rots_before_an_open_that_crashes_takes_no_vote_back(name: str) -> None:
    """What is found may be in the page cache only: a killed process wrote it."""
    disk = voted()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(3, vote=VOTES[2])), until=f"write {VOTE_COPIES[0]}")
    disk.spoil(name, 0, bytes(VOTE_BYTES))
    for crash in crash_states(disk, opening):
        log, _ = open_disk(crash.disk)
        assert (log.record.term, log.record.vote) in VOTES[1:], crash


@pytest.mark.parametrize("name", VOTE_COPIES)
def test_an_open_makes_both_copies_whole(name: str) -> None:
    disk = voted()
    disk.spoil(name, 0, bytes(VOTE_BYTES))
    log, _ = open_disk(disk)
    first, second = (disk.durable[copy] for copy in VOTE_COPIES)
    assert first == second
    assert newest_vote([first], IDENTITY) == log.record
    numbers = {record.number for record in decode_votes(first, IDENTITY) if record is not None}
    assert numbers == {log.record.number - 1, log.record.number}


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_record_in_the_place_of_another_is_none(name: str, place: int) -> None:
    """A misdirected page does not count for the one that it took the place of."""
    disk = voted()
    other = PAGE - place
    disk.spoil(name, place, bytes(disk.files[name].content[other : other + PAGE]))
    assert decode_votes(disk.files[name].content, IDENTITY)[place // PAGE] is None
    log, _ = open_disk(disk)
    assert (log.record.term, log.record.vote) == VOTES[1]


# -- a disk that does not give something back ------------------------------------------------------


def answer_no(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    read = SimulatedFile.read

    def unreadable(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name in names:  # a fault is put under it
            raise OSError(errno.EIO, os.strerror(errno.EIO), file._name)
        return read(file, position, length)

    monkeypatch.setattr(SimulatedFile, "read", unreadable)


@pytest.mark.parametrize("name", [*VOTE_COPIES, CLEAN, SPARE])
def test_a_log_opens_without_what_it_can_do_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = voted()
    _, flusher = open_disk(disk)
    run(flusher.close(Index(0)))
    assert name in disk.names()
    answer_no(monkeypatch, name)
    log, flusher = open_disk(disk)
    assert (log.record.term, log.record.vote) == VOTES[1]
    assert (log.last.index, log.damage, log.record.unsure) == (1, [], False)
    assert flusher.spare.bytes


def test_a_vote_record_that_cannot_be_read_at_all_stops_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = voted()
    answer_no(monkeypatch, *VOTE_COPIES)
    with pytest.raises(Damaged, match="no copy of the vote record can be read"):
        open_disk(disk)


@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize(("lost", "bad"), [("vote-a", "vote-b"), ("vote-b", "vote-a")])
def test_a_log_that_voted_and_has_no_segment_is_not_a_new_node(
    lost: str, bad: str, spare: bool
) -> None:
    """One copy of its vote record is gone and the other one is bad."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, vote=VOTES[0])))
    disk.lose(lost)
    for page in (0, PAGE):
        disk.spoil(bad, page + 20, b"rot")
    if not spare:
        disk.lose(SPARE)
    with pytest.raises(Damaged, match="no copy of the vote record"):
        open_disk(disk)


def test_of_two_records_with_one_number_that_of_the_later_boot_counts() -> None:
    """An open could not read one copy, and gave the number of its newest record once more."""
    old = VoteRecord(4, Term(5), NodeId("n2"), boot=1)
    new = VoteRecord(4, Term(1), NodeId("n1"), boot=2, unsure=True)
    pages = [encode_vote(record, IDENTITY).ljust(VOTE_BYTES, b"\0") for record in (old, new)]
    assert newest_vote(pages, IDENTITY) == newest_vote(reversed(pages), IDENTITY) == new


@pytest.mark.parametrize("name", VOTE_COPIES)
def test_an_open_writes_the_copy_that_lacks_the_record_first(name: str) -> None:
    """A disk may spoil all of a page whose write a crash tears, and the other copy is bad."""
    disk = voted()
    disk.spoil(name, 0, bytes(VOTE_BYTES))
    steps = [step for step in opening(disk) if step.startswith(("write vote", "sync vote"))]
    assert steps[:2] == [f"write {name}", f"sync {name}"]


def test_a_record_that_cuts_a_header_is_not_written() -> None:
    with pytest.raises(InvariantBroken, match="a header is never cut"):
        encode_vote(VoteRecord(1, Term(1), None, boot=1, segment=1, cutting=2000), IDENTITY)


@pytest.mark.parametrize("copies", [VOTE_COPIES, VOTE_COPIES[:1], ()])
def test_a_log_begins_unsure_also_if_its_vote_record_was_made_before(
    copies: tuple[str, ...],
) -> None:
    """The vote record is made with the directory of a log, and its boot is 0."""

    def beginning(disk: SimulatedDisk) -> Generator[str, None, Open]:
        return open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1, begins_unsure=True)

    disk = SimulatedDisk()
    run(plan_vote(disk, IDENTITY, VoteRecord(0, Term(0), None, 0), copies))
    for crash in crash_states(disk, beginning):
        log, _ = complete(beginning(crash.disk))
        assert log.record.unsure, crash
    complete(beginning(disk))
    log, _ = open_disk(disk)  # the boots after that remember it
    assert (log.record.boot, log.record.unsure) == (2, True)


def test_a_log_that_was_sure_once_does_not_begin_unsure() -> None:
    disk = voted()
    log, _ = complete(open_log(disk, IDENTITY, SEGMENT_BYTES, lambda: 1, begins_unsure=True))
    assert not log.record.unsure
