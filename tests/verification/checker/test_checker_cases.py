"""Small histories whose verdict and witnesses can be told by eye. Times are in seconds."""

from __future__ import annotations

from array import array
from itertools import count

import pytest
from checker_rig import LOG, VOTERS, Run

from verification.checker import AT_END, END_ONLY, LINEARIZABLE, FinalLog, ViolationKind, check
from verification.checker.history import AppendOperation, AppendOutcome
from verification.checker.verdict import KEPT_PER_KIND

SECOND = 10**9
END = LINEARIZABLE | AT_END | END_ONLY


class Case:
    """Client 0 sends the values 0, 1, 2, …; each operation has a session of its own unless told."""

    def __init__(self, *log: int, trimmed: int = 0) -> None:
        self.run = Run(finals=[FinalLog("n1", trimmed, array("Q", log))])
        self.sessions = count(100)

    def append(
        self, start: float, end: float | None, value: int, count: int = 1, *, offset: int = -1,
        session: int | None = None, sequence: int | None = None,
    ) -> int:  # fmt: skip
        """Acked with ``offset``; without an end its outcome is unknown."""
        history = self.run.history
        row = history.begin(
            0, int(start * SECOND), value, count, session=self._session(session),
            producer="" if sequence is None else "p", sequence=sequence or 0,
        )  # fmt: skip
        if end is not None:
            history.acked(row, int(end * SECOND), offset, count, VOTERS)
        return row

    def read(
        self, start: float, end: float, first: int, *seen: int, way: int = LINEARIZABLE | AT_END,
        session: int | None = None,
    ) -> int:  # fmt: skip
        return self.run.history.read(
            0, int(start * SECOND), int(end * SECOND), first, seen, way,
            session=self._session(session),
        )  # fmt: skip

    def _session(self, session: int | None) -> int:
        return next(self.sessions) if session is None else session

    def kinds(self) -> list[ViolationKind]:
        return [violation.kind for violation in self.run.judge().violations]


def test_a_read_that_misses_an_acked_value_is_stale() -> None:
    case = Case(0)
    acked = case.append(0, 1, 0, offset=0)
    stale = case.read(2, 3, 0, way=END)
    [violation] = case.run.judge().violations
    history = case.run.history
    assert violation.kind is ViolationKind.STALE_READ
    assert violation.witnesses == (history.read_row(stale), history.append_row(acked))
    assert violation.message == (
        "offset 0 was acked before the read began; "
        "client 0 session 101 was told the end 0 from 2.000000 s to 3.000000 s; "
        "client 0 session 100 appended 0#0 from 0.000000 s, acked at 1.000000 s with offset 0"
    )


def test_a_read_that_misses_what_another_showed_is_stale() -> None:
    case = Case(0)
    case.append(0, None, 0)
    showed = case.read(1, 2, 0, 0, way=0)  # whoever shows a record proves that it was there
    stale = case.read(3, 4, 0)
    [violation] = case.run.judge().violations
    history = case.run.history
    assert violation.kind is ViolationKind.STALE_READ
    assert violation.witnesses == (history.read_row(stale), history.read_row(showed))


def test_a_value_that_was_read_before_it_was_sent_comes_from_the_future() -> None:
    case = Case(0, 1)
    late = case.append(2, 3, 0, offset=0)
    case.append(0, None, 1)
    early = case.read(0, 1, 1, 1, way=0)  # only what stands below it betrays it
    [violation] = case.run.judge().violations
    history = case.run.history
    assert violation.kind is ViolationKind.FUTURE_READ
    assert violation.witnesses == (history.read_row(early), history.append_row(late))


def test_times_count_from_the_first_operation_of_all() -> None:
    case = Case(0)
    case.append(8, 9, 0, offset=0)
    case.read(6, 7, 0, 0)
    [violation] = case.run.judge().violations
    assert "read [0, 1) and the end from 0.000000 s to 1.000000 s" in violation.message
    assert "appended 0#0 from 2.000000 s, acked at 3.000000 s" in violation.message


