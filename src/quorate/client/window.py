"""What a producer has sent and not heard of: numbered batches, until each has its outcome.

Sans-IO: it is given batches, answers and the time, and says what to send next. A batch keeps its
sequence, its records and its bytes in every attempt, which is how a leader knows it again. Sending
goes in rounds: after anything but a receipt the next round begins at the lowest batch without an
outcome, because a leader takes nothing that is not next.

The rule for outcomes: what may be in the log is never reported as failed. An attempt that was
refused logged nothing; one that was lost, or that nobody has answered yet, may have.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.retries import Lost
from quorate.errors import Duplicate, OutcomeUnknown, QuorateError

if TYPE_CHECKING:
    from quorate.client.results import Receipt
    from quorate.client.tickets import Ticket

__all__ = ["Attempt", "Window"]


class Attempt(NamedTuple):
    """One sending of one batch."""

    ticket: Ticket
    round: int


class Window:
    """The batches of one open producer that are on their way."""

    def __init__(self, name: str, epoch: int, last_sequence: int, size: int) -> None:
        self.name = name
        self.epoch = epoch
        # Of the newest record that is known to be in the log together with all before it.
        self.last_sequence = last_sequence
        # The first error that a batch ended with. Nothing is taken after it: what follows could
        # have no sequence.
        self.error: QuorateError | None = None
        # Batches on their way at once: the log remembers where so many of the newest went.
        self._size = size
        self._next_sequence = last_sequence + 1
        # In the order of their sequences; the first has no outcome, others may have receipts.
        self._unacked: deque[Ticket] = deque()
        # The newest "not now" since something was delivered: why there may be no receipt.
        self._refusal: QuorateError | None = None
        # Rises when sending begins again.
        self._round = 0
        # How many of ``_unacked`` this round has passed.
        self._passed = 0

    @property
    def room(self) -> bool:
        """Whether it takes another batch."""
        return self.error is None and len(self._unacked) < self._size

    @property
    def idle(self) -> bool:
        """Whether every batch has its outcome."""
        return not self._unacked

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return self._passed < len(self._unacked)

    @property
    def under_way(self) -> bool:
        """Whether this round has sent something whose outcome is not known."""
        return self._passed > 0

    @property
    def deadline(self) -> float | None:
        """When :meth:`expire` has something to do; None if nothing is on its way."""
        return self._unacked[0].deadline if self._unacked else None

    @property
    def tickets(self) -> list[Ticket]:
        """Those that are on their way."""
        return [ticket for ticket in self._unacked if ticket.outcome is None]

    def add(self, ticket: Ticket, deadline: float) -> None:
        """A batch for which there is room. Deadlines never fall."""
        ticket.sequence = self._next_sequence
        ticket.deadline = deadline
        self._next_sequence += ticket.count
        self._unacked.append(ticket)

    def next(self) -> Attempt | None:
        """The next batch to send in this round; None if all are on their way."""
        while self._passed < len(self._unacked):
            ticket = self._unacked[self._passed]
            self._passed += 1
            if ticket.outcome is None:
                ticket.attempts += 1
                return Attempt(ticket, self._round)
        return None

    def answered(self, attempt: Attempt, result: Receipt | Exception) -> bool:
        """Take what came of an attempt. Whether sending begins again, at the lowest batch.

        An answer of an earlier round tells of its own batch and of nothing else: sending has begun
        again since.
        """
        ticket = attempt.ticket
        ticket.attempts -= 1
        if ticket.outcome is not None:
            return False
        if not isinstance(result, Exception) or isinstance(result, Duplicate):
            self._delivered(ticket, result)
            return False
        if isinstance(result, Lost | OutcomeUnknown):
            ticket.doubt = result
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
        """The next round: everything without an outcome is sent again, in order."""
        self._round += 1
        self._passed = 0

    def expire(self, now: float) -> None:
        """End everything once the lowest batch had its time."""
        if self._unacked and self._unacked[0].deadline <= now:
            last = self._refusal
            after = f"; the last answer was {last.code}: {last}" if last is not None else ""
            self.abandon(f"there was no receipt in time{after}")

    def refuse(self, error: QuorateError) -> None:
        """No node will take any of it."""
        if self._unacked:
            self._end(0, error)
        elif self.error is None:
            self.error = error

    def abandon(self, why: str) -> None:
        """Nobody will learn what becomes of what is on its way."""
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
        """For good, so no leader will take what comes after it; what came before it goes on."""
        self._end(self._unacked.index(ticket), error)

    def _end(self, place: int, error: QuorateError) -> None:
        """Everything from ``place`` on gets an outcome now, and nothing more is taken.

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
                why = f"it was sent, and a repeat was answered {error.code}: {error}"
                outcome = OutcomeUnknown(self._explain(why))
            if self.error is None:
                self.error = outcome
            ticket.resolve(outcome)

    def _explain(self, why: str) -> str:
        return f"producer {self.name}: {why}; open it again, and last_sequence says how far it came"


def _surely_not_logged(ticket: Ticket) -> bool:
    """Whether every attempt was refused, or there was none."""
    return ticket.doubt is None and not ticket.attempts
