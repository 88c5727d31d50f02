"""Persist, then answer: nothing leaves before its flush, and nothing old proves anything new."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from core_rig import ack, append, chain, end, heartbeat_reply, vote, vote_reply
from quorate.errors import InvariantBroken
from quorate.raft.log import LogChange
from quorate.raft.messages import Ack, Envelope, Message
from quorate.replica.durability import Durability
from quorate.types import BootId, GroupId, Index, NodeId, Term
from verification.disk.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flush


def envelope(message: Message) -> Envelope:
    return Envelope(GroupId("c", 0), NodeId("n1"), NodeId("n2"), BootId(1, 0), message)


class Bench:
    """A durability over a disk, with all that it let go."""

    def __init__(self, entries: tuple[Entry, ...] = (), held_max: int = 100) -> None:
        self.durability = Durability(Term(1), None, Index(len(entries)), held_max)
        self.term = Term(1)
        self.left: list[Message] = []
        self.flying: Flush | None = None

    def send(self, message: Message) -> bool:
        """Whether ``message`` leaves at once."""
        ready: list[Envelope] = []
        self.durability.send(envelope(message), ready)
        self.left += [item.message for item in ready]
        return bool(ready)

    def write(self, *entries: Entry, truncate: int | None = None) -> None:
        first = None if truncate is None else Index(truncate)
        self.durability.note_log(LogChange(first, entries))

    def vote(self, term: int, candidate: str | None = None) -> None:
        self.term = Term(term)
        self.durability.note_vote(self.term, NodeId(candidate) if candidate else None)

    def start(self) -> Flush:
        flush = self.durability.next_flush(Index(0))
        assert flush is not None
        self.flying = flush
        return flush

    def finish(self) -> list[Message]:
        """The flush under way ends; what it lets go."""
        assert self.flying is not None
        ready: list[Envelope] = []
        self.durability.finish(self.flying.number, self.term, ready)
        self.flying = None
        freed = [item.message for item in ready]
        self.left += freed
        return freed


# -- what waits --------------------------------------------------------------------------------


def test_with_nothing_to_write_messages_leave_at_once() -> None:
    bench = Bench(chain(1, 1))
    assert bench.send(heartbeat_reply(1))
    assert bench.send(ack(1, 2))
    assert bench.durability.next_flush(Index(0)) is None


def test_an_ack_waits_for_the_flush_that_holds_its_entry() -> None:
    bench = Bench()
    bench.write(*chain(1))
    bench.start()
    bench.write(*chain(1, 1)[1:])
    assert not bench.send(ack(1, 2))
    assert not bench.send(ack(1, 1))
    assert bench.send(append(1, chain(1)))  # what a leader sends needs no disk of its own
    assert bench.finish() == [ack(1, 1)]
    bench.start()
    assert bench.finish() == [ack(1, 2)]
    assert bench.send(ack(1, 2))


def test_every_message_waits_for_the_term_that_it_carries() -> None:
    bench = Bench()
    bench.vote(2, "n2")
    for message in (vote_reply(2), heartbeat_reply(2), vote(2), append(2, chain(2))):
        assert not bench.send(message)
    bench.start()
    assert len(bench.finish()) == 4


def test_a_vote_that_changes_while_a_flush_is_under_way_waits_for_the_next() -> None:
    bench = Bench()
    bench.write(*chain(1))
    bench.start()
    bench.vote(2, "n2")
    bench.send(vote_reply(2))
    assert bench.finish() == []
    assert bench.durability.persisted_term == 1
    bench.start()
    assert bench.finish() == [vote_reply(2)]
    assert bench.durability.persisted_term == 2


def test_the_number_of_a_vote_record_rises_with_every_change() -> None:
    """Of two whole copies the higher number is the newer: it must be."""
    bench = Bench()
    store = Store("n1")
    numbers = [store.open().record.number]
    for term in (2, 3, 4):
        bench.vote(term, "n2")
        store.write(bench.start())
        record = store.durable.vote
        assert record is not None
        assert (record.term, record.boot) == (term, 1)
        numbers.append(record.number)
        bench.finish()
    assert numbers == sorted(set(numbers))


def test_held_messages_of_an_earlier_term_are_dropped() -> None:
    bench = Bench()
    bench.vote(2, "n2")
    bench.send(vote_reply(2))
    bench.start()
    bench.vote(3)
    bench.send(vote_reply(3, granted=False))
    assert bench.finish() == []
    bench.start()
    assert bench.finish() == [vote_reply(3, granted=False)]
    assert bench.durability.held == 0


def test_the_oldest_message_goes_when_too_many_wait() -> None:
    bench = Bench(held_max=16)
    bench.write(*chain(*[1] * 20))
    for index in range(1, 21):
        bench.send(ack(1, index))
        assert bench.durability.held <= 16
    bench.start()
    assert bench.finish() == [ack(1, index) for index in range(5, 21)]


# -- what a flush proves -----------------------------------------------------------------------


def test_one_flush_is_under_way_at_a_time() -> None:
    bench = Bench()
    bench.write(*chain(1))
    first = bench.start()
    bench.write(*chain(1, 1)[1:])
    assert bench.durability.next_flush(Index(0)) is None
    bench.finish()
    assert bench.start().number == first.number + 1


def test_a_flush_that_is_not_under_way_cannot_finish() -> None:
    bench = Bench()
    bench.write(*chain(1))
    bench.start()
    for number in (0, 2):
        with pytest.raises(InvariantBroken, match="the flush under way"):
            bench.durability.finish(number, Term(1), [])


def test_a_late_completion_does_not_prove_what_took_the_place_of_its_entries() -> None:
    """The entries of a flush are cut while it is under way: its end proves only what is left, and
    an ack for the new entry waits for the flush that holds the new entry."""
    bench = Bench(chain(1))
    bench.write(*chain(1, 1, 1)[1:])
    bench.start()
    new = chain(2, 2, after=end(chain(1)))
    bench.write(*new, truncate=2)
    assert not bench.send(ack(1, 3))
    assert bench.finish() == []
    assert bench.durability.persisted == 1
    bench.start()
    assert bench.finish() == [ack(1, 3)]
    assert bench.durability.persisted == 3


def test_a_truncation_takes_back_what_was_proved() -> None:
    bench = Bench(chain(1, 1, 1))
    bench.write(truncate=2)
    assert bench.durability.persisted == 1
    assert not bench.send(ack(1, 2))
    bench.start()
    bench.finish()
    assert bench.durability.persisted == 1


def test_entries_that_are_cut_before_their_flush_are_never_written() -> None:
    bench = Bench()
    bench.write(*chain(1, 1, 1))
    bench.write(*chain(2, after=end(chain(1))), truncate=2)
    store = Store("n1")
    store.open()
    store.write(bench.start())
    bench.finish()
    assert store.durable.position(Index(2)) == end(chain(1, 2))
    assert store.durable.last == bench.durability.persisted == 2


# -- any schedule ------------------------------------------------------------------------------

MOVES = ("write", "cut", "vote", "ack", "say", "start", "step", "finish")


class Watched(Bench):
    """Any schedule, with a disk that knows what is durable at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store("n1")
        self.store.open()
        self.log: list[Entry] = []
        self.plan: Iterator[str] = iter(())
        self.stamp = 0
        # The highest index acked in this term, whether the ack has left or not.
        self.acked = 0

    def vote(self, term: int, candidate: str | None = None) -> None:
        super().vote(term, candidate)
        self.acked = 0

    def move(self, name: str, value: int) -> None:
        if name == "write":
            self.write(*self.grow(1 + value % 3))
        elif name == "cut" and self.log:
            first = 1 + value % len(self.log)
            if first <= self.acked:  # only another leader's log can differ there
                self.vote(self.term + 1)
            del self.log[first - 1 :]
            self.write(*self.grow(value % 3), truncate=first)
        elif name == "vote":
            self.vote(self.term + 1, f"n{value % 3}")
        elif name == "ack":
            match = value % (len(self.log) + 1)
            self.acked = max(self.acked, match)
            self.send(ack(self.term, match))
        elif name == "say":
            self.send(vote_reply(self.term))
        else:
            self.flush(name)
        self.check()

    def grow(self, amount: int) -> tuple[Entry, ...]:
        self.stamp += 1  # so that what takes a place is not what was there
        added = chain(*[self.term] * amount, after=end(self.log), stamp=self.stamp)
        self.log.extend(added)
        return added

    def flush(self, name: str) -> None:
        if name == "start" and self.flying is None:
            self.flying = self.durability.next_flush(Index(0))
            self.plan = iter(()) if self.flying is None else self.store.plan(self.flying)
        elif name == "step":
            next(self.plan, None)
        elif name == "finish" and self.flying is not None:
            for _ in self.plan:
                pass
            self.finish()

    def drain(self) -> None:
        """Write all that is staged: then the disk holds the log and nothing else."""
        for _ in range(2):
            for name in ("start", "finish"):
                self.move(name, 0)
        assert self.durability.next_flush(Index(0)) is None
        assert self.durability.persisted == self.store.durable.last == len(self.log)

    def check(self) -> None:
        """What is called persisted is durable, and so is what each message that left needs."""
        persisted = self.durability.persisted
        assert persisted <= len(self.log)
        assert self.store.durable.position(persisted) == end(self.log[:persisted])
        record = self.store.durable.vote
        for message in self.left:
            assert message.term == self.term
            assert message.term == 1 or (record is not None and record.term >= message.term)
            assert not isinstance(message, Ack) or message.match <= persisted
        self.left.clear()


@pytest.mark.parametrize("seed", range(10))
def test_in_any_schedule_nothing_leaves_before_its_flush(seed: int) -> None:
    random = Random(seed)
    for _ in range(30):
        watched = Watched()
        for _ in range(80):
            watched.move(random.choice(MOVES), random.randrange(100))
        watched.drain()
