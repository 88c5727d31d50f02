"""The plan of a read: which offsets it takes, and in how many ranges. No function here does I/O.

A plan is made once. It has [start, stop) of each log, in one incarnation. Every task reads its
range of exactly that, as often as Spark repeats the task.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zlib import crc32

from quorate.errors import InvalidArgument, LogRecreated, OffsetOutOfRange, Trimmed
from quorate.spark.read.options import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from quorate.spark.read.options import Place, Places, ReadOptions

    # The points of a stream as Spark keeps them.
    Offsets = Mapping[str, Mapping[str, str | int]]

__all__ = [
    "LogExtent",
    "PlannedLog",
    "Point",
    "Span",
    "TaskRange",
    "advance",
    "micro_batch",
    "offsets_of",
    "pin",
    "points_of",
    "recreated",
    "shares",
    "split",
    "starting_point",
]

# A read is cut into RANGES ranges, unless each would have fewer than RANGE_BYTES or more than
# RANGE_BYTES_MAX bytes: enough for some cores, so large that the start of a task matters little,
# and little enough to lose when a task fails. Options may ask for more ranges.
RANGES = 8
RANGE_BYTES = 32 << 20
RANGE_BYTES_MAX = 128 << 20


class LogExtent(NamedTuple):
    """The incarnation and the ends of a log at one moment."""

    incarnation: str
    # The first offset that is kept, and the one after the last record.
    first: int
    end: int


class PlannedLog(Protocol):
    """A log, as a plan needs it."""

    @property
    def name(self) -> str: ...

    def extent(self) -> LogExtent:
        """The ends of the log now. All records acknowledged before lie in front of the end."""

    def offset_at(self, timestamp_us: int) -> int: ...

    def record_bytes(self, start: int, stop: int) -> float:
        """The mean bytes of a record between these offsets, about."""


class FollowedLog(PlannedLog, Protocol):
    """A log of a cluster, as the plan of a stream needs it."""

    def first_offset(self, incarnation: str) -> int:
        """The first offset that the log keeps. Raises LogRecreated for another incarnation."""


class Point(NamedTuple):
    """A place between two records of a log, in one incarnation."""

    incarnation: str
    offset: int
    # The offset where the stream began with the log; None after the second move of the point.
    start: int | None = None

    def moved(self, offset: int) -> Point:
        """The point moved to ``offset``.

        Spark keeps the end of a micro-batch, and not the start of the first micro-batch: so the end
        of the first micro-batch includes its start. A point that does not move stays equal, or
        Spark would take it for new data.
        """
        if offset == self.offset:
            return self
        return Point(self.incarnation, offset, self.start if self.start == self.offset else None)


class Span(NamedTuple):
    """The range of one log that is read."""

    log: str
    incarnation: str
    start: int
    stop: int
    record_bytes: float

    @property
    def records(self) -> int:
        return self.stop - self.start


class TaskRange(NamedTuple):
    """The range that one task reads. It travels to the worker."""

    log: str
    incarnation: str
    start: int
    stop: int
    # Rises by one from task to task, and differs in the next plan: so tasks begin with different
    # replicas.
    turn: int


# -- the ends of a batch -----------------------------------------------------------------------


def pin(log: PlannedLog, options: ReadOptions) -> Span:
    """The range of ``log`` that a batch reads, fixed from now on."""
    seen = log.extent()
    starting = "earliest" if options.starting is None else options.starting
    ending = "latest" if options.ending is None else options.ending
    start = starting_point(log, seen, starting, options, default="earliest")
    stop = _offset(log, seen, _of(ending, log.name, "latest"))
    if stop > seen.end:
        raise OffsetOutOfRange(f"endingOffsets {stop}: {log.name} ends at {seen.end}")
    asked = _of(starting, log.name, "earliest")
    if isinstance(asked, int) and stop < asked:
        raise InvalidArgument(f"{log.name}: it would begin at {asked} and end before, at {stop}")
    stop = max(start, stop)
    size = log.record_bytes(start, stop) if stop > start else 0.0
    return Span(log.name, seen.incarnation, start, stop, size)


def starting_point(
    log: PlannedLog, seen: LogExtent, starting: Places, options: ReadOptions, *, default: Place
) -> int:
    """The offset at which a read of ``log`` begins."""
    start = _offset(log, seen, _of(starting, log.name, default))
    if start > seen.end:
        raise OffsetOutOfRange(f"startingOffsets {start}: {log.name} ends at {seen.end}")
    return first_kept(log.name, start, seen.first, options)


def first_kept(name: str, start: int, first: int, options: ReadOptions) -> int:
    """The offset ``start``, or ``first`` if the log no longer has ``start`` and options allow that.

    Raises Trimmed if they do not.
    """
    if start >= first:
        return start
    if options.fail_on_data_loss:
        raise Trimmed(
            f"{name} begins at {first}: the records from {start} on are gone; "
            f"failOnDataLoss=false goes on without them"
        )
    return first


def _of(places: Places, name: str, default: Place) -> Place:
    return places.get(name, default) if isinstance(places, dict) else places


def _offset(log: PlannedLog, seen: LogExtent, place: Place) -> int:
    if isinstance(place, Moment):
        # The end may have moved since: a plan keeps to the ends that it saw.
        return min(max(log.offset_at(place.us), seen.first), seen.end)
    if place == "earliest":
        return seen.first
    return seen.end if place == "latest" else place


# -- ranges ------------------------------------------------------------------------------------


def split(spans: Sequence[Span], options: ReadOptions) -> list[TaskRange]:
    """The spans, cut into ranges of about the same size, in the order of the logs and offsets."""
    total = sum(span.records for span in spans)
    size = sum(span.records * span.record_bytes for span in spans)
    range_bytes = min(max(size / RANGES, RANGE_BYTES), RANGE_BYTES_MAX)
    turn = _first_turn(spans)
    ranges: list[TaskRange] = []
    for span in spans:
        if not span.records:
            continue
        count = max(
            1,
            int(span.records * span.record_bytes / range_bytes),
            -(-options.partitions_min * span.records // total),
            -(-span.records // (options.records_max or span.records)),
        )
        count = min(count, span.records)
        cuts = [span.start + span.records * number // count for number in range(count + 1)]
        for start, stop in pairwise(cuts):
            ranges.append(TaskRange(span.log, span.incarnation, start, stop, turn + len(ranges)))
    return ranges


def _first_turn(spans: Sequence[Span]) -> int:
    """The turn of the first range of a plan.

    Most micro-batches of a stream are one range. They must not all begin with the same replica, nor
    must micro-batches whose size is a multiple of the number of replicas.
    """
    return crc32(repr([(span.log, span.start, span.stop) for span in spans]).encode())


# -- the offsets of a stream -------------------------------------------------------------------


def offsets_of(points: Mapping[str, Point]) -> dict[str, dict[str, str | int]]:
    """The points as Spark keeps them. Spark compares their text, so their order is always one."""
    return {
        log: {name: value for name, value in points[log]._asdict().items() if value is not None}
        for log in sorted(points)
    }


def points_of(offsets: Offsets) -> dict[str, Point]:
    """The points that :func:`offsets_of` encoded. Raises InvalidArgument for other offsets."""
    try:
        return {
            log: Point(
                str(point["incarnation"]),
                int(point["offset"]),
                int(point["start"]) if "start" in point else None,
            )
            for log, point in offsets.items()
        }
    except (KeyError, TypeError, ValueError):
        raise InvalidArgument(
            f"the checkpoint has offsets that no quorate stream wrote: {offsets!r}"
        ) from None


def recreated(log: str, before: str, now: str) -> LogRecreated:
    return LogRecreated(
        f"{log} was deleted and made again: {before} is {now} now; "
        f"to read the new one, begin with a new checkpoint"
    )


def advance(
    began: Mapping[str, Point], target: Mapping[str, LogExtent], most: Mapping[str, int] | None
) -> dict[str, Point]:
    """The end of the next micro-batch: at ``target``, or after ``most`` records of each log.

    A log that was not there before comes in with its first offset, and is read from the next
    micro-batch on: so the two ends of a micro-batch alone determine what it reads.
    """
    points = {}
    for log, seen in target.items():
        point = began.get(log)
        if point is None:
            points[log] = Point(seen.incarnation, seen.first, seen.first)
            continue
        if point.incarnation != seen.incarnation:
            raise recreated(log, point.incarnation, seen.incarnation)
        if point.offset > seen.end:
            raise OffsetOutOfRange(
                f"the checkpoint is at {point.offset} of {log}, which ends at "
                f"{seen.end}: it was made with another cluster"
            )
        taken = seen.end - point.offset if most is None else most.get(log, 0)
        points[log] = point.moved(min(seen.end, point.offset + taken))
    return points


def _micro_batch_start(log: str, began: Point | None, ended: Point) -> int | None:
    """The start of the micro-batch that ends at ``ended``; None if it has no records of the log.

    ``began`` is the start that Spark has for the micro-batch. For a first micro-batch that is
    repeated it is the offset at which a stream would begin now.
    """
    if began == ended or ended.start == ended.offset:
        return None
    if ended.start is not None:
        return ended.start
    if began is None:
        return None
    if began.incarnation != ended.incarnation:
        raise recreated(log, began.incarnation, ended.incarnation)
    return began.offset


def micro_batch(
    start: Offsets, end: Offsets, find: Callable[[str], FollowedLog], options: ReadOptions
) -> list[Span]:
    """The range of each log in the micro-batch between two offsets that Spark kept."""
    began = points_of(start)
    spans = []
    for name, ended in points_of(end).items():
        offset = _micro_batch_start(name, began.get(name), ended)
        if offset is None:
            continue
        log = find(name)
        kept = first_kept(name, offset, log.first_offset(ended.incarnation), options)
        begin = min(kept, ended.offset)
        size = log.record_bytes(begin, ended.offset)
        spans.append(Span(name, ended.incarnation, begin, ended.offset, size))
    return spans


def shares(backlog: Mapping[str, int], most: int, turn: int) -> dict[str, int]:
    """The number of records of each log, ``most`` in all: one of each log, and the others in
    proportion to the records that it has waiting.

    If there are more logs than ``most`` they take turns: ``turn`` rises by ``most`` from one
    micro-batch to the next.
    """
    if sum(backlog.values()) <= most:
        return dict(backlog)
    if most < len(backlog):
        names = sorted(backlog)
        chosen = {names[(turn + number) % len(names)] for number in range(most)}
        return {log: int(log in chosen) for log in names}
    taken: dict[str, int] = {}
    left = free = most - len(backlog)
    others = sum(backlog.values()) - len(backlog)
    # The logs with most records come first: they have room for shares that are rounded up.
    for log, waiting in sorted(backlog.items(), key=lambda item: -item[1]):
        share = min(left, -(-free * (waiting - 1) // others))
        taken[log] = 1 + share
        left -= share
    return taken