def test_an_append_after_another_must_stand_after_it() -> None:
    case = Case(1, 0)
    first = case.append(0, 1, 0, offset=1)
    second = case.append(2, 3, 1, offset=0)
    [violation] = case.run.judge().violations
    history = case.run.history
    assert violation.kind is ViolationKind.ORDER_INVERSION
    assert violation.witnesses == (history.append_row(second), history.append_row(first))


def test_what_overlaps_or_touches_may_have_any_order() -> None:
    case = Case(1, 0)
    case.append(0, 2, 0, offset=1)
    case.append(2, 3, 1, offset=0)
    case.read(2, 4, 0, way=END)
    case.read(0, 2, 0, 1, 0)
    assert case.kinds() == []


def test_a_read_that_promised_nothing_is_not_stale() -> None:
    case = Case(0)
    case.append(0, 1, 0, offset=0)
    case.read(2, 3, 0, way=AT_END)
    assert case.kinds() == []


def test_a_stale_read_is_blamed_once_whatever_it_missed() -> None:
    case = Case(*range(10))
    for value in range(10):
        case.append(0, 1, value, offset=value)
    case.read(2, 3, 0, way=END)
    assert case.kinds() == [ViolationKind.STALE_READ]


def test_an_empty_read_bounds_the_log_from_above_only() -> None:
    """Nobody knows whether offset 2 was the end or beyond it; inside a batch it can be neither."""
    case = Case(0, 1, 2)
    case.append(0, 9, 0, 3, offset=0)
    case.read(2, 3, 2)
    assert case.kinds() == []
    case.read(0, 1, 0, 0, way=LINEARIZABLE)  # so the batch was there before
    assert case.kinds() == [ViolationKind.STALE_READ]


def test_a_session_is_blamed_for_what_was_over_only() -> None:
    case = Case(0, 1)
    case.append(0, 1, 0, offset=0, session=7)
    case.append(0, 5, 1, offset=1, session=7)
    case.read(2, 6, 0, 0, way=AT_END, session=7)
    assert case.kinds() == []
    case.read(6, 7, 0, 0, way=AT_END, session=7)
    assert case.kinds() == [ViolationKind.OWN_WRITE_MISSING]


def test_a_session_knows_all_that_was_over_in_whatever_order_it_began() -> None:
    case = Case(0, 1)
    case.append(0, 9, 1, offset=1, session=7)
    case.append(1, 2, 0, offset=0, session=7)
    case.read(3, 4, 0, way=AT_END, session=7)
    assert case.kinds() == [ViolationKind.OWN_WRITE_MISSING]


def test_a_session_does_not_forget_the_most_that_it_saw() -> None:
    case = Case(0, 1)
    case.append(0, None, 0)
    case.append(0, None, 1)
    case.read(1, 2, 0, 0, 1, way=0, session=7)
    case.read(3, 4, 0, 0, way=0, session=7)  # had enough before the end
    assert case.kinds() == []
    case.read(5, 6, 0, 0, way=AT_END, session=7)
    assert case.kinds() == [ViolationKind.SESSION_WENT_BACK]


def test_a_producers_first_value_may_be_the_missing_one() -> None:
    case = Case(1)
    case.append(0, None, 0, sequence=0)
    case.append(1, 2, 1, sequence=1, offset=0)
    assert case.kinds() == [ViolationKind.PRODUCER_GAP]


def test_a_retry_may_cut_its_batches_anew() -> None:
    """The first send had no answer; the second goes on in other batches, between those of others.

    Then nothing says that the first must be in one piece.
    """
    case = Case(0, 1, 2, 9, 3)
    case.append(0, None, 0, 4, sequence=0)
    case.append(1, 2, 0, 2, sequence=0, offset=0)
    case.read(2, 3, 2, way=END)
    case.append(3, 4, 2, 1, sequence=2, offset=2)
    case.append(4, 5, 9, offset=3)
    case.append(5, 6, 3, 1, sequence=3, offset=4)
    assert case.kinds() == []


@pytest.mark.parametrize(("ends", "expected"), [((1, 4), []), ((1, 2), [ViolationKind.STALE_READ])])
def test_a_value_is_there_once_one_of_its_sends_was_acked(
    ends: tuple[int, int], expected: list[ViolationKind]
) -> None:
    case = Case(0)
    case.run.history.failed(case.append(0, None, 0, sequence=0), ends[0] * SECOND, "BUSY")
    case.append(1, ends[1], 0, sequence=0, offset=0)
    case.append(2, 9, 0, sequence=0)  # DUPLICATE: the answer does not say where
    case.read(3, 4, 0)
    assert case.kinds() == expected


