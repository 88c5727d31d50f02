"""The log against a plain list, its changes replayed on a second one, and its window over an
store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ, chain, end
from quorate.entry import Entry, make_entry
from quorate.errors import InvariantBroken
from quorate.raft.log import LogStart, RaftLog
from quorate.types import ORIGIN, EntryKind, Index, Position, Term

# An operation: append so many entries of a term so much higher, or truncate at a fraction of the
# log, or take the change.
APPEND = st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 2))
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0))
TAKE = st.tuples(st.just("take"), st.just(0), st.just(0))
# Or take the change and forget: a fraction of the log is committed, and so many bytes may stay.
FORGET = st.tuples(st.just("forget"), st.integers(0, 100), st.integers(0, 5))
OPERATIONS = st.lists(st.one_of(APPEND, APPEND, TRUNCATE, TAKE, FORGET), min_size=15, max_size=40)


class Shelf:
    """A store: what was forgotten, and nothing else may be asked for."""

    def __init__(self) -> None:
        self.entries_: list[Entry] = []
        # Indexes whose bodies are spoiled.
        self.spoiled: set[int] = set()

    def position(self, index: Index) -> Position:
        assert 1 <= index <= len(self.entries_)
        return self.entries_[index - 1].position

    def entries(self, start: Index, stop: Index, bytes_max: int) -> list[Entry]:
        assert 1 <= start < stop <= len(self.entries_) + 1
        found: list[Entry] = []
        for entry in self.entries_[start - 1 : stop - 1]:
            if found and sum(one.size for one in found) + entry.size > bytes_max:
                break
            found.append(replace(entry, body=b"") if entry.index in self.spoiled else entry)
        return found


class Model:
    """A log beside the plain list that it should be, and the disk that its changes make."""

    def __init__(self, start: tuple[Entry, ...]) -> None:
        self.shelf = Shelf()
        self.log = RaftLog(start, LogStart(stored=self.shelf))
        self.plain = list(start)
        self.disk = list(start)
        self.stamp = 0
        # What was said to be committed: nothing up to there is truncated.
        self.committed = 0

    def run(self, name: str, amount: int, rise: int) -> None:
        if name == "append":
            self.append(amount, rise)
        elif name == "truncate" and len(self.plain) > self.committed:
            rest = len(self.plain) - self.committed
            first = self.committed + 1 + amount * (rest - 1) // 100
            self.log.truncate(Index(first))
            del self.plain[first - 1 :]
        elif name == "take":
            self.take()
        elif name == "forget":
            self.forget(amount, rise)

    def forget(self, amount: int, entries: int) -> None:
        self.take()
        self.committed = max(self.committed, amount * len(self.plain) // 100)
        bytes_max = entries * 64
        self.shelf.entries_ = self.plain[: self.committed]
        before = self.log.first_in_memory
        self.log.forget(Index(self.committed), bytes_max)
        del self.shelf.entries_[self.log.first_in_memory - 1 :]
        window = self.plain[self.log.first_in_memory - 1 :]
        assert before <= self.log.first_in_memory <= max(before, self.committed + 1)
        fits = sum(entry.size for entry in window) <= bytes_max
        assert fits or self.log.first_in_memory == max(before, self.committed + 1)

    def append(self, amount: int, rise: int) -> None:
        self.stamp += 1  # so that what takes a place is not what was there
        term = (self.plain[-1].term if self.plain else 1) + rise
        added = chain(*[term] * amount, after=end(self.plain), stamp=self.stamp)
        self.log.append(added)
        self.plain.extend(added)

    def take(self) -> None:
        change = self.log.take_change()
        if change is None:
            assert self.disk == self.plain
            return
        if change.truncate_from is not None:
            del self.disk[change.truncate_from - 1 :]
        if change.entries:
            assert change.entries[0].index == len(self.disk) + 1
        self.disk.extend(change.entries)
        assert self.disk == self.plain

    def check(self) -> None:
        log, plain = self.log, self.plain
        assert log.last_index == len(plain)
        assert log.last == end(plain)
        window = plain[log.first_in_memory - 1 :]
        assert log.window_bytes == sum(entry.size for entry in window)
        assert log.entries(Index(1), Index(len(plain) + 1)) == plain
        for index in range(len(plain) + 1):
            self.check_at(Index(index))
        assert not log.holds(Position(Index(len(plain) + 1), Term(1), 0))
        for term in range(8):
            upto = [entry.index for entry in plain if entry.term <= term]
            last = max(upto, default=0)
            found = last if last >= log.first_in_memory - 1 else None
            assert log.last_index_up_to_term(Term(term)) == found

    def check_at(self, index: Index) -> None:
        log, plain = self.log, self.plain
        position = end(plain[:index])
        assert log.position(index) == position
        assert log.term_at(index) == position.term
        assert log.holds(position)
        assert not log.holds(position._replace(chain=position.chain ^ 1))
        first = log.first_in_memory
        if index >= first - 1:
            assert log.bytes_after(index) == sum(entry.size for entry in plain[index:])
        if index >= first:
            same = [entry.index for entry in plain[first - 1 :] if entry.term == position.term]
            assert log.first_index_of_term_at(index) == same[0]
        if index:
            taken = log.slice(index, 3, 150)
            assert 1 <= len(taken) <= 3
            assert list(taken) == plain[index - 1 : index - 1 + len(taken)]


@FUZZ
@given(start=st.integers(0, 3), operations=OPERATIONS)
def test_a_log_is_a_list_and_its_changes_make_the_same_list(
    start: int, operations: list[tuple[str, int, int]]
) -> None:
    model = Model(chain(*[1] * start))
    for operation in operations:
        model.run(*operation)
        model.check()
    model.take()
    assert model.log.take_change() is None


@FUZZ
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    start=st.integers(1, 12),
    entries_max=st.integers(1, 5),
    bytes_max=st.integers(1, 300),
)
def test_a_slice_takes_what_fits_and_at_least_one(
    sizes: list[int], start: int, entries_max: int, bytes_max: int
) -> None:
    entries: list[Entry] = []
    for size in sizes:
        entries.append(make_entry(end(entries), Term(1), EntryKind.DATA, bytes(size)))
    start = min(start, len(entries))
    taken = RaftLog(entries).slice(Index(start), entries_max, bytes_max)
    assert list(taken) == entries[start - 1 : start - 1 + len(taken)]
    assert 1 <= len(taken) <= entries_max
    assert len(taken) == 1 or sum(entry.size for entry in taken) <= bytes_max
    rest = entries[start - 1 + len(taken) :]
    if rest and len(taken) < entries_max:
        assert sum(entry.size for entry in taken) + rest[0].size > bytes_max


def test_an_empty_log_ends_at_the_origin() -> None:
    log = RaftLog()
    assert (log.last, log.last_index, log.next_offset, log.last_append_time) == (ORIGIN, 0, 0, 0)
    assert log.holds(ORIGIN)
    assert log.take_change() is None


def test_offsets_and_append_times_go_on_from_the_last_entry() -> None:
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, base_offset=10, count=3, append_time=1234)
    log = RaftLog([entry])
    assert (log.next_offset, log.last_append_time) == (13, 1234)


def test_what_a_log_starts_with_is_no_change() -> None:
    assert RaftLog(chain(1, 1)).take_change() is None


def test_a_log_has_no_gaps_and_no_falling_terms() -> None:
    log = RaftLog(chain(1, 2))
    with pytest.raises(InvariantBroken, match="no gaps"):
        log.append(chain(1, 2, 2, 2)[3:])
    with pytest.raises(InvariantBroken, match="terms never decrease"):
        log.append(chain(1, after=log.last))


@pytest.mark.parametrize("first", [-1, 0, 3])
def test_a_truncation_outside_the_log_is_a_mistake(first: int) -> None:
    with pytest.raises(InvariantBroken, match="drops something"):
        RaftLog(chain(1, 1)).truncate(Index(first))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_position_outside_the_log_is_a_mistake(index: int) -> None:
    with pytest.raises(InvariantBroken, match="only within the log"):
        RaftLog(chain(1, 1)).position(Index(index))


# -- the window --------------------------------------------------------------------------------


def shelved(*terms: int, forgotten: int) -> tuple[RaftLog, Shelf]:
    """A log of these terms with so many entries no longer in memory."""
    shelf = Shelf()
    entries = chain(*terms)
    log = RaftLog(entries, LogStart(stored=shelf))
    shelf.entries_ = list(entries[:forgotten])
    log.forget(Index(forgotten), 0)
    assert log.first_in_memory == forgotten + 1
    return log, shelf


def test_a_log_may_begin_with_what_is_above_the_commit() -> None:
    """As a replica starts: everything before is in the store."""
    entries = chain(1, 1, 2, 2, 3)
    shelf = Shelf()
    shelf.entries_ = list(entries[:3])
    start = LogStart(entries[2].position, 7, 1234, shelf)
    log = RaftLog(entries[3:], start)
    assert (log.first_in_memory, log.last_index) == (4, 5)
    assert log.entries(Index(1), Index(6)) == list(entries)
    assert log.take_change() is None
    bare = RaftLog((), start)
    assert (bare.last, bare.next_offset, bare.last_append_time) == (entries[2].position, 7, 1234)
    assert bare.position(Index(3)) == entries[2].position
    bare.append(entries[3:])
    assert bare.last == log.last


def test_offsets_go_on_when_all_was_forgotten() -> None:
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, base_offset=10, count=3, append_time=1234)
    shelf = Shelf()
    log = RaftLog([entry], LogStart(stored=shelf))
    shelf.entries_ = [entry]
    log.forget(Index(1), 0)
    assert (log.next_offset, log.last_append_time, log.last) == (13, 1234, entry.position)
    log.append(chain(1, after=entry.position))
    assert log.last_index == 2


def test_the_window_is_left_alone_while_it_fits() -> None:
    log = RaftLog(chain(1, 1, 1), LogStart(stored=Shelf()))
    log.forget(Index(3), 3 * 64)
    assert log.first_in_memory == 1
    log.forget(Index(3), 3 * 64 - 1)
    assert log.first_in_memory == 2


def test_only_what_is_stored_is_forgotten() -> None:
    with pytest.raises(InvariantBroken, match="only what a store has"):
        RaftLog(chain(1)).forget(Index(1), 0)


def test_what_was_forgotten_is_not_truncated() -> None:
    log, _ = shelved(1, 1, 1, forgotten=2)
    with pytest.raises(InvariantBroken, match="drops something in memory"):
        log.truncate(Index(2))
    log.truncate(Index(3))
    assert log.last_index == 2


def test_an_entry_without_its_body_ends_a_slice_and_none_begins_with_it() -> None:
    log, shelf = shelved(1, 1, 1, 1, 1, forgotten=4)
    bodies: list[Entry] = []
    for index in range(1, 5):
        before = bodies[-1].position if bodies else ORIGIN
        bodies.append(make_entry(before, Term(1), EntryKind.DATA, b"x" * index))
    shelf.entries_ = bodies
    shelf.spoiled = {3}
    assert [entry.index for entry in log.slice(Index(1), 10, 1000)] == [1, 2]
    assert log.slice(Index(3), 10, 1000) == ()
    assert [entry.index for entry in log.slice(Index(4), 10, 1000)] == [4]
    assert [entry.index for entry in log.slice(Index(5), 10, 1000)] == [5]


def test_what_is_stored_is_read_a_piece_at_a_time() -> None:
    log, shelf = shelved(*[1] * 20, forgotten=18)
    asked = []
    entries = shelf.entries

    def small(start: Index, stop: Index, bytes_max: int) -> list[Entry]:
        asked.append(start)
        return entries(start, stop, min(bytes_max, 5 * 64))

    shelf.entries = small  # type: ignore[method-assign]  # a store that gives little at a time
    assert [entry.index for entry in log.walk(Index(2), Index(20))] == list(range(2, 20))
    assert asked == [2, 7, 12, 17]
