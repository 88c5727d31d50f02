"""Rules for every log, whatever medium stores it: any implementation can be held to them.

Each rule takes a new place for a log and raises AssertionError if the log there breaks it::

    for rule in RULES:
        rule(make_place())

A log in segments should get small ones, of some ten pages: the rules write enough to fill several.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Protocol

from quorate.entry import Entry, make_entry
from quorate.errors import InvariantBroken
from quorate.storage.flusher import Flush
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Position, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from quorate.storage.damage import Damage
    from quorate.storage.vfs import Buffer
    from quorate.types import VoteRecord

    Rule = Callable[["LogPlace"], None]

__all__ = ["RULES", "LogPlace", "LogUnderTest", "WriterUnderTest"]

PLENTY = 1 << 30
SIZES = (0, 1, 100, 4_000, 5_000, 12_000)


class LogUnderTest(Protocol):
    """The reading side of a log."""

    damage: list[Damage]

    @property
    def record(self) -> VoteRecord: ...

    @property
    def first(self) -> Index: ...

    @property
    def last(self) -> Position: ...

    def position(self, index: Index) -> Position: ...

    def frames(self, start: Index, stop: Index, bytes_max: int) -> Sequence[Buffer]: ...

    def entries(self, start: Index, stop: Index) -> Iterator[Entry]: ...

    def index_at_offset(self, offset: int) -> Index: ...


class WriterUnderTest(Protocol):
    """The writing side of a log: each method returns a plan, and takes effect when the plan has
    ended."""

    def plan(self, flush: Flush) -> Iterator[str]: ...

    def chores(self, committed: Index) -> Iterator[str]: ...

    def prove(self, committed: Index) -> Iterator[str]: ...

    def trim(self, first: Index) -> Iterator[str]: ...

    def close(self, committed: Index) -> Iterator[str]: ...


class LogPlace(Protocol):
    """A place in which a log outlives the processes that open it."""

    def open(self) -> tuple[LogUnderTest, WriterUnderTest]:
        """Open the log for the next boot. A process that had it open has ended without closing
        it."""


# -- tools -------------------------------------------------------------------------------------


def _run(plan: Iterator[str]) -> None:
    for _ in plan:
        pass


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _demand_refusal(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except InvariantBroken:
        return
    raise AssertionError(f"not refused: {what}")


def _grow(before: Sequence[Entry], amount: int, term: int = 1) -> tuple[Entry, ...]:
    """Make entries of all sizes that follow ``before``; every third is a noop, which has no
    record."""
    position = before[-1].position if before else ORIGIN
    offset = before[-1].base_offset + before[-1].count if before else 0
    time = before[-1].append_time if before else 0
    entries = []
    for _ in range(amount):
        random = Random(f"{position} {term}")
        count = random.randrange(1, 9) if position.index % 3 else 0
        kind = EntryKind.DATA if count else EntryKind.NOOP
        body = random.randbytes(random.choice(SIZES)) if count else b""
        time += random.randrange(3)
        entry = make_entry(
            position, Term(term), kind, body, base_offset=offset, count=count, append_time=time
        )
        entries.append(entry)
        position, offset = entry.position, offset + count
    return tuple(entries)


def _write(writer: WriterUnderTest, entries: Sequence[Entry], each: int = 3) -> None:
    """Append ``entries``, a few in each flush."""
    for start in range(0, len(entries), each):
        _run(writer.plan(Flush(start + 1, entries=tuple(entries[start : start + each]))))


def _check(log: LogUnderTest, entries: Sequence[Entry], first: Index | None = None) -> None:
    """Check, with every method that reads, that ``log`` holds ``entries``, trimmed below
    ``first``."""
    first = first if first is not None else Index(1)
    last = Index(len(entries))
    _demand(not log.damage, f"damage in a sound log: {log.damage}")
    _demand(log.first == first, f"the first entry is {log.first}, not {first}")
    _demand(log.last == _position(entries, last), f"the log ends at {log.last}, not at {last}")
    for index in range(first - 1, last + 1):
        expected = _position(entries, Index(index))
        _demand(log.position(Index(index)) == expected, f"another position at {index}")
    if first <= last:
        found = list(log.entries(first, Index(last + 1)))
        _demand(found == list(entries[first - 1 :]), "other entries than were appended")
        _demand(_frames(log, first, last, 10_000) == [_frame(one) for one in found], "other bytes")
    for entry in entries[first - 1 :]:
        for offset in range(entry.base_offset, entry.base_offset + entry.count):
            index = log.index_at_offset(offset)
            _demand(index == entry.index, f"offset {offset} is in {entry.index}, not in {index}")


def _position(entries: Sequence[Entry], index: Index) -> Position:
    return entries[index - 1].position if index else ORIGIN


def _frame(entry: Entry) -> bytes:
    return entry.header + entry.body


def _frames(log: LogUnderTest, first: Index, last: Index, bytes_max: int) -> list[bytes]:
    """All frames from ``first`` to ``last``, taken in pieces."""
    found: list[bytes] = []
    while first + len(found) <= last:
        found += map(bytes, log.frames(Index(first + len(found)), Index(last + 1), bytes_max))
    return found


def _check_for_good(
    place: LogPlace, opened: tuple[LogUnderTest, WriterUnderTest], entries: Sequence[Entry]
) -> None:
    """Check that ``entries`` are there now, after a kill, and after a clean close."""
    log, _ = opened
    first = log.first
    _check(log, entries, first)
    log, writer = place.open()
    _check(log, entries, first)
    _run(writer.close(Index(0)))
    log, _ = place.open()
    _check(log, entries, first)


# -- reading and appending ---------------------------------------------------------------------


def a_new_log_is_empty(place: LogPlace) -> None:
    log, _ = place.open()
    _check(log, ())
    record = log.record
    _demand((record.term, record.vote, record.boot) == (0, None, 1), f"a record: {record}")


def what_is_appended_is_found_for_good(place: LogPlace) -> None:
    opened = place.open()
    entries = _grow((), 40)
    _write(opened[1], entries)
    _check_for_good(place, opened, entries)


def appending_goes_on_after_every_opening(place: LogPlace) -> None:
    entries: tuple[Entry, ...] = ()
    for number in range(6):
        log, writer = place.open()
        _check(log, entries)
        more = _grow(entries, 5)
        _write(writer, more, each=1 + number)
        entries += more
        if number % 2:
            _run(writer.close(Index(0)))
    log, _ = place.open()
    _check(log, entries)


def an_entry_of_any_size_finds_a_place(place: LogPlace) -> None:
    opened = place.open()
    small = _grow((), 1)
    large = make_entry(small[-1].position, Term(1), EntryKind.DATA, bytes(300_000))
    after = make_entry(large.position, Term(1), EntryKind.NOOP)
    _write(opened[1], (*small, large, after), each=1)
    _check_for_good(place, opened, (*small, large, after))


def every_range_can_be_read(place: LogPlace) -> None:
    log, writer = place.open()
    entries = _grow((), 25)
    _write(writer, entries)
    for start in range(1, 26):
        for stop in range(start + 1, 27):
            found = list(log.entries(Index(start), Index(stop)))
            _demand(found == list(entries[start - 1 : stop - 1]), f"other entries {start}..{stop}")


def a_read_keeps_to_its_bytes_but_gives_one_entry_at_least(place: LogPlace) -> None:
    log, writer = place.open()
    entries = _grow((), 40)
    _write(writer, entries)
    for bytes_max in (1, 64, 200, 5_000, 9_000, 15_000, PLENTY):
        for start in range(1, 41):
            found = log.frames(Index(start), Index(41), bytes_max)
            expected = [_frame(entry) for entry in entries[start - 1 : start - 1 + len(found)]]
            _demand(bool(found) and found == expected, f"other frames from {start}")
            size = sum(map(len, found))
            fits = size <= bytes_max or len(found) == 1
            _demand(fits, f"{size} bytes from {start} on where {bytes_max} were asked for")


def what_is_not_there_is_not_read(place: LogPlace) -> None:
    log, writer = place.open()
    _demand_refusal(lambda: log.frames(Index(1), Index(2), PLENTY), "reading an empty log")
    _write(writer, _grow((), 5))
    for start, stop in ((0, 3), (1, 7), (6, 7), (3, 3), (4, 2)):
        _demand_refusal(
            lambda start=start, stop=stop: log.frames(Index(start), Index(stop), PLENTY),  # type: ignore[misc]  # bound at once
            f"reading {start}..{stop} of 1..6",
        )


def a_log_has_no_gaps(place: LogPlace) -> None:
    opened = place.open()
    entries = _grow((), 9)
    _write(opened[1], entries[:5])
    for wrong in (entries[6:], entries[4:]):
        flush = Flush(1, entries=wrong)
        _demand_refusal(lambda flush=flush: _run(opened[1].plan(flush)), "a gap")  # type: ignore[misc]  # bound at once
    _check_for_good(place, opened, entries[:5])


def a_flush_of_nothing_changes_nothing(place: LogPlace) -> None:
    opened = place.open()
    entries = _grow((), 3)
    _write(opened[1], entries)
    record = opened[0].record
    _demand(list(opened[1].plan(Flush(1))) == [], "the plan of an empty flush has steps")
    _demand(opened[0].record == record, "a record for an empty flush")
    _check_for_good(place, opened, entries)


# -- cutting -----------------------------------------------------------------------------------


def a_truncation_takes_the_end_and_another_log_follows(place: LogPlace) -> None:
    entries: tuple[Entry, ...] = ()
    for term, first in enumerate((1, 20, 20, 7, 22, 2, 1), start=1):
        opened = place.open()
        if entries:
            more = _grow(entries[: first - 1], 15, term)
            flush = Flush(1, truncate_from=Index(first), entries=more[:2])
            _run(opened[1].plan(flush))
            _write(opened[1], more[2:])
        else:
            more = _grow((), 30, term)
            _write(opened[1], more)
        entries = entries[: first - 1] + more
        _check_for_good(place, opened, entries)


def a_truncation_alone_is_for_good(place: LogPlace) -> None:
    entries = _grow((), 20)
    opened = place.open()
    _write(opened[1], entries)
    for first in (20, 19, 8, 7, 1):
        _run(opened[1].plan(Flush(1, truncate_from=Index(first))))
        entries = entries[: first - 1]
        _check_for_good(place, opened, entries)
        opened = place.open()


def a_trim_takes_no_more_than_it_is_told(place: LogPlace) -> None:
    """A trim does not wait for chores: segments that they have not sealed stay for a later trim."""
    log, writer = place.open()
    entries = _grow((), 40)
    _write(writer, entries)
    for first in (1, 20, 5, 33, 3, 33, 33):
        before = log.first
        _run(writer.trim(Index(first)))
        _demand(before <= log.first <= max(first, before), f"{log.first} after a trim to {first}")
        _check_for_good(place, (log, writer), entries)
        log, writer = place.open()
        _run(writer.chores(Index(40)))
    _demand(log.first > 1, "no entry was trimmed")
    _write(writer, _grow(entries, 10))
    _check_for_good(place, (log, writer), entries + _grow(entries, 10))


# -- votes, chores -----------------------------------------------------------------------------


def a_vote_is_kept_with_the_log(place: LogPlace) -> None:
    entries: tuple[Entry, ...] = ()
    for term, vote in ((3, "n1"), (3, "n2"), (4, None), (9, "n" * 64)):
        log, writer = place.open()
        number = log.record.number
        more = _grow(entries, 2, term)
        name = NodeId(vote) if vote is not None else None
        _run(writer.plan(Flush(1, vote=(Term(term), name), entries=more)))
        entries += more
        _demand(log.record.number > number, "a new record without a new number")
        for opened in ((log, writer), place.open(), place.open()):
            record = opened[0].record
            _demand((record.term, record.vote) == (term, vote), f"another vote: {record}")
        _check(opened[0], entries)


def a_boot_has_a_number_of_its_own(place: LogPlace) -> None:
    boots = []
    entries: tuple[Entry, ...] = ()
    for number in range(6):
        log, writer = place.open()
        boots.append(log.record.boot)
        _write(writer, _grow(entries, 1))
        entries += _grow(entries, 1)
        if number % 2:
            _run(writer.close(Index(0)))
    _demand(boots == sorted(set(boots)), f"boots {boots}")


def the_term_is_at_least_that_of_the_last_entry(place: LogPlace) -> None:
    _, writer = place.open()
    _run(writer.plan(Flush(1, vote=(Term(2), NodeId("n1")))))
    _write(writer, _grow((), 2, term=7))
    log, writer = place.open()
    _demand((log.record.term, log.record.vote) == (7, None), f"another vote: {log.record}")


def being_sure_is_noted(place: LogPlace) -> None:
    log, writer = place.open()
    _run(writer.plan(Flush(1, entries=_grow((), 2), sure=True)))
    _demand(not log.record.unsure, "unsure")
    log, _ = place.open()
    _demand(not log.record.unsure, "unsure")


def chores_and_proofs_change_nothing_that_is_read(place: LogPlace) -> None:
    log, writer = place.open()
    entries = _grow((), 40)
    _write(writer, entries)
    for committed in range(0, 41, 4):
        _run(writer.chores(Index(committed)))
        _run(writer.prove(Index(committed)))
        _check(log, entries)
    _check_for_good(place, (log, writer), entries)


RULES: tuple[Rule, ...] = (
    a_new_log_is_empty,
    what_is_appended_is_found_for_good,
    appending_goes_on_after_every_opening,
    an_entry_of_any_size_finds_a_place,
    every_range_can_be_read,
    a_read_keeps_to_its_bytes_but_gives_one_entry_at_least,
    what_is_not_there_is_not_read,
    a_log_has_no_gaps,
    a_flush_of_nothing_changes_nothing,
    a_truncation_takes_the_end_and_another_log_follows,
    a_truncation_alone_is_for_good,
    a_trim_takes_no_more_than_it_is_told,
    a_vote_is_kept_with_the_log,
    a_boot_has_a_number_of_its_own,
    the_term_is_at_least_that_of_the_last_entry,
    being_sure_is_noted,
    chores_and_proofs_change_nothing_that_is_read,
)
