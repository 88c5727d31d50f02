"""What to do when an attempt brought no answer, or one that says "not now".

Sans-IO: it is told what happened, and says how long to wait or raises what the caller gets. The
rule behind it: what was carried out is never reported as failed, and nothing is done twice. So
whatever may have reached a node and was not answered is sent again only if a repeat is harmless.
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
    """How long the steps of an operation may take; the whole of it has the caller's timeout."""

    # Connecting and shaking hands with one node.
    dial_s: float = 2.0
    # A node that has not answered is given up for another, where a repeat is harmless: once no byte
    # of it moved for so long. On a slow line a long request is on its way for longer. Where it is
    # not harmless, only what comes next goes to another.
    answer_s: float = 4.0
    # How long a replica may keep a reader that follows waiting for the next record.
    follow_s: float = 5.0
    # An address that took what was sent and said nothing comes last for so long, or until it does.
    silent_s: float = 3.0
    # What is queued when a client is closed has so long to leave.
    close_s: float = 1.0
    # One node's share of a look at the whole cluster.
    status_s: float = 2.0
    # The pause between attempts doubles from the first to the second, less up to a half by chance:
    # clients that failed together do not come back together.
    pause_min_s: float = 0.01
    pause_max_s: float = 0.25
    # With less time left than this, or than half of it all, nothing is begun again that must not be
    # done twice: a refusal is known, an attempt that is cut short is not.
    last_s: float = 1.0
    # So often in a row a hint to another leader is followed at once.
    redirects: int = 3


class Effect(Enum):
    """What a repeat does if the first attempt was carried out after all."""

    # Nothing: it only reads.
    NONE = "none"
    # Nothing more: the request names what it is, and is answered as the first one was.
    ONCE = "once"
    # It does it again, or is refused because of what the first one did.
    TWICE = "twice"


class Lost(Exception):
    """A request was sent, and its answer will not come: it may have been carried out."""


class Unreachable(Exception):
    """No node could be asked: nothing was sent."""


class Attempts:
    """The attempts of one operation."""

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
        # Names the operation in messages.
        self.what = what
        self.effect = effect
        # Seconds for all of them together.
        self.timeout = timeout
        # Seconds of silence of one node; None if no other may be asked anyway.
        self.answer_s = None if effect is Effect.TWICE else patience.answer_s + wait_s
        # A request is out, and no answer to it came.
        self.sent = False
        # The errors that leave no doubt about an earlier attempt.
        self._settling = settling
        # Replicas whose copy may be whole.
        self._copies = copies
        self._patience = patience
        self._draw = draw
        # Why an earlier attempt may have been carried out.
        self._doubt: Exception | None = None
        # What came of the newest attempt, if it was no answer.
        self.last: Exception | None = None
        self._pauses = 0
        self._redirects = 0

    def failed(self, error: Exception, *, redirected: bool = False) -> float:
        """Seconds until the next attempt; raises what the caller gets if there must be none.

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
        """What the caller gets when the time is up."""
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
