"""A few real power cuts where they can be had, and what the check must notice anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from core_rig import chain, end
from quorate.storage.flusher import Flush
from quorate.testing.powercut.image import why_not
from quorate.testing.powercut.known import Begun, Done, Failed, Known, Opened
from quorate.types import Index, NodeId, Term, VoteRecord

CUTS = 20

RECORD = VoteRecord(5, Term(3), NodeId("n1"), 2)
REOPENED = replace(RECORD, number=6, boot=3)
LOG = chain(1, 1, 2, 2)
FRAMES = [entry.header for entry in LOG]


def test_what_was_reported_outlives_a_power_cut() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "quorate.testing.powercut", "--cuts", str(CUTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert last == f"powercut: cuts={CUTS} lost=0", done.stdout + done.stderr
    assert done.returncode == 0
    during = re.findall(r"^ +(\d+)  cuts during", done.stdout, re.MULTILINE)
    assert sum(map(int, during)) == CUTS


# -- what the check allows and what it does not ------------------------------------------------


def known(*reports: Begun | Done) -> Known:
    """A log of four entries is open, then ``reports`` are made."""
    found = Known(frames=dict(enumerate(FRAMES, 1)), record=RECORD)
    for report in reports:
        found.hear(report)
    return found


def problems(before: Known, frames: list[bytes], record: VoteRecord = REOPENED) -> str:
    return "; ".join(before.compare(Opened(1, frames, record, [])))


def test_the_log_as_it_was_reported_is_fine() -> None:
    assert problems(known(), FRAMES) == ""


def test_an_entry_less_is_lost_and_an_entry_more_came_from_nowhere() -> None:
    assert problems(known(), FRAMES[:3]) == "ends at entry 3, reported was 4"
    more = [*FRAMES, chain(2, after=end(LOG))[0].header]
    assert problems(known(), more) == "entries 1 to 5 are of no log that existed"


def test_another_byte_is_noticed() -> None:
    changed = [*FRAMES[:3], FRAMES[3][:-1] + b"\0"]
    assert "of no log that existed" in problems(known(), changed)


def test_a_flush_under_way_may_be_there_in_part() -> None:
    added = chain(3, 3, after=end(LOG))
    before = known(Begun("flush", Flush(0, entries=added)))
    for count in range(3):
        assert problems(before, FRAMES + [entry.header for entry in added[:count]]) == ""
    assert "of no log" in problems(before, [*FRAMES, added[1].header])


def test_a_flush_that_was_reported_must_be_there_in_full() -> None:
    added = chain(3, 3, after=end(LOG))
    before = known(Begun("flush", Flush(0, entries=added)), Done(RECORD))
    assert problems(before, [*FRAMES, added[0].header]) == "ends at entry 5, reported was 6"
    assert problems(before, FRAMES + [entry.header for entry in added]) == ""


def test_a_truncation_under_way_leaves_the_old_log_or_the_new_one_and_no_mix() -> None:
    added = chain(3, 3, after=end(LOG[:2]))
    new = [entry.header for entry in added]
    before = known(Begun("truncation", Flush(0, truncate_from=Index(3), entries=added)))
    for frames in (FRAMES, FRAMES[:3], FRAMES[:2], [*FRAMES[:2], new[0]], [*FRAMES[:2], *new]):
        assert problems(before, frames) == ""
    assert problems(before, FRAMES[:1]) == "ends at entry 1, reported was 2"
    assert "of no log" in problems(before, [*FRAMES[:3], new[1]])


def test_a_vote_is_the_one_reported_or_the_one_under_way() -> None:
    before = known(Begun("flush", Flush(0, vote=(Term(4), NodeId("n2")))))
    assert problems(before, FRAMES) == ""
    assert problems(before, FRAMES, replace(REOPENED, term=Term(4), vote=NodeId("n2"))) == ""
    assert "voted for n3" in problems(before, FRAMES, replace(REOPENED, vote=NodeId("n3")))
    before.hear(Done(replace(RECORD, number=6, term=Term(4), vote=NodeId("n2"))))
    assert "voted for n1 in term 3" in problems(before, FRAMES, replace(REOPENED, number=7))


@pytest.mark.parametrize("changes", [{"number": 5}, {"boot": 2}])
def test_a_record_must_be_newer_than_the_one_reported(changes: dict[str, int]) -> None:
    assert "older" in problems(known(), FRAMES, replace(REOPENED, **changes))  # type: ignore[arg-type]


def test_a_trim_under_way_leaves_any_beginning_up_to_its_own() -> None:
    before = known(Begun("trim", first=3))
    for first in (1, 2, 3):
        assert not list(before.compare(Opened(first, FRAMES[first - 1 :], REOPENED, [])))
    assert list(before.compare(Opened(4, FRAMES[3:], REOPENED, []))) == [
        "begins at entry 4, reported was 1"
    ]
    before.hear(Done(RECORD))
    assert "begins at entry 2" in "; ".join(before.compare(Opened(2, FRAMES[1:], REOPENED, [])))


def test_a_log_that_was_trimmed_may_be_cut_to_nothing() -> None:
    before = known(Begun("trim", first=3), Done(RECORD))
    before.hear(Begun("truncation", Flush(0, truncate_from=Index(3))))
    assert not list(before.compare(Opened(3, [], REOPENED, [])))


def test_damage_doubt_and_failure_are_problems() -> None:
    assert list(known().compare(Opened(1, [], REOPENED, ["bad page"]))) == ["damage: bad page"]
    assert "unsure" in problems(known(), FRAMES, replace(REOPENED, unsure=True))
    before = known()
    before.hear(Failed("KeyError(3)"))
    assert before.problems == ["the worker failed: KeyError(3)"]


def test_an_open_that_is_cut_short_decides_nothing() -> None:
    """What was under way before it may still be there or not."""
    added = chain(3, after=end(LOG))
    before = known(Begun("flush", Flush(0, entries=added)), Begun("open"))
    assert problems(before, FRAMES) == ""
    assert problems(before, [*FRAMES, added[0].header]) == ""
