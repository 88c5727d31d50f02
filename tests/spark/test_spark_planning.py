"""Which offsets are read, in how many parts: the plan, from what it is told."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from quorate.errors import InvalidArgument, LogRecreated, OffsetOutOfRange, Trimmed
from quorate.spark.options import Moment, Places, ReadOptions
from quorate.spark.planning import (
    PART_BYTES,
    Point,
    Range,
    Seen,
    Span,
    advance,
    offsets_of,
    pin,
    points_of,
    shares,
    split,
)

ONE, TWO = "1" * 32, "2" * 32


@dataclass
class PlainLog:
    """A log of records of 100 bytes; one is appended each microsecond."""

    first: int = 0
    end: int = 100
    name: str = "orders"
    incarnation: str = ONE

    def look(self) -> Seen:
        return Seen(self.incarnation, self.first, self.end)

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
        ("orders",), "h:1", starting=starting, ending=ending, fail_on_data_loss=fail_on_data_loss
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


# -- parts ---------------------------------------------------------------------------------------


def cuts(ranges: list[Range]) -> list[tuple[str, int, int]]:
    return [(one.log, one.start, one.stop) for one in ranges]


def test_small_spans_are_one_part_each_and_empty_ones_none() -> None:
    spans = [Span("a", ONE, 5, 10, 10.0), Span("b", ONE, 3, 3, 0.0), Span("c", TWO, 0, 1, 9.0)]
    found = split(spans, options())
    assert found == [Range("a", ONE, 5, 10, 0), Range("c", TWO, 0, 1, 1)]
    assert split([], options()) == []


@pytest.mark.parametrize(
    ("parts", "expected"), [(0.5, 1), (1.9, 1), (2.0, 2), (8.9, 8), (31.0, 8), (35.9, 8), (36.0, 9)]
)
def test_parts_are_few_and_neither_small_nor_large(parts: float, expected: int) -> None:
    records = 100_000
    found = split([Span("a", ONE, 7, 7 + records, parts * PART_BYTES / records)], options())
    assert len(found) == expected
    assert found[0].start == 7
    assert found[-1].stop == 7 + records
    assert all(one.stop == other.start for one, other in itertools.pairwise(found))
    assert [one.turn for one in found] == list(range(expected))
    sizes = [one.stop - one.start for one in found]
    assert max(sizes) - min(sizes) <= 1


def test_options_ask_for_more_parts() -> None:
    spans = [Span("a", ONE, 0, 90, 1.0), Span("b", ONE, 0, 10, 1.0)]
    few = ReadOptions(("*",), "h:1", partitions_min=4)
    assert cuts(split(spans, few)) == [
        ("a", 0, 22),
        ("a", 22, 45),
        ("a", 45, 67),
        ("a", 67, 90),
        ("b", 0, 10),
    ]
    small = ReadOptions(("*",), "h:1", records_max=40)
    assert cuts(split(spans, small)) == [("a", 0, 30), ("a", 30, 60), ("a", 60, 90), ("b", 0, 10)]
    many = ReadOptions(("*",), "h:1", partitions_min=1000)
    assert len(split(spans, many)) == 100, "no part is empty"


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


def test_a_portion_ends_at_the_target_or_its_limit() -> None:
    began = {"a": Point(ONE, 5), "b": Point(TWO, 0)}
    target = {"a": Seen(ONE, 0, 50), "b": Seen(TWO, 0, 10)}
    assert advance(began, target, None) == {"a": Point(ONE, 50), "b": Point(TWO, 10)}
    assert advance(began, target, {"a": 7}) == {"a": Point(ONE, 12), "b": Point(TWO, 0)}
    assert advance(began, target, {"a": 99}) == {"a": Point(ONE, 50), "b": Point(TWO, 0)}


def test_a_new_log_comes_in_with_its_first_record() -> None:
    found = advance({}, {"a": Seen(ONE, 3, 50)}, None)
    assert found == {"a": Point(ONE, 3)}
    assert advance(found, {"a": Seen(ONE, 3, 50)}, None) == {"a": Point(ONE, 50)}


def test_a_log_that_was_made_again_is_named_with_both_ids() -> None:
    with pytest.raises(LogRecreated) as caught:
        advance({"a": Point(ONE, 5)}, {"a": Seen(TWO, 0, 50)}, None)
    assert ONE in str(caught.value)
    assert TWO in str(caught.value)


def test_a_log_cannot_end_before_the_checkpoint() -> None:
    with pytest.raises(OffsetOutOfRange, match="the checkpoint is at 5 of a, which ends at 4"):
        advance({"a": Point(ONE, 5)}, {"a": Seen(ONE, 0, 4)}, None)


@pytest.mark.parametrize(
    ("backlog", "most", "expected"),
    [
        ({"a": 5, "b": 5}, 10, {"a": 5, "b": 5}),
        ({"a": 90, "b": 10}, 10, {"a": 9, "b": 1}),
        ({"a": 90, "b": 9}, 10, {"a": 10, "b": 0}),
        ({"a": 1, "b": 1000}, 1, {"a": 0, "b": 1}),
        ({"a": 7}, 3, {"a": 3}),
    ],
)
def test_a_limit_is_divided(backlog: dict[str, int], most: int, expected: dict[str, int]) -> None:
    found = shares(backlog, most)
    assert found == expected
    assert sum(found.values()) <= most


def test_every_log_comes_to_its_end_under_the_smallest_limit() -> None:
    backlog = {"a": 3, "b": 50, "c": 1}
    turns = 0
    while any(backlog.values()):
        taken = shares(backlog, 2)
        assert sum(taken.values()) == min(2, sum(backlog.values()))
        backlog = {log: left - taken[log] for log, left in backlog.items()}
        turns += 1
    assert turns == 27
