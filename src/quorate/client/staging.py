"""Writing a batch that becomes visible at once: many writers stage chunks, one publishes them.

Stagers and publisher need not be the same process: they share only names. A retry of either call
gets the first answer, so both are sent again until there is an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.client.results import Receipt
from quorate.client.retries import Effect
from quorate.errors import Duplicate, ReplayMismatch, StageExpired, TooLarge
from quorate.wire.calls import (
    PARTS_MAX,
    AbortStaged,
    LastPublished,
    Publish,
    PublishPart,
    ReadEnds,
    StageChunk,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.requests import Requests
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.wire.calls import Ends
    from quorate.wire.handshake import Welcome

__all__ = [
    "Chunk",
    "Part",
    "Publication",
    "abort",
    "chunk_bytes_max",
    "last_published",
    "publish",
    "record_bytes_max",
    "stage",
]

# Bytes of a chunk besides its records: a head, offsets, padding.
CHUNK_ROOM = 1024
# After a lost answer these errors are as good as one: the batch was published by this or another
# writer, or cannot be published with the chunks staged for it.
_SETTLING = (Duplicate, ReplayMismatch, StageExpired)


class Chunk(NamedTuple):
    """The label of a chunk: its app, batch, attempt and number."""

    # The writer, recognised after a restart; batch ids are its own.
    app: str
    # 16 bytes, drawn at each start of the app.
    run: bytes
    batch_id: int
    partition: int
    # 16 bytes, drawn for each try to write the partition.
    attempt: bytes
    # From 0; the chunks of an attempt are staged one after the other.
    number: int


class Part(NamedTuple):
    """The chunks that one attempt staged for its partition."""

    partition: int
    attempt: bytes
    chunks: int
    records: int


class Publication(NamedTuple):
    """The last publish of an app."""

    batch_id: int
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    digest: bytes


async def chunk_bytes_max(session: Session, route: Route) -> int:
    """The most bytes of a chunk: limits.batch_bytes, which is the same on all nodes."""
    return (await _welcome(session, route)).batch_bytes


async def record_bytes_max(session: Session, route: Route) -> int:
    """The most bytes of a record alone in its chunk, by the limits of the node asked."""
    welcome = await _welcome(session, route)
    return min(welcome.record_bytes, welcome.batch_bytes - CHUNK_ROOM)


async def _welcome(session: Session, route: Route) -> Welcome:
    """The WELCOME of the node asked, with its limits."""
    found: list[Welcome] = []

    def look(_: Ends, at: Requests) -> None:
        found.append(at.welcome)

    await session.ask(route, f"limits of {route.name}", ReadEnds(route.wire, barrier=False), look)
    return found[-1]


async def stage(session: Session, route: Route, chunk: Chunk, batch: bytes) -> bool:
    """Stage a batch, hidden from readers. False if there is no need to: that batch id, or a later
    one, is published."""
    call = StageChunk(route.wire, *chunk)
    what = f"stage for batch {chunk.batch_id} of {chunk.app} to {route.name}"
    staged = await session.change(route, what, call, Effect.ONCE, batch=batch)
    return not staged.published


async def publish(
    session: Session,
    route: Route,
    app: str,
    batch_id: int,
    parts: Sequence[Part],
    digest: bytes,
    fence: str | None = None,
    *,
    once: bool = False,
) -> Receipt:
    """Make the chunks of ``parts`` visible, in this order and with consecutive offsets.

    A batch that is published already gets its first receipt, if it had as many records and the same
    ``digest`` of 32 bytes; otherwise it raises ReplayMismatch. Raises StageExpired if a chunk is
    not staged any more, and no record is visible then. ``once`` says that ``app`` will stage no
    more: the log then remembers it for about an hour, not for months.
    """
    if len(parts) > PARTS_MAX:
        raise TooLarge(
            f"batch {batch_id} of {app} has rows in {len(parts)} partitions, limit {PARTS_MAX}: "
            f"gather them before they are staged, in Spark with coalesce"
        )
    named = [PublishPart(*part) for part in parts]
    call = Publish(route.wire, app, batch_id, named, digest, fence, once)
    what = f"publish of batch {batch_id} of {app} to {route.name}"
    published = await session.change(route, what, call, Effect.ONCE, _SETTLING)
    receipt = Receipt(
        published.offset, published.count, published.index, published.term, published.synced
    )
    route.saw(receipt.offset + receipt.count)
    return receipt


async def abort(
    session: Session, route: Route, app: str, batch_id: int, attempt: bytes | None = None
) -> int:
    """Drop the chunks staged for a batch, by one attempt or by all: how many attempts were dropped.

    Never undoes a publish.
    """
    call = AbortStaged(route.wire, app, batch_id, attempt)
    what = f"abort of batch {batch_id} of {app} in {route.name}"
    aborted = await session.change(route, what, call, Effect.ONCE)
    return aborted.attempts


async def last_published(session: Session, route: Route, app: str) -> Publication | None:
    """The last publish of ``app``, of all acknowledged before the call; None if the log remembers
    none."""
    call = LastPublished(route.wire, app)
    found = await session.ask(route, f"last publish of {app} to {route.name}", call)
    if found.batch_id is None:
        return None
    return Publication(found.batch_id, found.offset, found.count, found.index, found.digest)
