"""The disk failures of a node, counted in its manifest: after a failure the next start waits, and
after several in a row it waits longer, so that repeated restarts do not wear the disk out."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.errors import DiskFailed
from quorate.storage.disk_errors import PASSING

if TYPE_CHECKING:
    from quorate.server.manifest import ManifestFile
    from quorate.types import NodeId

__all__ = ["DiskFailures"]

log = logging.getLogger(__name__)

# Seconds that a start waits after one failure, and at most.
FAILURE_WAIT_S = 1.0
FAILURE_WAIT_S_MAX = 60.0
# A node that ran for this time has a working disk.
SOUND_S = 60.0


class DiskFailures:
    """The disk failures in a row before this process, and the failure of this process."""

    def __init__(self, node: NodeId, stored: ManifestFile) -> None:
        self._node = node
        self._stored = stored

    async def wait(self, stopping: asyncio.Future[None]) -> None:
        """Wait longer the more failures there were; no longer once ``stopping`` is done."""
        failures = self._stored.manifest.failures
        if failures:
            wait_s = min(FAILURE_WAIT_S * 2 ** (failures - 1), FAILURE_WAIT_S_MAX)
            log.warning("the disk failed before: waiting failures=%d seconds=%s", failures, wait_s)
            await asyncio.wait([stopping], timeout=wait_s)

    def remember(self) -> None:
        """Count a disk failure before the process ends, so that the next start waits."""
        self._stored.manifest.failures += 1
        with suppress(OSError):  # it is the disk that failed
            self._stored.save_now()

    async def forget(self) -> None:
        """Forget the failures once the node has run for long. Raises DiskFailed."""
        await asyncio.sleep(SOUND_S)
        if self._stored.manifest.failures:
            self._stored.manifest.failures = 0
            try:
                await self._stored.save()
            except OSError as error:  # without room the next change of the manifest writes it
                if error.errno not in PASSING:
                    raise DiskFailed(f"{self._node}: the manifest: {error}") from error
