"""The catalog on one node: reads it, looks logs up in it, and changes it on its leader.

Lookups and judgements use the table, which has all records that were read. The steps that follow
from a record may take longer on this node, for example while a disk is full.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import time_ns
from typing import TYPE_CHECKING

from quorate.batch import Batch, encode_batch
from quorate.entry import decode_entry
from quorate.entry_body import unpack_batches
from quorate.errors import (
    Damaged,
    InvalidArgument,
    LogNotFound,
    NotLeader,
    OffsetMismatch,
    OffsetOutOfRange,
    QuorateError,
)
from quorate.server.logs.attempt import ChangeAttempt
from quorate.server.logs.catalog import (
    Change,
    LogFacts,
    encode_change,
    encode_placement,
    judge_create,
    judge_delete,
    judge_found,
)
from quorate.server.logs.disk import no_room_for_log
from quorate.server.logs.log_lifecycle import RETRY_S, LogLifecycle
from quorate.state.judge import AppendConditions
from quorate.wire.calls import AwaitCatalog
from quorate.wire.shapes import check_log_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from quorate.net.links import PeerLinks
    from quorate.replica.reader import Fetched
    from quorate.replica.replica import Replica
    from quorate.server.logs.disk import Disk
    from quorate.server.logs.replicas import HostedLog, Replicas
    from quorate.server.manifest import ManifestFile
    from quorate.types import NodeId

__all__ = ["CatalogService"]

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
WAIT_S = 30.0
# How long a request waits for a log that is in the catalog and not open here yet: a full disk may
# delay the steps before it, and a long log takes long to open.
MAKING_S = 1.0
# How long a peer may take to answer whether its disk has space.
ASK_S = 0.5


class CatalogService:
    """Reads the catalog's log, and writes to it on its leader."""

    def __init__(
        self,
        node: NodeId,
        replicas: Replicas,
        stored: ManifestFile,
        links: PeerLinks,
        disk: Disk,
    ) -> None:
        self.disk = disk
        self._node = node
        self._replicas = replicas
        self._stored = stored
        self._links = links
        self.lifecycle = LogLifecycle(node, replicas, stored, self._moved)
        self.catalog = self.lifecycle.catalog
        # Futures of tasks that wait until more records are read or carried out.
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def _replica(self) -> Replica:
        return self._replicas.catalog

    # -- following -----------------------------------------------------------------------------

    async def follow(self) -> None:
        """Read the catalog's records, one after another, without end. Raises ReplicaHalted."""
        told = ""
        catalog = self.catalog
        while True:
            try:
                fetched = await self._replica.fetch(catalog.applied, FETCH_BYTES, WAIT_S, 0)
            except OffsetOutOfRange as error:
                # A replica raises it behind a barrier: the whole cluster lost records carried out
                # here.
                raise Damaged(
                    f"{self._node} has carried out {catalog.applied} records of the catalog, and "
                    f"the catalog has fewer: {error}; do not go on with this cluster, copy its logs"
                ) from error
            except QuorateError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("the catalog cannot be read error=%s", told)
                await asyncio.sleep(RETRY_S)
                continue
            for value in _values(fetched, catalog.applied):
                self.lifecycle.apply(value)
            self._moved()

    # -- waiting -------------------------------------------------------------------------------

    def _moved(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def _move(self) -> None:
        """Return when more records are read or carried out."""
        moved = asyncio.get_running_loop().create_future()
        self._waiting.add(moved)
        try:
            await moved
        finally:
            self._waiting.discard(moved)

    async def reach(self, offset: int) -> None:
        """Return once all records below ``offset`` are carried out here."""
        while self.lifecycle.carried < offset:
            await self._move()

    async def refresh(self) -> None:
        """Return once all records that the catalog acknowledged before this call are carried
        out."""
        await self.reach(await self.learn())

    async def learn(self) -> int:
        """Read all records that the catalog acknowledged before this call; returns its end
        offset."""
        answer = await self._replica.barrier()
        await self._know(answer.end_offset)
        return answer.end_offset

    async def _know(self, offset: int) -> None:
        """Return once all records below ``offset`` are in the table."""
        while self.catalog.applied < offset:
            await self._move()

    # -- finding -------------------------------------------------------------------------------

    async def find(self, name: str) -> LogFacts:
        """Find a log by its name. Raises LogNotFound only behind a barrier."""
        facts = self.catalog.named(name)
        # A log without a replica here may be deleted: after a start the table is old for a while.
        if facts is None or not self._replicas.has(facts.incarnation):
            await self.learn()
            facts = self.catalog.named(name)
        if facts is None:
            raise LogNotFound(f"log {name} does not exist")
        return facts

    async def hosted(self, incarnation: int) -> HostedLog:
        """The log with its replica on this node. Raises LogNotFound only behind a barrier."""
        found = self._replicas.get(incarnation)
        if found is not None:
            return found
        self._check_down(incarnation)
        await self.learn()
        if self.catalog.find(incarnation) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAKING_S):
                    await self._come(incarnation)
            found = self._replicas.get(incarnation)
        if found is not None:
            return found
        if self.catalog.find(incarnation) is None:
            raise LogNotFound(f"no log has incarnation {incarnation:032x}")
        self._check_down(incarnation)
        late = self.lifecycle.why_late(incarnation)
        if late:
            why = f"no room for this log yet: {late}"
        else:
            opening = self.lifecycle.is_opening(incarnation)
            why = "not opened this log yet" if opening else "not made this log yet"
        raise NotLeader(f"{self._node} has {why}")

    async def _come(self, incarnation: int) -> None:
        """Return once a log of the table is open or down here, or its step failed. The steps of
        other logs are not waited for."""
        while not self._replicas.has(incarnation) and not self.lifecycle.why_late(incarnation):
            facts = self.catalog.find(incarnation)
            if facts is None or self._node not in facts.nodes:
                return
            await self._move()

    def _check_down(self, incarnation: int) -> None:
        """Raises NotLeader if the log's replica halted here: clients turn to another node on that
        error, both to read and to write."""
        down = self._replicas.halted.get(incarnation)
        if down is not None:
            raise NotLeader(
                f"{self._node} has stopped its replica of log {down.name}: {down.reason}; ask "
                f"another node"
            )

    async def readable(self, incarnation: int) -> Replica:
        """A replica that has learnt the end of its log since it was opened.

        Until then the replica knows no entry to be committed: it would show an empty log.
        """
        replica = (await self.hosted(incarnation)).replica
        if incarnation not in self._replicas.readable:
            await replica.barrier()
            # A log that was closed or halted meanwhile is forgotten already.
            if self._replicas.get(incarnation) is not None:
                self._replicas.readable.add(incarnation)
        return replica

    # -- leading -------------------------------------------------------------------------------

    async def create(
        self, name: str, incarnation: int, timeout_s: float, drawn_at: int
    ) -> LogFacts:
        """Make a log, and return once a leader serves it."""
        check_log_name(name)
        self._check_incarnation(incarnation)
        attempt = ChangeAttempt()
        nodes = tuple(sorted(self._stored.manifest.nodes))
        async with attempt.within(timeout_s):
            while True:
                end = await self._lead()
                found = judge_create(self.catalog, name, incarnation, drawn_at)
                if isinstance(found, QuorateError):
                    raise found
                if found is None:
                    self._replicas.check_files()
                    await self._check_disks()
                    found = LogFacts(name, incarnation, nodes, time_ns() // 1000)
                    made = encode_change(Change(made=True, log=found))
                    if not await self._append(made, end, attempt):
                        continue
                await self._serving(incarnation)
                return found

    async def delete(self, name: str, incarnation: int, timeout_s: float) -> None:
        """Delete a log, and return once a majority of nodes has deleted it."""
        self._check_incarnation(incarnation)
        attempt = ChangeAttempt()
        async with attempt.within(timeout_s):
            while True:
                end = await self._lead()
                found = judge_delete(self.catalog, name, incarnation)
                if isinstance(found, QuorateError):
                    raise found
                if found is not None:
                    deleted = encode_change(Change(made=False, log=found))
                    if not await self._append(deleted, end, attempt):
                        continue
                await self._majority(self.catalog.applied, timeout_s)
                return

    async def set_priorities(
        self, name: str, incarnation: int, priorities: Mapping[str, int], timeout_s: float
    ) -> None:
        """Set the priorities of some nodes of a log, and return once its members have them."""
        attempt = ChangeAttempt()
        async with attempt.within(timeout_s):
            while True:
                end = await self._lead()
                found = judge_found(self.catalog, name, incarnation)
                if isinstance(found, QuorateError):
                    raise found
                before = self.catalog.placement(incarnation)
                assert before is not None  # the log was just found
                wanted = before.with_priorities(name, priorities)
                if wanted != before:
                    placed = encode_placement(found, wanted)
                    if not await self._append(placed, end, attempt):
                        continue
                await self._placed(name, incarnation)
                return

    def _check_incarnation(self, incarnation: int) -> None:
        """Raises InvalidArgument for the catalog's incarnation: a client draws the incarnation of a
        new log, and could draw that one."""
        if incarnation == self._replicas.catalog_incarnation:
            raise InvalidArgument(
                f"incarnation {incarnation:032x} is that of the catalog: draw another one"
            )

    @property
    def no_room(self) -> str:
        """The reason why another log has no space on this node; empty if there is space."""
        use = self.disk.look()
        return str(use) if use.full else ""

    async def _check_disks(self) -> None:
        """Raises DiskFull unless a majority of disks, including that of this node, has space for a
        new log. A node that does not answer is not asked twice: it may be down."""
        nodes = [*self._stored.manifest.nodes]
        told = await asyncio.gather(*map(self._ask_room, nodes))
        full = [(node, why) for node, why in zip(nodes, told, strict=True) if why]
        if self._node in dict(full) or 2 * len(full) >= len(nodes):
            raise no_room_for_log(full)

    async def _ask_room(self, node: NodeId) -> str:
        if node == self._node:
            return self.no_room
        try:
            call = AwaitCatalog(0, int(ASK_S * 1000))
            return (await self._links.call(node, call, ASK_S)).no_room
        except (QuorateError, OSError):
            return ""

    async def _lead(self) -> int:
        """The end offset of the catalog, if this node leads it and has read all of it."""
        leader = self._replica.leader
        if leader != self._node:
            raise NotLeader(
                f"{self._node} does not lead the catalog; leader: {leader or 'none'}", leader=leader
            )
        return await self.learn()

    async def _append(self, record: bytes, end: int, attempt: ChangeAttempt) -> bool:
        """Append a record; False if another one came in between."""
        batch = encode_batch([record])
        attempt.logged = True
        try:
            receipt = await self._replica.append(batch, 1, AppendConditions(expect_offset=end))
        except OffsetMismatch:
            attempt.logged = False
            return False
        await self._know(receipt.offset + 1)
        return True

    async def _serving(self, incarnation: int) -> None:
        """Wait until a leader serves the log: a barrier passes only after a leader has committed
        the first entry of its term."""
        while not self.catalog.is_gone(incarnation):
            await self._come(incarnation)
            hosted = self._replicas.get(incarnation)
            if incarnation in self._replicas.halted:
                return  # this node cannot see whether a leader serves it
            if hosted is not None:  # else this node has no space for it yet
                with suppress(QuorateError):
                    await hosted.replica.barrier()
                    return
            await asyncio.sleep(RETRY_S)
        raise LogNotFound(f"incarnation {incarnation:032x} was deleted meanwhile")

    async def _placed(self, name: str, incarnation: int) -> None:
        """Wait until the log has the members that the newest placement asks for: its leader carries
        that out, and this node sees it in its own replica."""
        while (placement := self.catalog.placement(incarnation)) is not None:
            hosted = self._replicas.get(incarnation)
            logged = hosted.replica.engine.state.membership if hosted is not None else None
            if placement.record <= (logged.membership.intent if logged is not None else 0):
                return
            if incarnation in self._replicas.halted:
                return  # this node cannot see whether the leader has carried it out
            await asyncio.sleep(RETRY_S)
        raise LogNotFound(f"log {name} was deleted meanwhile")

    async def _majority(self, offset: int, timeout_s: float) -> None:
        """Return once a majority of nodes has carried out the catalog up to ``offset``."""
        nodes = self._stored.manifest.nodes
        missing = len(nodes) // 2 + 1
        call = AwaitCatalog(offset, int(timeout_s * 1000))
        asked = {asyncio.create_task(self._ask(node, call, timeout_s)) for node in nodes}
        waiting = asked
        try:
            while missing > 0:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # An error here is a bug, and no answer: the node may not have deleted the log.
                missing -= len([task.result() for task in done])
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, node: NodeId, call: AwaitCatalog, timeout_s: float) -> None:
        if node == self._node:
            await self.reach(call.offset)
            return
        while True:
            with suppress(QuorateError, OSError):
                await self._links.call(node, call, timeout_s)
                return
            await asyncio.sleep(RETRY_S)


def _values(fetched: Fetched, start: int) -> Iterator[bytes]:
    """The values of all records from offset ``start`` on."""
    data = b"".join(fetched.buffers)
    position = 0
    for offset, _, size, _ in fetched.rows:
        entry = decode_entry(data[position : position + size])
        position += size
        records = (record for batch, _ in unpack_batches(entry) for record in Batch.parse(batch))
        for place, record in enumerate(records, offset):
            if place >= start:
                yield record.value
