"""The handlers of calls, the rare requests: each call type has one method that finds its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.errors import InvalidArgument
from quorate.replica.exchange import Aborted, FenceChanged, Receipt
from quorate.server.catalog import INCARNATION_BYTES
from quorate.state import operations
from quorate.state.judge import Opened
from quorate.state.labels import Abort, Label, Part, Publish
from quorate.types import Role
from quorate.wire import calls as wire
from quorate.wire.calls import (
    Done,
    Ends,
    FenceSet,
    LogFound,
    Logs,
    LogStatus,
    NodeStatus,
    OffsetFound,
    ProducerOpened,
    ReplicaStatus,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.replica.shell import Replica
    from quorate.server.catalog import LogFacts
    from quorate.server.keeper import Keeper
    from quorate.server.members import Members
    from quorate.server.replicas import Down, Hosted, Replicas
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

    def __init__(self, members: Members, replicas: Replicas, keeper: Keeper) -> None:
        self._members = members
        self._replicas = replicas
        self._keeper = keeper
        # Answers made in this pass of the loop, shared by equal calls; see `_once`.
        self._made: dict[object, Any] = {}
        self._answers: dict[type[Call[Any]], Callable[[Any], Awaitable[Found]]] = {
            wire.FindLog: self._find_log,
            wire.ListLogs: self._list_logs,
            wire.CreateLog: self._create_log,
            wire.DeleteLog: self._delete_log,
            wire.ReadEnds: self._read_ends,
            wire.OffsetAt: self._offset_at,
            wire.OpenProducer: self._open_producer,
            wire.SetFence: self._set_fence,
            wire.Publish: self._publish,
            wire.AbortStaged: self._abort,
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
        return self._found(await self._keeper.find(call.name))

    async def _list_logs(self, call: wire.ListLogs) -> Logs:
        await self._keeper.learn()
        catalog = self._keeper.catalog
        # Two calls of one pass may have been promised different ends of the catalog.
        return self._once(
            (Logs, catalog.applied), lambda: Logs([self._found(facts) for facts in catalog.logs])
        )

    async def _create_log(self, call: wire.CreateLog) -> LogFound:
        incarnation = _incarnation(call.incarnation)
        timeout_s = _seconds(call.timeout_ms)
        return self._found(
            await self._keeper.create(call.name, incarnation, timeout_s, call.drawn_at)
        )

    async def _delete_log(self, call: wire.DeleteLog) -> Done:
        incarnation = _incarnation(call.incarnation)
        await self._keeper.delete(call.name, incarnation, _seconds(call.timeout_ms))
        return Done()

    def _found(self, facts: LogFacts) -> LogFound:
        hosted = self._replicas.get(facts.incarnation)
        leader = hosted.replica.leader if hosted is not None else None
        nodes: dict[str, str] = {node: self._members.addresses[node] for node in facts.nodes}
        return LogFound(facts.name, _bytes(facts.incarnation), leader, nodes)

    # -- one log -------------------------------------------------------------------------------

    async def _replica(self, log: bytes) -> Replica:
        return (await self._keeper.hosted(_incarnation(log))).replica

    async def _read_ends(self, call: wire.ReadEnds) -> Ends:
        if call.barrier:
            replica = await self._replica(call.log)
            index, end = await replica.barrier()
        else:
            replica = await self._keeper.readable(_incarnation(call.log))
            index, end = replica.engine.applied, replica.end_offset
        return Ends(replica.first_offset, end, index)

    async def _offset_at(self, call: wire.OffsetAt) -> OffsetFound:
        replica = await self._keeper.readable(_incarnation(call.log))
        end = replica.end_offset
        found = await replica.offset_at(call.time_us)
        if found >= end:
            # No record here is so late, but this replica may lag behind others that have one.
            await replica.barrier()
            found = await replica.offset_at(call.time_us)
        return OffsetFound(found)

    async def _open_producer(self, call: wire.OpenProducer) -> ProducerOpened:
        replica = await self._replica(call.log)
        opening = operations.OpenProducer(call.name, call.instance, call.window, call.expiry_us)
        opened = await replica.operation(opening)
        assert isinstance(opened, Opened)  # the answer to an opening
        return ProducerOpened(opened.epoch, opened.last_sequence)

    async def _set_fence(self, call: wire.SetFence) -> FenceSet:
        replica = await self._replica(call.log)
        changed = await replica.operation(operations.SetFence(call.fence, call.expect))
        assert isinstance(changed, FenceChanged)  # the answer to a fence
        return FenceSet(changed.index)

    async def stage(self, call: wire.StageChunk, batch: bytes, count: int) -> wire.ChunkStaged:
        """Stage a chunk, the one call with a batch; the caller has checked its ``count``
        records."""
        label = Label(call.app, call.run, call.batch_id, call.partition, call.attempt, call.number)
        replica = await self._replica(call.log)
        return wire.ChunkStaged(*await replica.stage(label, batch, count))

    async def _publish(self, call: wire.Publish) -> wire.Published:
        parts = tuple(
            Part(part.partition, part.attempt, part.chunks, part.records) for part in call.parts
        )
        publish = Publish(call.app, call.batch_id, parts, call.digest, call.fence, call.once)
        receipt = await (await self._replica(call.log)).operation(publish)
        assert isinstance(receipt, Receipt)  # the answer to a publish
        return wire.Published(*receipt)

    async def _abort(self, call: wire.AbortStaged) -> wire.Aborted:
        abort = Abort(call.app, call.batch_id, call.attempt)
        aborted = await (await self._replica(call.log)).operation(abort)
        assert isinstance(aborted, Aborted)  # the answer to an abort
        return wire.Aborted(*aborted)

    async def _last_published(self, call: wire.LastPublished) -> wire.LastFound:
        replica = await self._replica(call.log)
        await replica.barrier()
        app = replica.engine.state.staging.app(call.app)
        if app is None:
            return wire.LastFound()
        return wire.LastFound(app.batch_id, app.offset, app.count, app.index, app.digest)

    # -- the cluster ---------------------------------------------------------------------------

    async def _status(self, call: wire.Status) -> NodeStatus:
        return self._once(NodeStatus, self._look)

    def _look(self) -> NodeStatus:
        own, addresses = self._members.own, self._members.addresses
        down = map(_status_down, self._replicas.down.values())
        logs = sorted([*map(_status_of, self._replicas), *down], key=lambda one: one.name)
        use = self._keeper.disk.look()
        return NodeStatus(own.node, addresses[own.node], addresses, logs, use.used, use.full)

    def _once(self, what: object, make: Callable[[], FoundT]) -> FoundT:
        """Make an answer once per pass of the loop: its cost grows with the number of logs, and a
        request of a few bytes must not cause that cost again and again."""
        if not self._made:
            asyncio.get_running_loop().call_soon(self._made.clear)
        if what not in self._made:
            self._made[what] = make()
        found: FoundT = self._made[what]
        return found


def _status_of(hosted: Hosted) -> LogStatus:
    status = hosted.replica.status()
    return LogStatus(
        hosted.name,
        _bytes(hosted.incarnation),
        _ROLES[status.role],
        status.leader,
        status.term,
        status.first_offset,
        status.end_offset,
        status.committed,
        status.last,
        status.staged_bytes,
        [ReplicaStatus(*peer) for peer in status.peers],
        status.full,
        unsure=status.unsure,
    )


def _status_down(down: Down) -> LogStatus:
    return LogStatus(
        down.name, _bytes(down.incarnation), _ROLES[Role.FOLLOWER], None, 0, 0, 0, 0, 0, 0, [],
        halted=down.reason,
    )  # fmt: skip


def _incarnation(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _bytes(incarnation: int) -> bytes:
    return incarnation.to_bytes(INCARNATION_BYTES, "little")


def _seconds(timeout_ms: int) -> float:
    return min(timeout_ms, TIMEOUT_MS_MAX) / 1000
