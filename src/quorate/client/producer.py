"""A producer: a name under which records are counted, so that a repeat is known as one.

One batch is under way at a time. Its first record has the sequence after the last one; a leader
takes that sequence once, however often it is sent.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from quorate.client.retries import Effect
from quorate.client.session import wire_id
from quorate.errors import InvalidArgument, QuorateError
from quorate.wire.calls import OpenProducer
from quorate.wire.requests import Stamp

if TYPE_CHECKING:
    from quorate.client.results import Receipt
    from quorate.client.routing import Route
    from quorate.client.session import Session

__all__ = ["Producer", "open_producer"]

INSTANCE_BYTES = 16
# Batches of which a log remembers where they went: one is under way.
WINDOW = 16
# A producer that was idle for so long is forgotten.
EXPIRY_US = 7 * 24 * 3600 * 1_000_000


class Producer:
    """An open producer. Nothing but data: what it sends goes through a session."""

    def __init__(self, route: Route, name: str, epoch: int, last_sequence: int) -> None:
        self.name = name
        self.epoch = epoch
        # Of the last record that is in the log under this name; 0 before the first.
        self.last_sequence = last_sequence
        self._route = route
        # The fate of a batch is open: what comes after it can have no sequence.
        self._doubtful = False

    async def append(self, session: Session, batch: bytes, fence: str | None = None) -> Receipt:
        """Append a batch, exactly once."""
        if self._doubtful:
            raise InvalidArgument(
                f"producer {self.name}: a batch is under way or its fate is open; open it again"
            )
        stamp = Stamp(self.name, self.epoch, self.last_sequence + 1)
        self._doubtful = True
        try:
            receipt = await session.append(self._route, batch, fence=fence, stamp=stamp)
        except QuorateError as error:
            # Nothing was logged, so the sequence is still free.
            self._doubtful = not error.retriable
            raise
        self._doubtful = False
        self.last_sequence += receipt.count
        return receipt


async def open_producer(session: Session, route: Route, name: str) -> Producer:
    """Open ``name``, which ends whoever else has it open."""
    instance = secrets.token_bytes(INSTANCE_BYTES)
    call = OpenProducer(wire_id(route.incarnation), name, instance, WINDOW, EXPIRY_US)
    what = f"open producer {name} of {route.name}"
    opened = await session.change(route, what, call, Effect.ONCE)
    return Producer(route, name, opened.epoch, opened.last_sequence)
