"""The handlers of calls, the rare requests: each call type has one method that finds its answer.

A command to a log is not among them: it is logged, as an append is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.errors import InvalidArgument
from quorate.server.logs.catalog import INCARNATION_BYTES
from quorate.types import NodeId, Role
from quorate.wire import calls as wire
from quorate.wire.calls import (
    Done,
    Ends,
    LogFound,
    Logs,
    LogStatus,
    NodeStatus,
    OffsetFound,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.replica.replica import Replica
    from quorate.server.identity.members import Members
    from quorate.server.logs.catalog import LogFacts
    from quorate.server.logs.catalog_service import CatalogService
    from quorate.server.logs.replicas import Down, HostedLog, Replicas
    from quorate.wire.calls import Call, Found

__all__ = ["Calls"]

FoundT = TypeVar("FoundT", Logs, NodeStatus)

# The maximum time that a call may wait; a longer timeout of a client is cut to it.
TIMEOUT_MS_MAX = 600_000

_ROLES = {
    Role.FOLLOWER: "follower",
    Role.PRE_CANDIDATE: "candidate",
    Role.CANDIDATE: "candidate",
    Role.LEADER: "leader",
}


class Calls:
    """Answers the calls of clients."""

    def __init__(
        self, members: Members, replicas: Replicas, catalog_service: CatalogService
    ) -> None:
        self._members = members
        self._replicas = replicas
        self._catalog_service = catalog_service
        # Answers made in this pass of the loop, shared by equal calls; see `_once`.
        self._made: dict[object, Any] = {}
        self._answers: dict[type[Call[Any]], Callable[[Any], Awaitable[Found]]] = {
            wire.FindLog: self._find_log,
            wire.ListLogs: self._list_logs,
            wire.CreateLog: self._create_log,
            wire.DeleteLog: self._delete_log,
            wire.SetLog: self._set_log,
            wire.ReadEnds: self._read_ends,
            wire.OffsetAt: self._offset_at,
            wire.TransferLog: self._transfer_log,
            wire.LastPublished: self._last_published,
            wire.Status: self._status,
        }

    async def answer(self, call: Call[Any]) -> Found:
        """Answer ``call``. Raises the error that is sent as the answer instead."""
        answer = self._answers.get(type(call))
        if answer is None:
            raise InvalidArgument(f"a client does not ask for {type(call).__name__}")
        return await answer(call)

    # -- logs ----------------------------------------------------------------------------------

    async def _find_log(self, call: wire.FindLog) -> LogFound:
        return self._found(await self._catalog_service.find(call.name))

    async def _list_logs(self, call: wire.ListLogs) -> Logs:
        await self._catalog_service.learn()
        catalog = self._catalog_service.catalog
        # Two calls of one pass may have been promised different ends of the catalog.
        return self._once(
            (Logs, catalog.applied), lambda: Logs([self._found(facts) for facts in catalog.logs])
        )

    async def _create_log(self, call: wire.CreateLog) -> LogFound:
        incarnation = _incarnation(call.incarnation)
        timeout_s = _seconds(call.timeout_ms)
        return self._found(
            await self._catalog_service.create(call.name, incarnation, timeout_s, call.drawn_at)
        )

    async def _delete_log(self, call: wire.DeleteLog) -> Done:
        incarnation = _incarnation(call.incarnation)
        await self._catalog_service.delete(call.name, incarnation, _seconds(call.timeout_ms))
        return Done()

    async def _set_log(self, call: wire.SetLog) -> Done:
        await self._catalog_service.set_priorities(
            call.name, _incarnation(call.incarnation), call.priorities, _seconds(call.timeout_ms)
        )
        return Done()

    def _found(self, facts: LogFacts) -> LogFound:
        hosted = self._replicas.get(facts.incarnation)
        leader = hosted.replica.leader if hosted is not None else None
        nodes: dict[str, str] = {node: self._members.addresses[node] for node in facts.nodes}
        return LogFound(facts.name, _bytes(facts.incarnation), leader, nodes)

    # -- one log -------------------------------------------------------------------------------

    async def _replica(self, log: bytes) -> Replica:
        return (await self._catalog_service.hosted(_incarnation(log))).replica

    async def _read_ends(self, call: wire.ReadEnds) -> Ends:
        if call.barrier:
            replica = await self._replica(call.log)
            index, end = await replica.barrier()
        else:
            replica = await self._catalog_service.readable(_incarnation(call.log))
            index, end = replica.engine.applied, replica.end_offset
        return Ends(replica.first_offset, end, index)

    async def _offset_at(self, call: wire.OffsetAt) -> OffsetFound:
        replica = await self._catalog_service.readable(_incarnation(call.log))
        end = replica.end_offset
        found = await replica.offset_at(call.time_us)
        if found >= end:
            # No record here is so late, but this replica may lag behind others that have one.
            await replica.barrier()
            found = await replica.offset_at(call.time_us)
        return OffsetFound(found)

    async def _transfer_log(self, call: wire.TransferLog) -> wire.LeaderMoved:
        target = None if call.target is None else NodeId(call.target)
        replica = await self._replica(call.log)
        return wire.LeaderMoved((await replica.transfer(target)).leader)

    async def _last_published(self, call: wire.LastPublished) -> wire.LastFound:
        replica = await self._replica(call.log)
        await replica.barrier()
        app = replica.engine.state.staging.app(call.app)
        if app is None:
            return wire.LastFound()
        return wire.LastFound(
            batch_id=app.batch_id,
            offset=app.offset,
            count=app.count,
            index=app.index,
            digest=app.digest,
        )

    # -- the cluster ---------------------------------------------------------------------------

    async def _status(self, call: wire.Status) -> NodeStatus:
        return self._once(NodeStatus, self._look)

    def _look(self) -> NodeStatus:
        own, addresses = self._members.own, self._members.addresses
        down = map(_status_down, self._replicas.down.values())
        logs = sorted([*map(_status_of, self._replicas), *down], key=lambda one: one.name)
        use = self._catalog_service.disk.look()
        return NodeStatus(
            id=own.node,
            address=addresses[own.node],
            nodes=addresses,
            logs=logs,
            disk_used=use.used,
            full=use.full,
        )

    def _once(self, what: object, make: Callable[[], FoundT]) -> FoundT:
        """Make an answer once per pass of the loop: its cost grows with the number of logs, and a
        request of a few bytes must not cause that cost again and again."""
        if not self._made:
            asyncio.get_running_loop().call_soon(self._made.clear)
        if what not in self._made:
            self._made[what] = make()
        found: FoundT = self._made[what]
        return found


def _status_of(hosted: HostedLog) -> LogStatus:
    status = hosted.replica.status()
    return LogStatus(
        name=hosted.name,
        incarnation=_bytes(hosted.incarnation),
        role=_ROLES[status.role],
        leader=status.leader,
        term=status.term,
        first_offset=status.first_offset,
        end_offset=status.end_offset,
        committed=status.committed,
        last=status.last,
        staged_bytes=status.staged_bytes,
        peers=list(status.peers),
        full=status.full,
        unsure=status.unsure,
        priorities=dict(status.priorities),
    )


def _status_down(down: Down) -> LogStatus:
    return LogStatus(
        name=down.name,
        incarnation=_bytes(down.incarnation),
        role=_ROLES[Role.FOLLOWER],
        leader=None,
        term=0,
        first_offset=0,
        end_offset=0,
        committed=0,
        last=0,
        staged_bytes=0,
        peers=[],
        halted=down.reason,
    )


def _incarnation(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(INCARNATION_BYTES, "little")


def _seconds(timeout_ms: int) -> float:
    return min(timeout_ms, TIMEOUT_MS_MAX) / 1000
