"""A client's session over real sockets, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING

from quorate.client.administration import find_log
from quorate.client.asynchronous import AsyncLog
from quorate.client.retries import RetryLimits
from quorate.client.routing import Routing
from quorate.client.session import Session
from quorate.commands import Receipt
from quorate.wire.calls import FindLog
from scripted_node import ScriptedNode, found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from quorate.client.results import Record

__all__ = ["LATER", "RECEIPT", "SOON", "all_of", "cluster", "log_of", "on_loop", "stopped"]

# Short, so that giving up costs a test little; what is asserted does not depend on it.
QUICK = RetryLimits(
    dial_s=2.0, answer_s=1.0, follow_s=0.1, status_s=2.0, pause_min_s=0.001, pause_max_s=0.01
)
# Time for what is to succeed, and for what is to be given up.
LATER = 30.0
SOON = 1.0

RECEIPT = Receipt(0, 1, 2, 1, 2)


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own; nothing may be left on it."""

    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        async def whole() -> None:
            await test(*args, **kwargs)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(whole())

    return run


@asynccontextmanager
async def cluster(*names: str) -> AsyncIterator[tuple[Session, list[ScriptedNode]]]:
    """Nodes that know each other, and a client that knows the first of them."""
    nodes = [ScriptedNode(name) for name in names]
    for node in nodes:
        await node.start()
    places = {node.name: node.address for node in nodes}
    for node in nodes:
        node.nodes = places
        node.will(FindLog, found(node, leader=names[0]))
    session = Session(Routing((nodes[0].address,)), LATER, QUICK)
    try:
        yield session, nodes
    finally:
        await session.close()
        for node in nodes:
            await node.stop()


async def all_of(records: AsyncIterator[Record]) -> list[Record]:
    return [record async for record in records]


async def stopped(session: Session, node: ScriptedNode) -> None:
    """Stop ``node``, and wait until the client knows that it is gone."""
    requests = await session.pool.connect(node.address)
    await node.stop()
    await requests.ended


async def log_of(session: Session) -> AsyncLog:
    return AsyncLog(session, await find_log(session, "orders"))
