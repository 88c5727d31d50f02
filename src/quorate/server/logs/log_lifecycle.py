"""Makes, opens and deletes logs on a node: executes the steps of the reconciler in the loop.

Logs are opened side by side, and beside all other steps: a log that takes long to open holds up no
other log that is open, made or deleted. Only so many logs with content are opened at a time; the
other ones with content wait for them.

A log is in the manifest before its replica sends its first message, and stays there until its last
file is removed: a node loses in a crash all knowledge that it has only in memory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from quorate.errors import Busy, DiskFailed
from quorate.replica.writer import THREADS
from quorate.server.logs.reconciler import Make, Open, Reconciler, Remove, Retire
from quorate.server.logs.replicas import CATALOG
from quorate.server.logs.table import TABLE_EVERY, TableFile
from quorate.server.manifest import OBSTRUCTED, drop_spare, remove_log
from quorate.storage.disk_errors import PASSING
from quorate.storage.manifest import LogLife, LogState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from quorate.server.logs.catalog import Change, LogFacts
    from quorate.server.logs.reconciler import Step
    from quorate.server.logs.replicas import Replicas
    from quorate.server.manifest import ManifestFile
    from quorate.types import NodeId

__all__ = ["RETRY_S", "LogLifecycle"]

log = logging.getLogger(__name__)

# Pause after a temporary failure: a full disk, a barrier without a leader, an absent peer.
RETRY_S = 0.25
# Logs with content that are opened at a time. One thread is left for new logs, which are empty, and
# for the chores of open ones.
LONG_OPENINGS = THREADS - 1


class LogLifecycle:
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
        # The last error that was logged of a table in whose place others put something.
        self._table_told = ""
        self.catalog = self._kept.read()
        self._plan = Reconciler(
            node, stored.manifest, self.catalog, replicas.directory.incarnations(),
            replicas.has, replicas.catalog_incarnation,
        )  # fmt: skip
        replicas.late = self._plan.late
        self._came = asyncio.Event()
        # Set once no log that was made before this start is being opened any more.
        self.logs_opened = asyncio.Event()
        # True when the steps were carried out that a start finds, but for the openings.
        self._settled = False
        # The timer after which the steps that were put off are tried again.
        self._retrying: asyncio.TimerHandle | None = None
        self._long_openings = asyncio.Semaphore(LONG_OPENINGS)

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

    @property
    def opening(self) -> list[str]:
        """The names of the logs that are being opened."""
        return self._plan.opening

    def is_opening(self, incarnation: int) -> bool:
        return self._plan.is_opening(incarnation)

    # -- work ----------------------------------------------------------------------------------

    async def open_catalog(self, nodes: tuple[NodeId, ...]) -> None:
        """Open the catalog, which is made on a node's first start. Raises ReplicaHalted."""
        replicas, own = self._replicas, self._replicas.catalog_incarnation
        if own not in self._stored.manifest.logs:
            await self._patiently(lambda: replicas.make_directory(own))
            life = LogLife(LogState.MADE, 0, nodes, CATALOG)
            await self._patiently(lambda: self._record({own: life}))
        await self._patiently(lambda: replicas.open_catalog(nodes))

    async def run(self) -> None:
        """Carry out steps without end: openings side by side, the others one after another. Raises
        ReplicaHalted. No opening is under way any more when this ends."""
        try:
            async with asyncio.TaskGroup() as openings:
                openings.create_task(self._gather_boots())
                await self._carry_out_all(openings)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _gather_boots(self) -> None:
        with self._stored.gathering():
            await self.logs_opened.wait()

    async def _carry_out_all(self, openings: asyncio.TaskGroup) -> None:
        """Carry out steps in passes. The pause before a retry begins when a pass has ended: no pass
        would end whose failing steps take longer than a pause that begins with the first of
        them."""
        while True:
            self._came.clear()
            await self._begin_openings(openings)
            while (step := self._plan.next()) is not None:
                await self._carry_out(step)
                await asyncio.sleep(0)  # many steps may fail without one wait
                await self._begin_openings(openings)
            self._settled = True
            self._look_whether_opened()
            self._moved()
            await self._keep_table()
            self._retry_later()
            await self._came.wait()

    async def _begin_openings(self, openings: asyncio.TaskGroup) -> None:
        for step in self._plan.openings():
            try:
                self._replicas.claim(step.incarnation)
            except Busy as busy:
                self._put_off(step, str(busy), lacks_files=True)
            else:
                openings.create_task(self._open(step))
            await asyncio.sleep(0)  # there may be thousands

    async def _open(self, step: Open) -> None:
        has_content = step.log.boot > 0  # it was open before
        try:
            async with self._long_openings if has_content else nullcontext():
                await self._replicas.open(step.incarnation, step.log.name, step.log.nodes)
        except (OSError, Busy, DiskFailed) as error:
            self._put_off(step, self._check_passing(error), lacks_files=isinstance(error, Busy))
        else:
            self._plan.opened(step)
        # A log that was deleted while it was being opened has its next step.
        self._came.set()
        self._look_whether_opened()
        self._moved()

    def _look_whether_opened(self) -> None:
        if self._settled and not self._plan.opens_any:
            self.logs_opened.set()

    def _retry_later(self) -> None:
        if self._plan.puts_off and self._retrying is None:
            self._retrying = asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = None
        self._plan.retry()
        self._plan.admit(max(0, self._replicas.logs_left))
        self._came.set()

    async def _carry_out(self, step: Make | Retire | Remove) -> None:
        try:
            if isinstance(step, Make):
                await self._make(step.log)
            elif isinstance(step, Retire):
                await self._retire(step.incarnations)
            else:
                await self._remove(step)
        except (OSError, Busy, DiskFailed) as error:
            if isinstance(step, Remove) and _is_obstructed(error):
                self._put_off(step, f"{error}; clear its folder", obstructed=True)
            else:
                lacks_files = isinstance(error, Busy)
                self._put_off(step, self._check_passing(error), lacks_files=lacks_files)
        self._moved()

    def _put_off(
        self, step: Step, why: str, *, obstructed: bool = False, lacks_files: bool = False
    ) -> None:
        deletes = isinstance(step, Retire | Remove)
        told = "deletion put off log=%s error=%s" if deletes else "log put off log=%s error=%s"
        for incarnation in self._plan.put_off(
            step, why, obstructed=obstructed, lacks_files=lacks_files
        ):
            log.warning(told, self._name(incarnation), why)

    def _name(self, incarnation: int) -> str:
        known = self.catalog.find(incarnation) or self._stored.manifest.logs.get(incarnation)
        return known.name if known is not None else f"{incarnation:032x}"

    async def _make(self, facts: LogFacts) -> None:
        name, incarnation, nodes, created_us = facts
        self._replicas.check_files()
        await self._replicas.make_directory(incarnation)
        await self._record({incarnation: LogLife(LogState.MADE, created_us, nodes, name)})
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
        if life is None and incarnation in self._plan.may_be_recorded:
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
        catalog. The write is not urgent: it is skipped while the disk has no space, or a directory
        is in its place."""
        applied = self.catalog.applied
        if applied < self._kept.applied + TABLE_EVERY or not self._plan.deletions_done:
            return
        try:
            await self._replicas.in_directory(partial(self._kept.write, self.catalog.encode()))
        except OSError as error:
            if not _is_obstructed(error):
                self._check_passing(error)
            elif str(error) != self._table_told:
                self._table_told = str(error)
                log.warning("the catalog's table is not written error=%s", self._table_told)
        else:
            self._kept.applied, self._table_told = applied, ""

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


def _is_obstructed(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in OBSTRUCTED
