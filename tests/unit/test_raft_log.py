"""The log in memory against a plain list, and its changes replayed on a second one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ, chain, end
from quorate.entry import Entry, make_entry
from quorate.errors import InvariantBroken
from quorate.raft.log import Log
from quorate.types import ORIGIN, EntryKind, Index, Position, Term

# An operation: append so many entries of a term so much higher, or truncate at a fraction of the
# log, or take the change.
APPEND = st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 2))
TRUNCATE = st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0))
TAKE = st.tuples(st.just("take"), st.just(0), st.just(0))
OPERATIONS = st.lists(st.one_of(APPEND, APPEND, TRUNCATE, TAKE), min_size=15, max_size=40)


class Model:
    """A log beside the plain list that it should be, and the disk that its changes make."""

    def __init__(self, start: tuple[Entry, ...]) -> None:
        self.log = Log(start)
        self.plain = list(start)
        self.disk = list(start)
        self.stamp = 0

    def run(self, name: str, amount: int, rise: int) -> None:
        if name == "append":
            self.append(amount, rise)
        elif name == "truncate" and self.plain:
            first = 1 + amount * (len(self.plain) - 1) // 100
            self.log.truncate(Index(first))
            del self.plain[first - 1 :]
        elif name == "take":
            self.take()

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
        assert log.entries(Index(1), Index(len(plain) + 1)) == plain
        for index in range(len(plain) + 1):
            self.check_at(Index(index))
        assert not log.holds(Position(Index(len(plain) + 1), Term(1), 0))
        for term in range(8):
            upto = [entry.index for entry in plain if entry.term <= term]
            assert log.last_index_up_to_term(Term(term)) == max(upto, default=0)

    def check_at(self, index: Index) -> None:
        log, plain = self.log, self.plain
        position = end(plain[:index])
        assert log.position(index) == position
        assert log.term_at(index) == position.term
        assert log.holds(position)
        assert not log.holds(position._replace(chain=position.chain ^ 1))
        assert log.bytes_after(index) == sum(entry.size for entry in plain[index:])
        if index:
            same = [entry.index for entry in plain if entry.term == position.term]
            assert log.first_index_of_term_at(index) == same[0]


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
    taken = Log(entries).slice(Index(start), entries_max, bytes_max)
    assert list(taken) == entries[start - 1 : start - 1 + len(taken)]
    assert 1 <= len(taken) <= entries_max
    assert len(taken) == 1 or sum(entry.size for entry in taken) <= bytes_max
    rest = entries[start - 1 + len(taken) :]
    if rest and len(taken) < entries_max:
        assert sum(entry.size for entry in taken) + rest[0].size > bytes_max


def test_an_empty_log_ends_at_the_origin() -> None:
    log = Log()
    assert (log.last, log.last_index, log.next_offset, log.last_append_time) == (ORIGIN, 0, 0, 0)
    assert log.holds(ORIGIN)
    assert log.take_change() is None


def test_offsets_and_append_times_go_on_from_the_last_entry() -> None:
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, base_offset=10, count=3, append_time=1234)
    log = Log([entry])
    assert (log.next_offset, log.last_append_time) == (13, 1234)


def test_what_a_log_starts_with_is_no_change() -> None:
    assert Log(chain(1, 1)).take_change() is None


def test_a_log_has_no_gaps_and_no_falling_terms() -> None:
    log = Log(chain(1, 2))
    with pytest.raises(InvariantBroken, match="no gaps"):
        log.append(chain(1, 2, 2, 2)[3:])
    with pytest.raises(InvariantBroken, match="terms never decrease"):
        log.append(chain(1, after=log.last))


@pytest.mark.parametrize("first", [-1, 0, 3])
def test_a_truncation_outside_the_log_is_a_mistake(first: int) -> None:
    with pytest.raises(InvariantBroken, match="drops something"):
        Log(chain(1, 1)).truncate(Index(first))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_position_outside_the_log_is_a_mistake(index: int) -> None:
    with pytest.raises(InvariantBroken, match="only within the log"):
        Log(chain(1, 1)).position(Index(index))
