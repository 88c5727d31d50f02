"""Makes, opens and deletes logs on a node: carries out what the reconciler says, in the loop.

A log is in the manifest before its replica says a word, and stays there until its last file is
gone: what a node knew only in memory it forgets with its next crash.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from quorate.errors import Busy, DiskFailed
from quorate.server.manifest import drop_spare, remove_log
from quorate.server.reconciler import Make, Open, Reconciler, Remove, Retire
from quorate.server.replicas import CATALOG
from quorate.server.table import TABLE_EVERY, TableFile
from quorate.storage.manifest import LogLife, LogState
from quorate.storage.steps import PASSING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from quorate.server.catalog import Change, LogFacts
    from quorate.server.manifest import ManifestFile
    from quorate.server.reconciler import Step
    from quorate.server.replicas import Replicas
    from quorate.types import NodeId

__all__ = ["RETRY_S", "Carrier"]

log = logging.getLogger(__name__)

# After a failure that passes: a full disk, a barrier without a leader, a peer that is away.
RETRY_S = 0.25


class Carrier:
    """Brings the logs of this node in line with the catalog, whose table it owns."""

    def __init__(
        self, node: NodeId, replicas: Replicas, stored: ManifestFile, moved: Callable[[], None]
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._stored = stored
        # Told each time that more is carried out.
        self._moved = moved
        self._kept = TableFile(replicas.directory)
        self.catalog = self._kept.read()
        self._plan = Reconciler(
            node, stored.manifest, self.catalog, replicas.directory.incarnations(),
            replicas.has, replicas.catalog_incarnation,
        )  # fmt: skip
        self._came = asyncio.Event()
        # Due when what was put off is tried again.
        self._retrying: asyncio.TimerHandle | None = None

    # -- what is known -------------------------------------------------------------------------

    def apply(self, value: bytes) -> None:
        """The next record of the catalog."""
        change: Change | None = self.catalog.apply(value)
        if change is not None:
            self._plan.take(change)
        self._came.set()

    @property
    def carried(self) -> int:
        """So many records are carried out here, or put off for want of room."""
        return self._plan.carried

    def why_late(self, incarnation: int) -> str | None:
        """Why a log is not here although it should be; None if nothing failed."""
        return self._plan.why_late(incarnation)

    # -- work ----------------------------------------------------------------------------------

    async def open_catalog(self, nodes: tuple[NodeId, ...]) -> None:
        """Open the catalog, which is made on a node's first start. Raises ReplicaHalted."""
        replicas, own = self._replicas, self._replicas.catalog_incarnation
        if own not in self._stored.manifest.logs:
            await self._patiently(lambda: replicas.make_directory(own))
            life = LogLife(LogState.MADE, 0, nodes, CATALOG)
            await self._patiently(lambda: self._record({own: life}))
        await self._patiently(lambda: replicas.open_catalog(nodes))

    async def open_logs(self) -> None:
        """Open every log that is made, and finish every deletion that was begun."""
        with self._stored.gathering():
            await asyncio.gather(*map(self._carry_out, self._plan.first_steps()))

    async def run(self) -> None:
        """Carry out step after step, for ever. Raises ReplicaHalted."""
        while True:
            self._came.clear()
            while (step := self._plan.next()) is not None:
                await self._carry_out(step)
            self._moved()
            await self._keep_table()
            await self._came.wait()

    def _retry(self) -> None:
        self._retrying = None
        self._plan.retry()
        self._came.set()

    async def _carry_out(self, step: Step) -> None:
        try:
            if isinstance(step, Make):
                await self._make(step.log)
            elif isinstance(step, Open):
                await self._replicas.open(step.incarnation, step.log.name, step.log.nodes)
            elif isinstance(step, Retire):
                await self._retire(step.incarnations)
            else:
                await self._remove(step)
        except (OSError, Busy, DiskFailed) as error:
            self._put_off(step, self._check_passing(error))
        self._moved()

    def _put_off(self, step: Step, why: str) -> None:
        deletes = isinstance(step, Retire | Remove)
        told = "deletion put off log=%s error=%s" if deletes else "log put off log=%s error=%s"
        for incarnation in self._plan.put_off(step, why):
            log.warning(told, self._name(incarnation), why)
        if self._retrying is None:
            self._retrying = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _name(self, incarnation: int) -> str:
        known = self.catalog.find(incarnation) or self._stored.manifest.logs.get(incarnation)
        return known.name if known is not None else f"{incarnation:032x}"

    async def _make(self, facts: LogFacts) -> None:
        name, incarnation, nodes, created_us = facts
        await self._replicas.make_directory(incarnation)
        await self._record({incarnation: LogLife(LogState.MADE, created_us, nodes, name)})
        await self._replicas.open(incarnation, name, nodes)
        log.info("log made log=%s incarnation=%s", name, f"{incarnation:032x}")

    async def _retire(self, incarnations: tuple[int, ...]) -> None:
        for incarnation in incarnations:
            await self._replicas.close(incarnation)
            await self._replicas.with_files(drop_spare, incarnation)
        lives = self._stored.manifest.logs
        await self._record(
            {one: lives[one]._replace(state=LogState.DELETING) for one in incarnations}
        )

    async def _remove(self, step: Remove) -> None:
        incarnation = step.incarnation
        life = self._stored.manifest.logs.get(incarnation)
        if life is None and incarnation in self._plan.in_doubt:
            # Its files would be missed by the next start.
            await self._record({incarnation: None})
        await self._replicas.with_files(remove_log, incarnation)
        self._plan.removed(incarnation)
        if life is not None:
            await self._record({incarnation: None})
            log.info("log deleted log=%s incarnation=%s", life.name, f"{incarnation:032x}")

    async def _record(self, lives: Mapping[int, LogLife | None]) -> None:
        """Change the manifest, for good when this returns. Raises OSError."""
        with self._plan.recorded(lives):
            await self._stored.save()

    async def _keep_table(self) -> None:
        """Now and then write the table down, so that the next start need not read all of the
        catalog. Not urgent: a disk without room can do without."""
        applied = self.catalog.applied
        if applied < self._kept.applied + TABLE_EVERY or not self._plan.deletions_done:
            return
        try:
            await self._replicas.in_directory(partial(self._kept.write, self.catalog.encode()))
        except OSError as error:
            self._check_passing(error)
        else:
            self._kept.applied = applied

    # -- what passes ---------------------------------------------------------------------------

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        """What passes is waited for, such as a full disk. Anything else is the end."""
        told = ""
        while True:
            try:
                await act()
                return
            except (OSError, Busy, DiskFailed) as error:
                cause = self._check_passing(error)
                if cause != told:
                    told = cause
                    log.warning("the catalog waits error=%s", told)
            await asyncio.sleep(RETRY_S)

    def _check_passing(self, error: Exception) -> str:
        """What the system refused for now: room, or another open file. Raises DiskFailed if it is
        anything else."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Busy) or (isinstance(cause, OSError) and cause.errno in PASSING):
                return str(cause)
            cause = cause.__cause__
        if isinstance(error, DiskFailed):
            raise error
        raise DiskFailed(f"{self._node}: the catalog: {error}") from error
