"""Operations on a cluster as a whole: its logs and its status."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import TYPE_CHECKING

from quorate.client.pool import reason
from quorate.client.retries import Idempotency, Lost, Unreachable
from quorate.client.session import wire_id
from quorate.client.status import merge_status
from quorate.errors import (
    Behind,
    InvalidArgument,
    LogExists,
    LogNotFound,
    OffsetMismatch,
    QuorateError,
    Timeout,
)
from quorate.types import PRIORITY_MAX
from quorate.wire.calls import (
    CreateLog,
    DeleteLog,
    FindLog,
    ListLogs,
    SetLog,
    Status,
    TransferLog,
)
from quorate.wire.shapes import check_log_name, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.client.node_connection import NodeConnection
    from quorate.client.results import ClusterStatus
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.wire.calls import LogFound, NodeStatus

__all__ = [
    "cluster_status",
    "create_log",
    "delete_log",
    "find_log",
    "list_logs",
    "set_log",
    "transfer_log",
]

INCARNATION_BITS = 128
_HEX = re.compile(r"[0-9a-f]{32}")
# The end of a LOG_EXISTS text.
_INCARNATION = re.compile(rf"incarnation ({_HEX.pattern})$")
# The end of an OFFSET_MISMATCH text of a create.
_DRAW_AT = re.compile(r"draw another one at (\d+)$")


async def find_log(
    session: Session, name: str, *, create: bool = False, deadline: float | None = None
) -> Route:
    """The route of the log ``name``; with ``create`` the log is made if missing."""
    check_log_name(name)
    routing = session.routing
    deadline = session.deadline() if deadline is None else deadline
    # The incarnation to find; None is any that is not known to be deleted.
    living: int | None = None
    if create:
        # A node that lags would show a deleted log, so the catalog's leader is asked.
        try:
            return await create_log(session, name, deadline)
        except LogExists as there:
            named = _INCARNATION.search(str(there))
            living = int(named[1], 16) if named else None

    def check(found: LogFound, at: NodeConnection) -> None:
        incarnation = int.from_bytes(found.incarnation, "little")
        if incarnation in routing.deleted or (living is not None and incarnation != living):
            raise Behind(f"{at.node} does not know yet that {name} was deleted")

    found = await session.ask(
        routing.catalog, f"search for {name}", FindLog(name), check, deadline=deadline
    )
    return routing.found(found)


async def create_log(session: Session, name: str, deadline: float | None = None) -> Route:
    """Make a log; done when a leader serves it. The incarnation is drawn here, so that a retry
    makes no second log."""
    check_log_name(name)
    catalog = session.routing.catalog
    deadline = session.deadline() if deadline is None else deadline
    while True:
        call = CreateLog(
            name, wire_id(secrets.randbits(INCARNATION_BITS)), _timeout_ms(session),
            catalog.session_end,
        )  # fmt: skip
        try:
            found = await session.change(
                catalog, f"create {name}", call, Idempotency.IDEMPOTENT, LogExists,
                deadline=deadline,
            )  # fmt: skip
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
    check_log_name(name)
    deadline = session.deadline()
    incarnation = await _living(session, name, deadline) if life is None else _incarnation(life)
    call = DeleteLog(name, wire_id(incarnation), _timeout_ms(session))
    catalog = session.routing.catalog
    what = f"delete {name}"
    await session.change(catalog, what, call, Idempotency.IDEMPOTENT, deadline=deadline)
    session.routing.dropped(incarnation)
    return incarnation


async def _living(session: Session, name: str, deadline: float) -> int:
    """The present incarnation of a log. A node that lags could name one that was deleted before,
    and to delete that one again succeeds. The list of logs lacks no acknowledged change."""
    for log in await list_logs(session, deadline):
        if log.name == name:
            return int.from_bytes(log.incarnation, "little")
    raise LogNotFound(f"log {name} does not exist")


def _incarnation(text: str) -> int:
    if not _HEX.fullmatch(str(text)):
        raise InvalidArgument(f"incarnation = {text!r:.50} is not 32 hex digits")
    return int(text, 16)


async def transfer_log(session: Session, name: str, node: str | None) -> str:
    """Give the leadership of the log ``name`` to ``node``, or to the node that the leader finds
    fittest. Returns the node that leads now."""
    check_log_name(name)
    if node is not None:
        check_name("node", node)
    deadline = session.deadline()
    route = await find_log(session, name, deadline=deadline)
    call, what = TransferLog(route.wire, node), f"transfer of {name}"
    # Without a target a retry would move the leadership on, from the node that has it by then.
    idempotency = Idempotency.UNSAFE if node is None else Idempotency.IDEMPOTENT
    moved = await session.change(route, what, call, idempotency, deadline=deadline)
    return moved.leader


async def set_log(session: Session, name: str, priorities: Mapping[str, int]) -> None:
    """Set the priorities of some nodes of the log ``name``; done when the log has them."""
    check_log_name(name)
    for node, priority in priorities.items():
        check_name("node", node)
        if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
            raise InvalidArgument(
                f"priority of {node} = {priority!r:.50} is not 0 to {PRIORITY_MAX}"
            )
    deadline = session.deadline()
    incarnation = await _living(session, name, deadline)
    call = SetLog(name, wire_id(incarnation), _timeout_ms(session), dict(priorities))
    catalog, what = session.routing.catalog, f"settings of {name}"
    await session.change(catalog, what, call, Idempotency.IDEMPOTENT, deadline=deadline)


async def list_logs(session: Session, deadline: float | None = None) -> list[LogFound]:
    """All logs, sorted by name."""
    catalog = session.routing.catalog
    found = await session.ask(catalog, "list of logs", ListLogs(), deadline=deadline)
    return sorted(found.logs, key=lambda log: log.name)


async def cluster_status(session: Session) -> ClusterStatus:
    """The status of the cluster, as far as the nodes that answer know. One answer is enough."""
    routing, deadline = session.routing, session.deadline()
    asked = await _ask_all(session, routing.addresses(sorted(routing.nodes)), deadline)
    # The first answers may have named nodes that were not known.
    known = {place for answer in _answers(asked) for place in answer.nodes.values()}
    asked |= await _ask_all(session, sorted(known.difference(asked)), deadline)
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


async def _ask_all(
    session: Session, addresses: list[str], deadline: float
) -> dict[str, NodeStatus | str]:
    """The answer of each address, or why there is none."""
    answers = await asyncio.gather(*(_ask_one(session, one, deadline) for one in addresses))
    return dict(zip(addresses, answers, strict=True))


async def _ask_one(session: Session, address: str, deadline: float) -> NodeStatus | str:
    timeout_s = min(session.retry_limits.status_s, deadline - session.clock())
    try:
        async with asyncio.timeout(timeout_s):
            requests = await session.pool.connect(address)
            return await requests.call(Status())
    except TimeoutError:
        return f"no answer in {round(max(0.0, timeout_s), 2):g} s"
    except (Lost, Unreachable, OSError, QuorateError) as error:
        return reason(error)


def _timeout_ms(session: Session) -> int:
    """Milliseconds after which a node answers that it is not done: less than the client waits."""
    return max(1, int(500 * min(session.retry_limits.answer_s, session.timeout)))
