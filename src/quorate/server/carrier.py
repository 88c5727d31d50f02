"""Makes and deletes logs on a node, as the catalog says.

Records are carried out one after the other, and the manifest says how many were. A log is in the
manifest before its replica says a word, and stays there until its last file is gone: what a node
knew only in memory it forgets with its next crash. Whatever is done may be done again.

Only a log for which there is no room is put off: what comes after it may free some, and others
wait for that. The manifest does not count beyond it, so the next start finds it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeGuard

from quorate.errors import DiskFailed
from quorate.server.manifest import PASSING, drop_spare, remove_log
from quorate.storage.manifest import LogLife, LogState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.server.catalog import Change, LogFacts
    from quorate.server.manifest import ManifestFile
    from quorate.server.replicas import Replicas
    from quorate.storage.directory import DataDirectory
    from quorate.types import NodeId

__all__ = ["RETRY_S", "Carrier"]

log = logging.getLogger(__name__)

# After a failure that passes: a full disk, a barrier without a leader, a peer that is away.
RETRY_S = 0.25


class Carrier:
    """Carries out what it is given, in that order."""

    def __init__(
        self,
        node: NodeId,
        replicas: Replicas,
        stored: ManifestFile,
        is_gone: Callable[[int], bool],
        moved: Callable[[], None],
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._stored = stored
        # Whether a log is deleted by some record that is known, if not carried out yet.
        self._is_gone = is_gone
        # Told each time that the number below moves.
        self._moved = moved
        # So many records were carried out or put off.
        self.carried = 0
        # Those after them.
        self._changes: deque[Change | None] = deque()
        self._came = asyncio.Event()
        # Logs that are put off: the number of the record of each, and what it says.
        self._late: dict[int, tuple[int, LogFacts]] = {}

    def put(self, change: Change | None) -> None:
        """The next record of the catalog; None if it changes nothing."""
        self._changes.append(change)
        self._came.set()

    def is_late(self, incarnation: int) -> bool:
        """Whether a log is not here because there is no room for it."""
        return incarnation in self._late

    async def run(self) -> None:
        """Carry out record after record, for ever. Raises ReplicaHalted."""
        while True:
            while self._changes:
                change = self._changes.popleft()
                # What a run before this one did is only counted.
                if self.carried >= self._stored.manifest.applied:
                    await self._carry_out(change)
                self.carried += 1
                self._moved()
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._late else None):
                    self._came.clear()
                    await self._came.wait()
            for _, facts in [*self._late.values()]:
                if await self._make(facts, self.carried):
                    del self._late[facts.incarnation]
                    await self._count(self.carried)

    async def _carry_out(self, change: Change | None) -> None:
        number = self.carried
        if change is None or self._node not in change.log.nodes:
            pass
        elif not change.made:
            await self._delete(change.log.incarnation)
        elif self._is_gone(change.log.incarnation):
            pass  # it would be made for nothing; and after a start, for the second time
        elif not await self._make(change.log, number + 1):
            self._late[change.log.incarnation] = number, change.log
        await self._count(number + 1)

    # -- counting ------------------------------------------------------------------------------

    async def _count(self, done: int) -> None:
        """So many are done. Not urgent: what is done twice is done."""
        if self._proven(done) > self._stored.manifest.applied:
            self._stored.manifest.applied = self._proven(done)
            try:
                await self._stored.save()
            except OSError as error:
                self._check_passing(error)

    def _proven(self, done: int) -> int:
        """How many the manifest may count, if ``done`` are: all before the first that it lacks."""
        manifest = self._stored.manifest
        missing = [number for key, (number, _) in self._late.items() if key not in manifest.logs]
        return max(manifest.applied, min(missing, default=done))

    # -- making --------------------------------------------------------------------------------

    async def _make(self, facts: LogFacts, done: int) -> bool:
        """Whether the log is here; not if there is no room for it."""
        name, incarnation, nodes, created_us = facts
        try:
            if incarnation not in self._stored.manifest.logs:
                await self._replicas.make_directory(incarnation)
                life = LogLife(LogState.MADE, created_us, nodes, name)
                await self._write_down(incarnation, life, done)
            if self._replicas.get(incarnation) is None:
                await self._replicas.open(incarnation, name, nodes)
                log.info("log made log=%s incarnation=%s", name, f"{incarnation:032x}")
        except (OSError, DiskFailed) as error:
            cause = self._check_passing(error)
            if incarnation not in self._late:
                log.warning("log put off log=%s error=%s", name, str(cause))
            return False
        return True

    async def _write_down(self, incarnation: int, life: LogLife, done: int) -> None:
        manifest = self._stored.manifest
        before = manifest.applied
        manifest.logs[incarnation] = life
        manifest.applied = self._proven(done)
        try:
            await self._stored.save()
        except OSError:
            # Nobody may take it for made.
            del manifest.logs[incarnation]
            manifest.applied = before
            raise

    # -- deleting ------------------------------------------------------------------------------

    async def _delete(self, incarnation: int) -> None:
        manifest = self._stored.manifest
        self._late.pop(incarnation, None)
        life = manifest.logs.get(incarnation)
        if life is not None:
            await self._give_up(incarnation)
            manifest.logs[incarnation] = life._replace(state=LogState.DELETING)
            await self._patiently(self._save)
            await self.finish_deleting(incarnation)
            log.info("log deleted log=%s incarnation=%s", life.name, f"{incarnation:032x}")
        else:
            # It may have got as far as a directory.
            await self._with_files(remove_log, incarnation)

    async def _give_up(self, incarnation: int) -> None:
        """Leave a log, with the room that it took ahead: on a full disk the manifest finds some
        there."""
        await self._replicas.close(incarnation)
        await self._with_files(drop_spare, incarnation)

    async def _save(self) -> None:
        """Write the manifest, if need be where those were that are to be deleted next."""
        try:
            await self._stored.save()
        except OSError:
            next_ones = [change.log.incarnation for change in self._changes if _deletes(change)]
            for incarnation in filter(self._replicas.get, next_ones):
                await self._give_up(incarnation)
            raise

    async def finish_deleting(self, incarnation: int) -> None:
        """Remove what is left of a log. Durable with the next manifest."""
        await self._with_files(remove_log, incarnation)
        del self._stored.manifest.logs[incarnation]

    async def _with_files(
        self, act: Callable[[DataDirectory, int], None], incarnation: int
    ) -> None:
        loop, directory = asyncio.get_running_loop(), self._replicas.directory
        await self._patiently(lambda: loop.run_in_executor(None, act, directory, incarnation))

    # -- what passes ---------------------------------------------------------------------------

    async def _patiently(self, act: Callable[[], Awaitable[None]]) -> None:
        """What passes is waited for, such as a full disk. Anything else is the end."""
        told = ""
        while True:
            try:
                await act()
                if told:
                    log.info("the catalog goes on")
                return
            except OSError as error:
                cause = self._check_passing(error)
                if str(cause) != told:
                    told = str(cause)
                    log.warning("the catalog waits error=%s", told)
            await asyncio.sleep(RETRY_S)

    def _check_passing(self, error: OSError | DiskFailed) -> OSError:
        """What the system refused for now. Raises DiskFailed if it is anything else."""
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in PASSING:
            raise DiskFailed(f"{self._node}: the catalog: {error}") from cause
        return cause


def _deletes(change: Change | None) -> TypeGuard[Change]:
    return change is not None and not change.made
