"""A spread of the faults that ``verification.exhaustive`` tries, and faults that it must notice.

The whole is 1.2 million faults and takes minutes; here every structure of the two stores is hit a
few times.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from quorate.entry import decode_entry, make_entry
from quorate.errors import DiskFailed
from quorate.storage.layout import (
    PAGE,
    VOTE_COPIES,
    encode_vote,
    newest_vote,
    segment_name,
    vote_place,
)
from quorate.types import NodeId
from verification import exhaustive
from verification.exhaustive import IDENTITY, STORES, Original, examine, opened, original

SAMPLE = 12_000


def test_no_fault_of_a_sample_passes_for_the_truth() -> None:
    command = [sys.executable, "-m", "verification.exhaustive", "--sample", str(SAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    counts = re.fullmatch(r"exhaustive: flips=(\d+) truncations=(\d+) wrong=0 lost=0", last)
    assert counts, done.stdout + done.stderr
    assert done.returncode == 0
    assert int(counts[1]) > SAMPLE // 2
    assert int(counts[2]) > SAMPLE // 20


# -- the stores --------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_a_store_has_all_that_can_break(store: str) -> None:
    whole = original(store)
    log, _ = opened(whole.disk.copy())
    assert sum(map(len, whole.files.values())) >= 1 << 16
    sealed, rolled, newest = log.segments
    assert sealed.footer is not None
    assert rolled.footer is newest.footer is None
    assert log.first > 1
    assert newest.rows.starts


def test_only_the_end_of_the_crashed_store_is_unproved() -> None:
    crashed, stopped = map(original, STORES)
    assert crashed.last == stopped.last == stopped.proved
    assert min(crashed.frames) < crashed.proved < crashed.last


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_nothing_happened_to_is_harmless(store: str) -> None:
    whole = original(store)
    assert examine(whole, whole.disk.copy(), go_on=True) == ("harmless", "")


# -- what must be noticed ----------------------------------------------------------------------


def newest_of(whole: Original) -> str:
    log, _ = opened(whole.disk.copy())
    return segment_name(log.segments[-1].number)


def test_proved_entries_that_vanish_without_a_trace_are_lost() -> None:
    """More than one fault: every block of the newest segment is blank."""
    whole = original("crashed")
    name = newest_of(whole)
    blank = bytearray(whole.file(name)[:PAGE]).ljust(len(whole.file(name)), b"\0")
    finding = examine(whole, whole.broken(name, blank))
    assert finding.verdict == "lost"


def test_an_entry_with_other_bytes_and_good_crcs_is_wrong() -> None:
    """The last one is made anew, as a writer of another log would have made it."""
    whole = original("crashed")
    name = newest_of(whole)
    frame = whole.frames[whole.last]
    entry = decode_entry(frame)
    before = whole.positions[whole.last - 1]
    body = bytes(len(entry.body))
    other = make_entry(
        before, entry.term, entry.kind, body, base_offset=entry.base_offset, count=entry.count,
        append_time=entry.append_time, runs=entry.runs,
    )  # fmt: skip
    data = whole.file(name).replace(frame, other.header + other.body)
    finding = examine(whole, whole.broken(name, bytearray(data)))
    assert finding.verdict == "wrong"
    assert "where it never stood" in finding.why


def test_another_vote_is_wrong() -> None:
    whole = original("stopped")
    record = newest_vote([whole.file(VOTE_COPIES[0])], IDENTITY)
    assert record is not None
    disk = whole.disk.copy()
    for name in VOTE_COPIES:
        changed = replace(record, number=record.number + 1, vote=NodeId("n3"))
        place = vote_place(changed.number)
        disk.files[name].content[place : place + PAGE] = encode_vote(changed, IDENTITY)
    assert examine(whole, disk).verdict == "wrong"


def test_an_undocumented_error_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("segment")

    whole = original("crashed")
    monkeypatch.setattr(exhaustive, "open_log", broken)
    finding = examine(whole, whole.disk.copy())
    assert finding == ("wrong", "undocumented KeyError('segment')")


def test_a_refusal_to_open_is_a_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise DiskFailed("replace this node")

    whole = original("crashed")
    monkeypatch.setattr(exhaustive, "open_log", refused)
    assert examine(whole, whole.disk.copy()).verdict == "detected"


def test_an_unproved_last_block_may_be_cut_and_nothing_before_it() -> None:
    whole = original("crashed")
    name = newest_of(whole)
    data = whole.file(name)
    for index, verdict in ((whole.last, "torn"), (whole.proved, "detected")):
        place = data.index(whole.frames[index])
        flipped = bytearray(data)
        flipped[place + 70] ^= 1
        assert examine(whole, whole.broken(name, flipped), go_on=True).verdict == verdict
