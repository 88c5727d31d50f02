"""A model of the leaders that a producer meets, plain enough to be believed.

One log, one leader at a time. Connections keep order until they break; what a broken one had taken
in may still arrive, but nobody hears of it. A leader that is replaced forgets what was not
committed, or a part of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.produce.tickets import Ticket
from quorate.client.produce.window import Window
from quorate.client.retries import Lost
from quorate.commands import Receipt
from quorate.errors import (
    Busy,
    Duplicate,
    Fenced,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
)

if TYPE_CHECKING:
    from quorate.client.produce.window import SendAttempt

__all__ = ["Play"]

EPOCH = 7


class Stored(NamedTuple):
    sequence: int
    records: int
    data: bytes
    offset: int


class Request(NamedTuple):
    """What travels: a copy, as bytes on a wire are."""

    attempt: SendAttempt
    sequence: int
    records: int
    data: bytes


@dataclass(eq=False)
class Connection:
    leads: bool = True
    broken: bool = False
    requests: deque[Request] = field(default_factory=deque)
    # Taken in and not answered: the attempt, and how long the log must be committed for it.
    pending: list[tuple[SendAttempt, Stored]] = field(default_factory=list)
    answers: list[tuple[SendAttempt, Receipt | Exception]] = field(default_factory=list)


class Play:
    """A producer's window and its cluster, moved step by step."""

    def __init__(self, size: int, last_sequence: int) -> None:
        self.window = Window("loader", EPOCH, last_sequence, size)
        self.size = size
        # Everything that was given to the producer, in order.
        self.tickets: list[tuple[Ticket, bytes]] = []
        self.log: list[Stored] = []
        self.committed = 0
        # All that ever stood in some leader's log.
        self.logged: set[bytes] = set()
        self.first_sequence = last_sequence
        self.fenced = False
        self.connections = [Connection()]
        self.now = 0.0

    @property
    def connection(self) -> Connection:
        """The producer's newest."""
        return self.connections[-1]

    # -- steps, each with a number to choose by ------------------------------------------------

    def add(self, number: int) -> None:
        if self.window.room:
            ticket = Ticket()
            ticket.count = 1 + number % 3
            ticket.data = b"%d" % len(self.tickets)
            self.tickets.append((ticket, ticket.data))
            self.window.add(ticket, self.now + 100)

    def send(self, number: int) -> None:
        """Some of what is to be sent."""
        for _ in range(1 + number % self.size):
            attempt = self.window.next()
            if attempt is None:
                return
            ticket = attempt.ticket
            request = Request(attempt, ticket.sequence, ticket.count, ticket.data)
            self.connection.requests.append(request)

    def arrive(self, number: int) -> None:
        """The next request of some connection is taken in."""
        ways = [one for one in self.connections if one.requests]
        if not ways:
            return
        way = ways[number % len(ways)]
        request = way.requests.popleft()
        self._take(way, request, busy=number % 7 == 3)

    def _take(self, way: Connection, request: Request, *, busy: bool) -> None:
        verdict = self._judge(way, request, busy=busy)
        if isinstance(verdict, Stored):
            way.pending.append((request.attempt, verdict))
        else:
            way.answers.append((request.attempt, verdict))

    def _judge(self, way: Connection, request: Request, *, busy: bool) -> Stored | QuorateError:
        if not way.leads:
            return NotLeader("leader: another")
        if busy:
            return Busy("full")
        if self.fenced:
            return Fenced("a newer epoch is in force")
        last = self.first_sequence + sum(one.records for one in self.log)
        if request.sequence > last + 1:
            return OutOfSequence(f"goes on with {last + 1}")
        if request.sequence == last + 1:
            offset = sum(one.records for one in self.log)
            stored = Stored(request.sequence, request.records, request.data, offset)
            self.log.append(stored)
            self.logged.add(request.data)
            return stored
        known = [one for one in self.log if one.sequence == request.sequence]
        assert known, "a batch that begins inside another"
        assert known[0][:3] == request[1:], "another batch under the same sequence"
        if known[0] not in self.log[-self.size :]:
            return Duplicate("its offset is no longer kept")
        return known[0]

    def commit(self, number: int) -> None:
        self.committed = min(len(self.log), self.committed + 1 + number % 2)
        for way in self.connections:
            for attempt, stored in list(way.pending):
                if stored in self.log[: self.committed]:
                    way.pending.remove((attempt, stored))
                    found = Receipt(stored.offset, stored.records, 1 + stored.offset, 1, 2)
                    way.answers.append((attempt, found))

    def answer(self, number: int) -> None:
        """Any answer comes, in any order; nothing comes of a broken connection."""
        ways = [one for one in self.connections if one.answers and not one.broken]
        if ways:
            answers = ways[number % len(ways)].answers
            self.window.answered(*answers.pop(number % len(answers)))

    def lose(self, number: int) -> None:
        """The newest connection breaks, and the producer learns of it."""
        way = self.connection
        way.broken = True
        open_ = [request.attempt for request in way.requests]
        open_ += [attempt for attempt, _ in (*way.pending, *way.answers)]
        if number % 2:
            way.requests.clear()
        self.connections.append(Connection(leads=way.leads))
        for attempt in open_:
            self.window.answered(attempt, Lost("the connection ended"))

    def give_up(self, _: int) -> None:
        """It was silent for too long: another connection is taken, this one may still answer."""
        self.window.begin_again()
        self.connections.append(Connection(leads=self.connection.leads))

    def replace_leader(self, number: int) -> None:
        """Whoever led knows it only now; a part of what was not committed is lost."""
        kept = self.committed + number % (1 + len(self.log) - self.committed)
        self.log = self.log[:kept]
        for way in self.connections:
            way.leads = False
            # Whether or not it survives, the one who took it cannot say.
            for attempt, _ in way.pending:
                way.answers.append((attempt, OutcomeUnknown("another leader came")))
            way.pending.clear()
        self.connections.append(Connection())
        self.window.begin_again()

    def wait(self, number: int) -> None:
        self.now += number % 40
        self.window.expire(self.now)

    def fence(self, number: int) -> None:
        self.fenced = self.fenced or number % 5 == 0

    # -- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing goes wrong any more: everything gets an outcome."""
        for _ in range(50 * (1 + len(self.tickets))):
            if self.window.idle:
                return
            self.send(self.size - 1)
            for way in self.connections:
                while way.requests:
                    self._take(way, way.requests.popleft(), busy=False)
            self.commit(1)
            self.answer(0)
            if not any(way.answers and not way.broken for way in self.connections):
                # Whatever is still open on the old ones: the producer gives them up.
                self.give_up(0)
        raise AssertionError("some batch never gets an outcome")

    def check(self) -> None:
        """What producers are promised."""
        sequences = [one.sequence for one in self.log]
        ends = [one.sequence + one.records for one in self.log]
        assert sequences == [self.first_sequence + 1, *ends[:-1]][: len(sequences)]
        stored = {one.data: one for one in self.log}
        assert len(stored) == len(self.log), "a batch is there twice"
        order = [data for _, data in self.tickets]
        assert [one.data for one in self.log] == order[: len(self.log)], "order, without a gap"
        for ticket, data in self.tickets:
            outcome = ticket.outcome
            assert outcome is not None
            assert not isinstance(outcome, Duplicate), "the window was too wide"
            if isinstance(outcome, Receipt):
                place = stored[data]
                assert outcome[:2] == (place.offset, place.records)
            elif not isinstance(outcome, OutcomeUnknown):
                assert data not in self.logged, f"{outcome.code}, yet it was logged"
