"""The vote record stands in two files, on two pages of each: no spoilt page and no torn write after
it takes a vote back that was answered."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import (
    CLEAN,
    PAGE,
    SPARE,
    VOTE_BYTES,
    VOTE_COPIES,
    decode_votes,
    newest_vote,
)
from quorate.testing.disk.crashes import crash_states
from quorate.testing.disk.simulated import SimulatedDisk, SimulatedFile
from quorate.testing.disk.small import grow, open_disk, opening, run
from quorate.types import ORIGIN, Index, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.testing.disk.small import Open

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
    assert newest_vote([first]) == log.record
    numbers = {record.number for record in decode_votes(first) if record is not None}
    assert numbers == {log.record.number - 1, log.record.number}


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_record_in_the_place_of_another_is_none(name: str, place: int) -> None:
    """A misdirected page does not count for the one that it took the place of."""
    disk = voted()
    other = PAGE - place
    disk.spoil(name, place, bytes(disk.files[name].content[other : other + PAGE]))
    assert decode_votes(disk.files[name].content)[place // PAGE] is None
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
    assert flusher.has_spare


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
