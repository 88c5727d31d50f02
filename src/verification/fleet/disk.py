"""The simulated data directory of a node: it outlives every process.

The file that says whose directory it is, is not simulated: making it is one step here. Its crashes
are tested over real files (tests/storage/test_directory.py).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.storage.layout import VOTE_COPIES, LogId
from quorate.storage.manifest import MANIFEST, Manifest
from verification.disk.inode import KEPT
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verification.disk.inode import Fate

__all__ = ["Directory", "FolderDisk", "PowerCut", "Trouble"]

# The calls that need room or another open file.
_NEEDS_ROOM = ("create", "allocate")


class PowerCut(Exception):
    """The power failed during a call of the disk: the process is gone."""


class Trouble:
    """The trouble of the next calls that change the disk of one node."""

    def __init__(self) -> None:
        # The number of calls before the power fails; None if it does not fail.
        self.calls_left: int | None = None
        # The error of a call that needs room; 0 if there is room.
        self.refusal = 0

    def meet(self) -> None:
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            self.calls_left = None
            raise PowerCut
        self.calls_left -= 1


class FolderDisk(SimulatedDisk):
    """One folder of the data directory."""

    def __init__(self, trouble: Trouble, *, refusable: bool) -> None:
        super().__init__()
        self.trouble = trouble
        # Whether a call may be refused now for want of room. An open log has allocated the room to
        # which it writes.
        self.refusable = refusable

    def meet(self, what: str) -> None:
        super().meet(what)
        self.trouble.meet()
        refusal = self.trouble.refusal
        if refusal and self.refusable and what.startswith(_NEEDS_ROOM):
            raise OSError(refusal, os.strerror(refusal), what)

    def close(self) -> None:
        """Close the folder, as a real directory is closed."""

    def twin(self, trouble: Trouble) -> FolderDisk:
        """A copy as a tool makes it by reading the files: all of it is durable."""
        copy = FolderDisk(trouble, refusable=self.refusable)
        vars(copy).update(vars(self.copy()))
        copy.sync_names()
        copy.power_cut(lambda: KEPT)
        return copy

    def sync_names(self) -> None:
        self._durable_files = dict(self.files)
        self._pending.clear()


class Directory:
    """The data directory of one node."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        # The storage id; None until the first start.
        self.storage: bytes | None = None
        self.root = FolderDisk(trouble, refusable=True)
        self.logs: dict[int, FolderDisk] = {}
        self._durable_logs: dict[int, FolderDisk] = {}
        # Logs whose folder was removed, or replaced by an older copy.
        self.lost_logs: set[int] = set()
        # Logs of ``lost_logs`` that have an older folder.
        self.older_logs: set[int] = set()

    # -- the calls of server/manifest.py -------------------------------------------------------

    def log_id(self, incarnation: int) -> LogId:
        assert self.storage is not None  # the node was started
        return LogId(incarnation, self.storage)

    def log_vfs(self, incarnation: int) -> FolderDisk:
        """The folder of a log; it is made if it does not exist."""
        self.trouble.meet()
        if incarnation not in self.logs:
            self.logs[incarnation] = FolderDisk(self.trouble, refusable=False)
        self._sync_logs()
        return self.logs[incarnation]

    def incarnations(self) -> list[int]:
        return sorted(self.logs)

    @contextmanager
    def room_needed(self, incarnation: int) -> Iterator[None]:
        """While this context is open, the calls for this log may be refused for want of room."""
        files = self.log_vfs(incarnation)
        files.refusable = True
        try:
            yield
        finally:
            files.refusable = False

    def has_log(self, incarnation: int) -> bool:
        """Whether the folder of a log holds a vote record."""
        files = self.logs.get(incarnation)
        return files is not None and any(name in files.files for name in VOTE_COPIES)

    def remove_log(self, incarnation: int) -> None:
        """Remove a log as server/manifest.py does: every file, the folder, then a sync of the
        folder above."""
        files = self.logs.get(incarnation)
        if files is not None:
            for name in files.names():
                files.unlink(name)
            self.trouble.meet()
            del self.logs[incarnation]
        self._sync_logs()
        self.lost_logs.discard(incarnation)
        self.older_logs.discard(incarnation)

    def _sync_logs(self) -> None:
        self.trouble.meet()
        self._durable_logs = dict(self.logs)

    # -- knowledge of the world ----------------------------------------------------------------

    @property
    def durable_manifest(self) -> Manifest | None:
        """The manifest that a power cut would leave which loses every change that was not
        synced."""
        data = self.root.durable_bytes(MANIFEST)
        return Manifest.decode(bytes(data)) if data is not None else None

    @property
    def has_durable_manifest(self) -> bool:
        return self.root.is_durable(MANIFEST)

    def has_durable_log(self, incarnation: int) -> bool:
        files = self._durable_logs.get(incarnation)
        return files is not None and any(files.is_durable(name) for name in VOTE_COPIES)

    def is_durable(self, incarnation: int) -> bool:
        """Whether a power cut may leave a folder of that log."""
        return incarnation in self._durable_logs

    # -- faults --------------------------------------------------------------------------------

    def power_cut(self, fate: Callable[[], Fate]) -> None:
        self.root.power_cut(fate)
        for incarnation in sorted({*self.logs, *self._durable_logs}):
            source = self.logs if fate() & 1 else self._durable_logs
            if incarnation in source:
                self.logs[incarnation] = source[incarnation]
            else:
                self.logs.pop(incarnation, None)
        self._durable_logs = dict(self.logs)
        for _, files in sorted(self.logs.items()):
            files.power_cut(fate)

    def lose_log(self, incarnation: int) -> None:
        """Remove the folder of a log, as an operator may."""
        self.lost_logs.add(incarnation)
        self.logs.pop(incarnation, None)
        self._durable_logs.pop(incarnation, None)

    def restore_log(self, incarnation: int, older: FolderDisk) -> None:
        """Replace the folder of a log by an older copy, as an operator may."""
        self.lost_logs.add(incarnation)
        self.older_logs.add(incarnation)
        self.logs[incarnation] = self._durable_logs[incarnation] = older.twin(self.trouble)

    def copy(self, trouble: Trouble | None = None) -> Directory:
        """A backup of all files as they can be read now, on another disk if one is given."""
        trouble = trouble or self.trouble
        twin = Directory(trouble)
        twin.storage = self.storage
        twin.lost_logs = {*self.lost_logs}
        twin.older_logs = {*self.older_logs}
        twin.root = self.root.twin(trouble)
        twin.logs = {log: files.twin(trouble) for log, files in self.logs.items()}
        twin._durable_logs = dict(twin.logs)
        return twin
