"""Makes, opens and deletes logs on a node: executes the steps of the reconciler in the loop.

A log is in the manifest before its replica sends its first message, and stays there until its last
file is removed: a node loses in a crash all knowledge that it has only in memory.
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

# Pause after a temporary failure: a full disk, a barrier without a leader, an absent peer.
RETRY_S = 0.25


class Carrier:
    """Brings the logs of this node in line with the catalog, whose table it owns."""

    def __init__(
        self, node: NodeId, replicas: Replicas, stored: ManifestFile, moved: Callable[[], None]
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._stored = stored
        # Called each time that more records of the catalog are carried out.
        self._moved = moved
        self._kept = TableFile(replicas.directory)
        self.catalog = self._kept.read()
        self._plan = Reconciler(
            node, stored.manifest, self.catalog, replicas.directory.incarnations(),
            replicas.has, replicas.catalog_incarnation,
        )  # fmt: skip
        self._came = asyncio.Event()
        # The timer after which the steps that were put off are tried again.
        self._retrying: asyncio.TimerHandle | None = None

    # -- the catalog's table -------------------------------------------------------------------

    def apply(self, value: bytes) -> None:
        """Apply the next record of the catalog."""
        change: Change | None = self.catalog.apply(value)
        if change is not None:
            self._plan.take(change)
        self._came.set()

    @property
    def carried(self) -> int:
        """The number of catalog records that are carried out here or put off for lack of space."""
        return self._plan.carried

    def why_late(self, incarnation: int) -> str | None:
        """The reason why a log is not here although it should be; None if no step failed."""
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
        """Open each log that is made, and finish each deletion that was begun."""
        with self._stored.gathering():
            await asyncio.gather(*map(self._carry_out, self._plan.first_steps()))

    async def run(self) -> None:
        """Carry out steps, one after another, without end. Raises ReplicaHalted."""
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
            # The next start would miss the files of a log that its manifest names.
            await self._record({incarnation: None})
        await self._replicas.with_files(remove_log, incarnation)
        self._plan.removed(incarnation)
        if life is not None:
            await self._record({incarnation: None})
            log.info("log deleted log=%s incarnation=%s", life.name, f"{incarnation:032x}")

    async def _record(self, lives: Mapping[int, LogLife | None]) -> None:
        """Change the manifest; the change is durable when this returns. Raises OSError."""
        with self._plan.recorded(lives):
            await self._stored.save()

    async def _keep_table(self) -> None:
        """Write the table to disk from time to time, so that the next start need not read the whole
        catalog. The write is not urgent: it is skipped while the disk has no space."""
        applied = self.catalog.applied
        if applied < self._kept.applied + TABLE_EVERY or not self._plan.deletions_done:
            return
        try:
            await self._replicas.in_directory(partial(self._kept.write, self.catalog.encode()))
        except OSError as error:
            self._check_passing(error)
        else:
            self._kept.applied = applied

    # -- temporary failures --------------------------------------------------------------------

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``act`` until it succeeds. It waits through temporary failures, such as a full
        disk; other errors are raised."""
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
        """The text of a temporary failure: no space, or too many open files. Raises DiskFailed for
        each other error."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, Busy) or (isinstance(cause, OSError) and cause.errno in PASSING):
                return str(cause)
            cause = cause.__cause__
        if isinstance(error, DiskFailed):
            raise error
        raise DiskFailed(f"{self._node}: the catalog: {error}") from error
