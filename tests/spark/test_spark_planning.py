"""The plan of a read: which offsets are read, and in how many ranges."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

import pytest

from quorate.errors import InvalidArgument, LogRecreated, OffsetOutOfRange, Trimmed
from quorate.spark.cluster_address import ClusterAddress
from quorate.spark.read.options import Moment, Places, ReadOptions
from quorate.spark.read.planning import (
    RANGE_BYTES,
    LogExtent,
    Point,
    Span,
    TaskRange,
    advance,
    micro_batch,
    offsets_of,
    pin,
    points_of,
    shares,
    split,
)

ONE, TWO = "1" * 32, "2" * 32
ANYWHERE = ClusterAddress("h:1")


@dataclass
class PlainLog:
    """A log of records of 100 bytes; one is appended each microsecond."""

    first: int = 0
    end: int = 100
    name: str = "orders"
    incarnation: str = ONE

    def extent(self) -> LogExtent:
        return LogExtent(self.incarnation, self.first, self.end)

    def first_offset(self, incarnation: str) -> int:
        assert incarnation == self.incarnation
        return self.first

    def offset_at(self, timestamp_us: int) -> int:
        # One came while the plan was made.
        return min(timestamp_us, self.end + 1)

    def record_bytes(self, start: int, stop: int) -> float:
        assert self.first <= start < stop <= self.end
        return 100.0


def options(
    starting: Places | None = None, ending: Places | None = None, *, fail_on_data_loss: bool = True
) -> ReadOptions:
    return ReadOptions(
        ("orders",), ANYWHERE, starting=starting, ending=ending, fail_on_data_loss=fail_on_data_loss
    )


@pytest.mark.parametrize(
    ("starting", "ending", "start", "stop"),
    [
        (None, None, 10, 100),
        ("earliest", "latest", 10, 100),
        ("latest", None, 100, 100),
        (20, 30, 20, 30),
        (20, 20, 20, 20),
        (100, None, 100, 100),
        ({"orders": 20}, {"orders": 30}, 20, 30),
        ({"other": 20}, {"other": 30}, 10, 100),
        ({"orders": "latest"}, None, 100, 100),
        (Moment(20), Moment(30), 20, 30),
        (Moment(5), Moment(1000), 10, 100),
        (Moment(1000), None, 100, 100),
        (Moment(50), Moment(40), 50, 50),
    ],
)
def test_a_batch_is_pinned(
    starting: Places | None, ending: Places | None, start: int, stop: int
) -> None:
    span = pin(PlainLog(first=10), options(starting, ending))
    assert span[:4] == ("orders", ONE, start, stop)
    assert span.records == stop - start


@pytest.mark.parametrize(
    ("starting", "ending", "error", "message"),
    [
        (9, None, Trimmed, "orders begins at 10: the records from 9 on are gone; failOnDataLoss"),
        (101, None, OffsetOutOfRange, "startingOffsets 101: orders ends at 100"),
        (None, 101, OffsetOutOfRange, "endingOffsets 101: orders ends at 100"),
        (30, 20, InvalidArgument, "it would begin at 30 and end before, at 20"),
    ],
)
def test_a_range_that_is_not_there_is_refused(
    starting: Places | None, ending: Places | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pin(PlainLog(first=10), options(starting, ending))


def test_lost_records_are_passed_over_if_that_is_wanted() -> None:
    span = pin(PlainLog(first=10), options(3, fail_on_data_loss=False))
    assert (span.start, span.stop) == (10, 100)
    span = pin(PlainLog(first=10), options(3, 7, fail_on_data_loss=False))
    assert (span.start, span.stop) == (10, 10)


# -- ranges --------------------------------------------------------------------------------------


def cuts(ranges: list[TaskRange]) -> list[tuple[str, int, int]]:
    return [(one.log, one.start, one.stop) for one in ranges]


def test_small_spans_are_one_part_each_and_empty_ones_none() -> None:
    spans = [Span("a", ONE, 5, 10, 10.0), Span("b", ONE, 3, 3, 0.0), Span("c", TWO, 0, 1, 9.0)]
    found = split(spans, options())
    assert [one[:4] for one in found] == [("a", ONE, 5, 10), ("c", TWO, 0, 1)]
    assert split([], options()) == []


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [(0.5, 1), (1.9, 1), (2.0, 2), (8.9, 8), (31.0, 8), (35.9, 8), (36.0, 9)],
)
def test_ranges_are_few_and_neither_small_nor_large(ranges: float, expected: int) -> None:
    records = 100_000
    found = split([Span("a", ONE, 7, 7 + records, ranges * RANGE_BYTES / records)], options())
    assert len(found) == expected
    assert found[0].start == 7
    assert found[-1].stop == 7 + records
    assert all(one.stop == other.start for one, other in itertools.pairwise(found))
    assert [one.turn - found[0].turn for one in found] == list(range(expected))
    sizes = [one.stop - one.start for one in found]
    assert max(sizes) - min(sizes) <= 1


def test_options_ask_for_more_parts() -> None:
    spans = [Span("a", ONE, 0, 90, 1.0), Span("b", ONE, 0, 10, 1.0)]
    few = ReadOptions(("*",), ANYWHERE, partitions_min=4)
    assert cuts(split(spans, few)) == [
        ("a", 0, 22),
        ("a", 22, 45),
        ("a", 45, 67),
        ("a", 67, 90),
        ("b", 0, 10),
    ]
    small = ReadOptions(("*",), ANYWHERE, records_max=40)
    assert cuts(split(spans, small)) == [("a", 0, 30), ("a", 30, 60), ("a", 60, 90), ("b", 0, 10)]
    many = ReadOptions(("*",), ANYWHERE, partitions_min=1000)
    assert len(split(spans, many)) == 100, "no range is empty"


def test_small_micro_batchs_begin_with_all_replicas_in_turn() -> None:
    """Also if each has as many records as the one before."""
    for size in (1, 2, 3, 1000, 3000):
        spans = [Span("a", ONE, start, start + size, 1.0) for start in range(0, 100 * size, size)]
        turns = [split([span], options())[0].turn % 3 for span in spans]
        assert all(turns.count(replica) > 15 for replica in range(3)), size
    names = [split([Span(f"log-{n}", ONE, 0, 9, 1.0)], options())[0].turn % 3 for n in range(20)]
    assert set(names) == {0, 1, 2}, "and so do small logs that are read whole"


# -- streams -------------------------------------------------------------------------------------


def test_offsets_have_one_order_and_come_back() -> None:
    points = {"b": Point(TWO, 7), "a": Point(ONE, 5)}
    offsets = offsets_of(points)
    assert list(offsets) == ["a", "b"]
    assert [list(one) for one in offsets.values()] == [["incarnation", "offset"]] * 2
    assert points_of(offsets) == points


def test_offsets_of_somebody_else_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no quorate stream wrote"):
        points_of({"orders": {"0": 5}})


def test_a_micro_batch_ends_at_the_target_or_its_limit() -> None:
    began = {"a": Point(ONE, 5), "b": Point(TWO, 0)}
    target = {"a": LogExtent(ONE, 0, 50), "b": LogExtent(TWO, 0, 10)}
    assert advance(began, target, None) == {"a": Point(ONE, 50), "b": Point(TWO, 10)}
    assert advance(began, target, {"a": 7}) == {"a": Point(ONE, 12), "b": Point(TWO, 0)}
    assert advance(began, target, {"a": 99}) == {"a": Point(ONE, 50), "b": Point(TWO, 0)}


def test_a_new_log_comes_in_with_its_first_record() -> None:
    found = advance({}, {"a": LogExtent(ONE, 3, 50)}, None)
    assert found == {"a": Point(ONE, 3, start=3)}
    assert advance(found, {"a": LogExtent(ONE, 3, 50)}, None) == {"a": Point(ONE, 50, start=3)}


def test_the_first_step_of_each_log_names_where_it_began() -> None:
    began = {"a": Point(ONE, 5, start=5), "b": Point(TWO, 7, start=7)}
    target = {"a": LogExtent(ONE, 0, 50), "b": LogExtent(TWO, 0, 50)}
    first = advance(began, target, {"a": 10})
    assert first == {"a": Point(ONE, 15, start=5), "b": Point(TWO, 7, start=7)}
    assert advance(first, target, {}) == first, "the same text, or Spark would see new data"
    second = advance(first, target, {"a": 10, "b": 10})
    assert second == {"a": Point(ONE, 25), "b": Point(TWO, 17, start=7)}
    assert advance(second, target, {"b": 1}) == {"a": Point(ONE, 25), "b": Point(TWO, 18)}
    assert points_of(offsets_of(second)) == second
    assert offsets_of(second)["a"] == {"incarnation": ONE, "offset": 25}
    assert list(offsets_of(second)["b"]) == ["incarnation", "offset", "start"]


@pytest.mark.parametrize(
    ("began", "ended", "expected"),
    [
        (Point(ONE, 5), Point(ONE, 15), 5),
        (Point(ONE, 5), Point(ONE, 5), None),
        (Point(ONE, 9, start=9), Point(ONE, 15, start=5), 5),
        (Point(ONE, 15, start=15), Point(ONE, 15, start=5), 5),
        (Point(TWO, 3, start=3), Point(ONE, 15, start=5), 5),
        (None, Point(ONE, 15, start=5), 5),
        (Point(ONE, 15, start=5), Point(ONE, 15, start=5), None),
        (Point(ONE, 9, start=9), Point(ONE, 5, start=5), None),
        (None, Point(ONE, 15), None),
    ],
)
def test_a_micro_batch_begins_where_its_end_says(
    began: Point | None, ended: Point, expected: int | None
) -> None:
    before = {} if began is None else {"a": began}
    spans = [] if expected is None else [Span("a", ONE, expected, ended.offset, 100.0)]
    assert ranges(before, {"a": ended}) == spans


def ranges(
    began: dict[str, Point], ended: dict[str, Point], *, first: int = 0, trimmed: bool = False
) -> list[Span]:
    """The plan of a micro-batch of logs that keep their records from ``first`` on."""
    wanted = options(fail_on_data_loss=not trimmed)
    find = partial(PlainLog, first, 100)
    return micro_batch(offsets_of(began), offsets_of(ended), find, wanted)


def test_a_micro_batch_has_a_range_of_each_log_that_moved() -> None:
    began = {"a": Point(ONE, 5), "b": Point(ONE, 7), "c": Point(ONE, 9)}
    ended = {"a": Point(ONE, 15), "b": Point(ONE, 7), "c": Point(ONE, 10), "d": Point(ONE, 3, 3)}
    assert [(span.log, span.records) for span in ranges(began, ended)] == [("a", 10), ("c", 1)]


def test_a_micro_batch_goes_on_behind_what_is_gone_if_options_allow_that() -> None:
    began, ended = {"a": Point(ONE, 5)}, {"a": Point(ONE, 15)}
    with pytest.raises(Trimmed, match="a begins at 8"):
        ranges(began, ended, first=8)
    assert ranges(began, ended, first=8, trimmed=True) == [Span("a", ONE, 8, 15, 100.0)]


def test_a_micro_batch_lies_in_one_life() -> None:
    with pytest.raises(LogRecreated, match=f"{ONE} is {TWO} now"):
        ranges({"a": Point(ONE, 5)}, {"a": Point(TWO, 15)})


def test_a_log_that_was_made_again_is_named_with_both_ids() -> None:
    with pytest.raises(LogRecreated) as caught:
        advance({"a": Point(ONE, 5)}, {"a": LogExtent(TWO, 0, 50)}, None)
    assert ONE in str(caught.value)
    assert TWO in str(caught.value)


def test_a_log_cannot_end_before_the_checkpoint() -> None:
    with pytest.raises(OffsetOutOfRange, match="the checkpoint is at 5 of a, which ends at 4"):
        advance({"a": Point(ONE, 5)}, {"a": LogExtent(ONE, 0, 4)}, None)


@pytest.mark.parametrize(
    ("backlog", "most", "expected"),
    [
        ({"a": 5, "b": 5}, 10, {"a": 5, "b": 5}),
        ({"a": 90, "b": 10}, 10, {"a": 9, "b": 1}),
        ({"a": 90, "b": 9}, 10, {"a": 9, "b": 1}),
        ({"a": 100_000, "b": 50}, 1000, {"a": 999, "b": 1}),
        ({"a": 1, "b": 1000, "c": 1}, 3, {"a": 1, "b": 1, "c": 1}),
        ({"a": 7}, 3, {"a": 3}),
        ({}, 3, {}),
    ],
)
def test_a_limit_is_divided(backlog: dict[str, int], most: int, expected: dict[str, int]) -> None:
    for turn in range(3):
        assert shares(backlog, most, turn) == expected


def test_a_limit_that_is_too_small_for_all_is_given_to_one_after_the_other() -> None:
    backlog = {"a": 1000, "b": 1, "c": 5}
    assert shares(backlog, 1, 0) == {"a": 1, "b": 0, "c": 0}
    assert shares(backlog, 1, 1) == {"a": 0, "b": 1, "c": 0}
    assert shares(backlog, 2, 2) == {"a": 1, "b": 0, "c": 1}


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_a_log_that_is_always_longest_does_not_hold_up_the_others(most: int) -> None:
    backlog = {"hot": 100_000, "small": 5, "tiny": 1}
    taken = dict.fromkeys(backlog, 0)
    for _ in range(15):
        waiting = {log: left for log, left in backlog.items() if left}
        for log, count in shares(waiting, most, sum(taken.values())).items():
            taken[log] += count
            backlog[log] -= count
        backlog["hot"] += most
    assert taken["small"] == 5
    assert taken["tiny"] == 1
    assert sum(taken.values()) == 15 * most


def test_every_log_comes_to_its_end_under_the_smallest_limit() -> None:
    backlog = {"a": 3, "b": 50, "c": 1}
    turns = 0
    while any(backlog.values()):
        taken = shares(backlog, 2, 2 * turns)
        assert sum(taken.values()) == min(2, sum(backlog.values()))
        backlog = {log: left - taken[log] for log, left in backlog.items() if left > taken[log]}
        turns += 1
    assert turns == 27
