"""The window of a producer: numbered batches on their way, until each has its outcome.

Sans-IO: it is given batches, answers and the time, and says what to send next. A batch keeps its
sequence, its records and its bytes in every attempt, by which a leader recognises it. Sending goes
in rounds: after any result but a receipt the next round begins at the lowest batch without an
outcome, because a leader takes only the next sequence.

The rule for outcomes: a batch that may be in the log is never reported as failed. An attempt that
was refused logged nothing; one that was lost, or has no answer yet, may have.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.retries import Lost
from quorate.errors import Duplicate, OutcomeUnknown, QuorateError

if TYPE_CHECKING:
    from quorate.client.produce.tickets import Ticket
    from quorate.commands import Receipt

__all__ = ["SendAttempt", "Window"]


class SendAttempt(NamedTuple):
    """One attempt to send one batch."""

    ticket: Ticket
    round: int


class Window:
    """The batches of one open producer that are on their way."""

    def __init__(self, name: str, epoch: int, last_sequence: int, size: int) -> None:
        self.name = name
        self.epoch = epoch
        # The sequence of the newest record known to be in the log with all before it.
        self.last_sequence = last_sequence
        # The first error that a batch ended with. No batch is taken after it: it could have no
        # sequence.
        self.error: QuorateError | None = None
        # Batches on their way at once: the log remembers the offsets of as many.
        self._size = size
        self._next_sequence = last_sequence + 1
        # Batches in the order of sequences; the first has no outcome, others may have receipts.
        self._unacked: deque[Ticket] = deque()
        # The newest retriable error since a delivery: why there may be no receipt.
        self._refusal: QuorateError | None = None
        # The number of the round; rises when sending begins again.
        self._round = 0
        # How many of ``_unacked`` this round has passed.
        self._passed = 0

    @property
    def room(self) -> bool:
        """Whether there is room for another batch."""
        return self.error is None and len(self._unacked) < self._size

    @property
    def idle(self) -> bool:
        """Whether every batch has its outcome."""
        return not self._unacked

    @property
    def waiting(self) -> bool:
        """Whether there is a batch to send."""
        return self._passed < len(self._unacked)

    @property
    def under_way(self) -> bool:
        """Whether this round has sent a batch whose outcome is not known."""
        return self._passed > 0

    @property
    def deadline(self) -> float | None:
        """When :meth:`expire` has work; None if no batch is on its way."""
        return self._unacked[0].deadline if self._unacked else None

    @property
    def tickets(self) -> list[Ticket]:
        """The batches on their way."""
        return [ticket for ticket in self._unacked if ticket.outcome is None]

    def add(self, ticket: Ticket, deadline: float) -> None:
        """Add a batch for which there is room. Deadlines never fall."""
        ticket.sequence = self._next_sequence
        ticket.deadline = deadline
        self._next_sequence += ticket.count
        self._unacked.append(ticket)

    def next(self) -> SendAttempt | None:
        """The next batch to send in this round; None if all are on their way."""
        while self._passed < len(self._unacked):
            ticket = self._unacked[self._passed]
            self._passed += 1
            if ticket.outcome is None:
                ticket.attempts += 1
                return SendAttempt(ticket, self._round)
        return None

    def answered(self, attempt: SendAttempt, result: Receipt | Exception) -> bool:
        """Take the result of an attempt. Returns whether sending begins again, at the lowest batch.

        An answer of an earlier round tells of its own batch only: sending has begun again since.
        """
        ticket = attempt.ticket
        ticket.attempts -= 1
        if ticket.outcome is not None:
            return False
        if not isinstance(result, Exception) or isinstance(result, Duplicate):
            self._delivered(ticket, result)
            return False
        if isinstance(result, Lost | OutcomeUnknown):
            ticket.unknown = result
        elif isinstance(result, QuorateError) and not result.retriable:
            self._refused(ticket, result)
            return False
        elif isinstance(result, QuorateError):
            self._refusal = result
        if attempt.round != self._round:
            return False
        self.begin_again()
        return True

    def begin_again(self) -> None:
        """Begin a round: all batches without an outcome are sent again, in order."""
        self._round += 1
        self._passed = 0

    def expire(self, now: float) -> None:
        """End all batches once the lowest one is past its deadline."""
        if self._unacked and self._unacked[0].deadline <= now:
            last = self._refusal
            after = f"; the last answer was {last.code}: {last}" if last is not None else ""
            self.abandon(f"there was no receipt in time{after}")

    def refuse(self, error: QuorateError) -> None:
        """End all batches with ``error``: no node will take them."""
        if self._unacked:
            self._end(0, error)
        elif self.error is None:
            self.error = error

    def abandon(self, why: str) -> None:
        """End all batches as OUTCOME_UNKNOWN: their outcome will not be learnt."""
        if self._unacked:
            self._end(0, OutcomeUnknown(self._explain(why)))

    # -- outcomes ------------------------------------------------------------------------------

    def _delivered(self, ticket: Ticket, outcome: Receipt | Duplicate) -> None:
        ticket.resolve(outcome)
        self._refusal = None
        unacked = self._unacked
        while unacked and unacked[0].outcome is not None:
            first = unacked.popleft()
            self.last_sequence = first.sequence + first.count - 1
            self._passed = max(0, self._passed - 1)

    def _refused(self, ticket: Ticket, error: QuorateError) -> None:
        """End this batch and those after it, which no leader will take; those before it go on."""
        self._end(self._unacked.index(ticket), error)

    def _end(self, place: int, error: QuorateError) -> None:
        """End all batches from ``place`` on, and take no more.

        If the first of them is surely not in the log, none of them is: a log has no gap.
        """
        ended = [one for one in islice(self._unacked, place, None) if one.outcome is None]
        while len(self._unacked) > place:
            self._unacked.pop()
        self._passed = min(self._passed, place)
        sure = _surely_not_logged(ended[0])
        for ticket in ended:
            outcome = error
            if not (sure or _surely_not_logged(ticket) or isinstance(error, OutcomeUnknown)):
                why = f"the batch was sent, and a repeat was answered {error.code}: {error}"
                outcome = OutcomeUnknown(self._explain(why))
            if self.error is None:
                self.error = outcome
            ticket.resolve(outcome)

    def _explain(self, why: str) -> str:
        return f"producer {self.name}: {why}; open it again, and last_sequence says how far it came"


def _surely_not_logged(ticket: Ticket) -> bool:
    """Whether every attempt was refused, or there was none."""
    return ticket.unknown is None and not ticket.attempts
