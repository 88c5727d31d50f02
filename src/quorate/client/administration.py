"""Operations on a cluster as a whole: its logs and its status."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import TYPE_CHECKING

from quorate.client.pool import reason
from quorate.client.retries import Effect, Lost, Unreachable
from quorate.client.session import wire_id
from quorate.client.status import merge_status
from quorate.errors import (
    Behind,
    InvalidArgument,
    LogExists,
    OffsetMismatch,
    QuorateError,
    Timeout,
)
from quorate.wire.calls import CreateLog, DeleteLog, FindLog, ListLogs, Status
from quorate.wire.shapes import check_log_name

if TYPE_CHECKING:
    from quorate.client.requests import Requests
    from quorate.client.results import ClusterStatus
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.wire.calls import LogFound, NodeStatus

__all__ = ["cluster_status", "create_log", "delete_log", "find_log", "list_logs"]

INCARNATION_BITS = 128
_HEX = re.compile(r"[0-9a-f]{32}")
# The end of a LOG_EXISTS text.
_INCARNATION = re.compile(rf"incarnation ({_HEX.pattern})$")
# The end of an OFFSET_MISMATCH text of a create.
_DRAW_AT = re.compile(r"draw another one at (\d+)$")


async def find_log(session: Session, name: str, *, create: bool = False) -> Route:
    """The route of the log ``name``; with ``create`` the log is made if missing."""
    check_log_name(name)
    routing = session.routing
    # The incarnation to find; None is any that is not known to be deleted.
    living: int | None = None
    if create:
        # A node that lags would show a deleted log, so the catalog's leader is asked.
        try:
            return await create_log(session, name)
        except LogExists as there:
            named = _INCARNATION.search(str(there))
            living = int(named[1], 16) if named else None

    def check(found: LogFound, at: Requests) -> None:
        incarnation = int.from_bytes(found.incarnation, "little")
        if incarnation in routing.deleted or (living is not None and incarnation != living):
            raise Behind(f"{at.node} does not know yet that {name} was deleted")

    found = await session.ask(routing.catalog, f"search for {name}", FindLog(name), check)
    return routing.found(found)


async def create_log(session: Session, name: str) -> Route:
    """Make a log; done when a leader serves it. The incarnation is drawn here, so that a retry
    makes no second log."""
    check_log_name(name)
    catalog = session.routing.catalog
    while True:
        call = CreateLog(
            name, wire_id(secrets.randbits(INCARNATION_BITS)), _patience_ms(session),
            catalog.session_end,
        )  # fmt: skip
        try:
            found = await session.change(catalog, f"create {name}", call, Effect.ONCE, LogExists)
            return session.routing.found(found)
        except OffsetMismatch as early:
            # No log was made with this incarnation, and none will be.
            named = _DRAW_AT.search(str(early))
            if named is None or int(named[1]) <= catalog.session_end:
                raise
            catalog.saw(int(named[1]))


async def delete_log(session: Session, name: str, life: str | None = None) -> int:
    """Delete a log; done when a majority of nodes has dropped it. Returns its incarnation:
    ``life``, if given, or the present one."""
    if life is None:
        incarnation = (await find_log(session, name)).incarnation
    else:
        check_log_name(name)
        incarnation = _incarnation(life)
    call = DeleteLog(name, wire_id(incarnation), _patience_ms(session))
    catalog = session.routing.catalog
    await session.change(catalog, f"delete {name}", call, Effect.ONCE)
    session.routing.dropped(incarnation)
    return incarnation


def _incarnation(text: str) -> int:
    if not _HEX.fullmatch(str(text)):
        raise InvalidArgument(f"incarnation = {text!r:.50} is not 32 hex digits")
    return int(text, 16)


async def list_logs(session: Session) -> list[LogFound]:
    """All logs, sorted by name."""
    found = await session.ask(session.routing.catalog, "list of logs", ListLogs())
    return sorted(found.logs, key=lambda log: log.name)


async def cluster_status(session: Session) -> ClusterStatus:
    """The status of the cluster, as far as the nodes that answer know. One answer is enough."""
    routing = session.routing
    asked = await _ask_all(session, routing.addresses(sorted(routing.nodes)))
    # The first answers may have named nodes that were not known.
    known = {place for answer in _answers(asked) for place in answer.nodes.values()}
    asked |= await _ask_all(session, sorted(known.difference(asked)))
    answers = _answers(asked)
    if not answers:
        told = "; ".join(f"{address}: {why}" for address, why in asked.items())
        raise Timeout(f"status: no node answered: {told}")
    why = {address: told for address, told in asked.items() if isinstance(told, str)}
    return merge_status(answers, routing.nodes, why)


def _answers(asked: dict[str, NodeStatus | str]) -> list[NodeStatus]:
    """One answer for each node, although it may have been reached at two addresses."""
    found = {answer.id: answer for answer in asked.values() if not isinstance(answer, str)}
    return [*found.values()]


async def _ask_all(session: Session, addresses: list[str]) -> dict[str, NodeStatus | str]:
    """The answer of each address, or why there is none."""
    answers = await asyncio.gather(*(_ask_one(session, address) for address in addresses))
    return dict(zip(addresses, answers, strict=True))


async def _ask_one(session: Session, address: str) -> NodeStatus | str:
    patience_s = min(session.patience.status_s, session.timeout)
    try:
        async with asyncio.timeout(patience_s):
            requests = await session.pool.connect(address)
            return await requests.call(Status())
    except TimeoutError:
        return f"no answer in {patience_s:g} s"
    except (Lost, Unreachable, OSError, QuorateError) as error:
        return reason(error)


def _patience_ms(session: Session) -> int:
    """Milliseconds after which a node answers that it is not done: less than the client waits."""
    return max(1, int(500 * min(session.patience.answer_s, session.timeout)))
