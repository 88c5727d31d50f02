"""The decision after an attempt that brought no answer, or a retriable error.

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

    Settling = type[QuorateError] | tuple[type[QuorateError], ...]

__all__ = ["Attempts", "Effect", "Lost", "Patience", "Unreachable"]


@dataclass(frozen=True, slots=True)
class Patience:
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
    silent_s: float = 3.0
    # Time for queued requests to leave when a client is closed.
    close_s: float = 1.0
    # Time for one node to answer a request for its status.
    status_s: float = 2.0
    # The pause between attempts doubles from the first to the second, less up to a half at random:
    # clients that failed together do not come back together.
    pause_min_s: float = 0.01
    pause_max_s: float = 0.25
    # With no more time left than this and than half of the timeout, an operation with an effect is
    # not tried again: a refusal is certain, an attempt that is cut short is not.
    last_s: float = 1.0
    # Hints to another leader that are followed at once, in a row.
    redirects: int = 3


class Effect(Enum):
    """The effect of a retry if the first attempt was carried out after all."""

    # None: it only reads.
    NONE = "none"
    # None besides the first: the request has an identity, and a retry gets the first answer.
    ONCE = "once"
    # The operation is done again, or refused because of the first attempt.
    TWICE = "twice"


class Lost(Exception):
    """A request was sent, and its answer will not come: it may have been carried out."""


class Unreachable(Exception):
    """No node could be asked: no request was sent."""


class Attempts:
    """The attempts of one operation, and the decision about the next."""

    def __init__(
        self,
        what: str,
        effect: Effect,
        timeout: float,
        patience: Patience,
        draw: Random,
        *,
        settling: Settling = (),
        copies: int = 1,
        wait_s: float = 0.0,
    ) -> None:
        # Names the operation in error texts.
        self.what = what
        self.effect = effect
        # Seconds for all attempts together.
        self.timeout = timeout
        # Seconds of silence before a node is given up; None if no other may be asked anyway.
        self.answer_s = None if effect is Effect.TWICE else patience.answer_s + wait_s
        # A request was sent, and no answer to it came.
        self.sent = False
        # The errors that leave no doubt about an earlier attempt.
        self._settling = settling
        # Replicas whose copy may be undamaged.
        self._copies = copies
        self._patience = patience
        self._draw = draw
        # Why an earlier attempt may have been carried out.
        self._doubt: Exception | None = None
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
            self._doubted(error)
        elif isinstance(error, Corrupt) and self.effect is Effect.NONE and self._copies > 1:
            self._copies -= 1
            return 0.0
        elif isinstance(error, QuorateError) and not error.retriable:
            if self._doubt is not None and not self._settles(error):
                raise self._unknown() from error
            raise error
        if redirected and self._redirects < self._patience.redirects:
            self._redirects += 1
            return 0.0
        self._redirects = 0
        return self._pause()

    def worthwhile(self, left_s: float) -> bool:
        """Whether another attempt is likely to be answered in the time that is left."""
        return self.effect is Effect.NONE or left_s > min(self._patience.last_s, self.timeout / 2)

    def expired(self) -> QuorateError:
        """The caller's error when the time is up."""
        if self.sent and self.effect is not Effect.NONE:
            self._doubt = Lost("no answer came in time")
        if self._doubt is not None:
            return self._unknown()
        if isinstance(self.last, QuorateError):
            return self.last
        why = self.last or "no answer came"
        return Timeout(f"{self.what}: {why} ({self.timeout:g} s)")

    def _doubted(self, error: Exception) -> None:
        if self.effect is Effect.NONE:
            return
        self._doubt = error
        if self.effect is Effect.TWICE:
            raise self._unknown() from None

    def _settles(self, error: QuorateError) -> bool:
        return isinstance(error, self._settling)

    def _unknown(self) -> OutcomeUnknown:
        if isinstance(self._doubt, OutcomeUnknown):
            return self._doubt
        after = ""
        if isinstance(self.last, QuorateError):
            after = f"; a repeat was answered {self.last.code}: {self.last}"
        return OutcomeUnknown(
            f"{self.what}: {self._doubt}{after}; it may have been carried out, or may still be"
        )

    def _pause(self) -> float:
        patience = self._patience
        doubled = patience.pause_min_s * 2.0 ** min(self._pauses, 30)
        self._pauses += 1
        return min(patience.pause_max_s, doubled) * self._draw.uniform(0.5, 1.0)