def test_a_failed_send_is_not_a_sender() -> None:
    """It failed before the read, which shows what only a later send can have brought."""
    case = Case(0)
    case.run.history.failed(case.append(0, None, 0, sequence=0), SECOND, "BUSY")
    case.append(4, 5, 0, sequence=0, offset=0)
    case.read(2, 3, 0, 0)
    assert case.kinds() == [ViolationKind.FUTURE_READ]


def test_below_the_trim_point_receipts_and_reads_are_what_is_known() -> None:
    case = Case(3, trimmed=3)
    case.append(0, 1, 0, offset=0)
    case.append(0, None, 1)
    case.append(0, 9, 2)  # there, nobody says where, perhaps trimmed
    case.append(0, 1, 3, offset=3)
    case.read(2, 3, 0, 0, 1, way=0)
    assert case.kinds() == []
    case.read(2, 3, 0, 1, 0, way=0)
    assert case.kinds() == [ViolationKind.DIFFERENT_READ] * 2


def test_below_the_trim_point_an_offset_belongs_to_one_receipt() -> None:
    case = Case(trimmed=1)
    case.append(0, 1, 0, offset=0)
    case.append(0, 1, 1, offset=0)
    assert case.kinds() == [ViolationKind.LOST_ACK]


def test_below_the_trim_point_nobody_may_have_seen_all_of_a_batch() -> None:
    case = Case(3, trimmed=3)
    case.append(0, None, 0, 3)
    case.append(0, 1, 3, offset=3)
    case.read(2, 3, 0, 0, 1, way=0)
    assert case.kinds() == []


def test_below_the_trim_point_a_batch_begins_where_it_must_have_begun() -> None:
    """A read past the end of a log that was empty bounds the whole batch, not some other offset."""
    case = Case(3, trimmed=3)
    case.append(0, None, 0, 3)
    case.append(0, 1, 3, offset=3)
    case.read(2, 3, 1, 1, 2, way=0)
    case.read(0, 1, 2)
    assert case.kinds() == []
    case.read(2, 3, 2)
    assert case.kinds() == [ViolationKind.STALE_READ]


def test_every_violation_is_counted_and_some_are_kept() -> None:
    case = Case()
    for value in range(KEPT_PER_KIND + 5):
        case.append(0, 1, value, offset=value)
    verdict = case.run.judge()
    assert verdict.counts == {ViolationKind.LOST_ACK: KEPT_PER_KIND + 5}
    assert len(verdict.violations) == KEPT_PER_KIND
    assert str(verdict) == "operations=105 appends=105 reads=0 unknown=0 violations=105"


def test_most_replicas_outvote_one() -> None:
    case = Case(0)
    case.append(0, 1, 0, offset=0)
    finals = [FinalLog(f"n{n}", 0, array("Q", log)) for n, log in enumerate([[5, 6], [0], [0]], 1)]
    [violation] = check({LOG: case.run.history}, {LOG: finals}).violations
    assert violation.kind is ViolationKind.REPLICAS_DIFFER
    assert violation.message == "n2 and n1 differ from offset 0 on; they end at 1 and 2"


def test_replicas_may_have_trimmed_different_parts() -> None:
    case = Case(0, 1, 2)
    case.run.finals.append(FinalLog("n2", 2, array("Q", [2])))
    case.append(0, 1, 0, 3, offset=0)
    assert case.kinds() == []


def test_witnesses_are_whole_operations() -> None:
    case = Case()
    row = case.append(0, 1, 0, 2, offset=5, sequence=3)
    [first, _] = case.run.judge().violations
    assert first.witnesses == (case.run.history.append_row(row),)
    assert first.witnesses[0] == AppendOperation(
        0, 100, 0, SECOND, 0, 2, AppendOutcome.ACKED, 5, 2, VOTERS, "p", 3, ""
    )  # fmt: skip
