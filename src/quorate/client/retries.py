"""Decides whether an operation is tried again, after no answer or a retriable error.

Sans-IO: it is told the error, and says how long to wait or raises the caller's error. The rule: an
operation that was carried out is never reported as failed, and none is done twice. So a request
that may have reached a node and was not answered is sent again only if a retry is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from quorate.errors import Corrupt, OutcomeUnknown, QuorateError, Timeout

if TYPE_CHECKING:
    from random import Random

    Errors = type[QuorateError] | tuple[type[QuorateError], ...]

__all__ = ["Idempotency", "Lost", "Retries", "RetryLimits", "Unreachable"]


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits of the steps of an operation; the whole of it has the caller's timeout."""

    # Time to connect to one node, with the handshake.
    dial_s: float = 2.0
    # A node that has not answered is given up for another, where a retry is harmless: once no byte
    # of the request or its answer moved for this long. On a slow line a long request takes longer.
    # Where a retry is not harmless, only the next requests go to another node.
    answer_s: float = 4.0
    # How long a replica may let a following reader wait for the next record.
    follow_s: float = 5.0
    # An address that did not answer comes last for this long, or until it answers.
    stalled_s: float = 3.0
    # Time for queued requests to leave when a client is closed.
    close_s: float = 1.0
    # Time for one node to answer a request for its status.
    status_s: float = 2.0
    # The pause between attempts doubles from the first to the second, less up to a half at random:
    # clients that failed together do not come back together.
    pause_min_s: float = 0.01
    pause_max_s: float = 0.25
    # An operation that changes data is not tried again if no more time than this, and no more than
    # half of the timeout, is left: better a certain refusal than an unknown outcome.
    last_s: float = 1.0
    # Hints to another leader that are followed at once, in a row.
    redirects: int = 3


class Idempotency(Enum):
    """The effect of a retry if the first attempt was carried out after all."""

    # It changes no data.
    READ_ONLY = "read only"
    # No second effect: the request has an identity, and a retry gets the first answer.
    IDEMPOTENT = "idempotent"
    # The operation is done again, or refused because of the first attempt.
    UNSAFE = "unsafe"


class Lost(Exception):
    """A request was sent, and its answer will not come: it may have been carried out."""


class Unreachable(Exception):
    """No node could be asked: no request was sent."""


class Retries:
    """The retries of one operation: what its attempts brought, and the decision about the next."""

    def __init__(
        self,
        what: str,
        idempotency: Idempotency,
        timeout: float,
        retry_limits: RetryLimits,
        draw: Random,
        *,
        conclusive: Errors = (),
        copies: int = 1,
        wait_s: float = 0.0,
    ) -> None:
        # Names the operation in error texts.
        self.what = what
        self.idempotency = idempotency
        # Seconds for all attempts together.
        self.timeout = timeout
        # Seconds of silence before a node is given up; None if no other may be asked anyway.
        self.answer_s = (
            None if idempotency is Idempotency.UNSAFE else retry_limits.answer_s + wait_s
        )
        # A request was sent, and no answer to it came.
        self.sent = False
        # The errors that also tell the outcome of an earlier attempt.
        self._conclusive = conclusive
        # Replicas whose copy may be undamaged.
        self._copies = copies
        self._retry_limits = retry_limits
        self._draw = draw
        # Why an earlier attempt may have been carried out; None if none may have.
        self._unknown: Exception | None = None
        # The newest attempt's error.
        self.last: Exception | None = None
        self._pauses = 0
        self._redirects = 0

    def failed(self, error: Exception, *, redirected: bool = False) -> float:
        """Seconds until the next attempt; raises the caller's error if there must be none.

        ``redirected`` means that the answer named another node to ask.
        """
        self.sent = False
        self.last = error
        if isinstance(error, Lost | OutcomeUnknown):
            self._note_unknown(error)
        elif (
            isinstance(error, Corrupt)
            and self.idempotency is Idempotency.READ_ONLY
            and self._copies > 1
        ):
            self._copies -= 1
            return 0.0
        elif isinstance(error, QuorateError) and not error.retriable:
            if self._unknown is not None and not isinstance(error, self._conclusive):
                raise self._outcome_unknown() from error
            raise error
        if redirected and self._redirects < self._retry_limits.redirects:
            self._redirects += 1
            return 0.0
        self._redirects = 0
        return self._pause()

    def worthwhile(self, left_s: float) -> bool:
        """Whether another attempt is likely to be answered in the time that is left."""
        return self.idempotency is Idempotency.READ_ONLY or left_s > min(
            self._retry_limits.last_s, self.timeout / 2
        )

    def expired(self) -> QuorateError:
        """The caller's error when the time is up."""
        if self.sent and self.idempotency is not Idempotency.READ_ONLY:
            self._unknown = Lost("no answer came in time")
        if self._unknown is not None:
            return self._outcome_unknown()
        if isinstance(self.last, QuorateError):
            return self.last
        why = self.last or "no answer came"
        return Timeout(f"{self.what}: {why} ({round(self.timeout, 2):g} s)")

    def _note_unknown(self, error: Exception) -> None:
        if self.idempotency is Idempotency.READ_ONLY:
            return
        self._unknown = error
        if self.idempotency is Idempotency.UNSAFE:
            raise self._outcome_unknown() from None

    def _outcome_unknown(self) -> OutcomeUnknown:
        if isinstance(self._unknown, OutcomeUnknown):
            return self._unknown
        after = ""
        if isinstance(self.last, QuorateError):
            after = f"; a repeat was answered {self.last.code}: {self.last}"
        return OutcomeUnknown(
            f"{self.what}: {self._unknown}{after}; it may have been carried out, or may still be"
        )

    def _pause(self) -> float:
        retry_limits = self._retry_limits
        doubled = retry_limits.pause_min_s * 2.0 ** min(self._pauses, 30)
        self._pauses += 1
        return min(retry_limits.pause_max_s, doubled) * self._draw.uniform(0.5, 1.0)
