"""The simulated data directory of a node: it outlives every process.

The file that says whose directory it is, is not simulated: making it is one step here. Its crashes
are tested over real files (tests/storage/test_directory.py).
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.storage.layout import VOTE_COPIES
from quorate.storage.manifest import MANIFEST, Manifest
from quorate.testing.disk.simulated import KEPT, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.testing.disk.simulated import Fate

__all__ = ["Directory", "Files", "PowerCut", "Trouble"]

# The calls that need room or another open file.
_NEEDS_ROOM = ("create", "allocate")


class PowerCut(Exception):
    """The power failed during a call of the disk: the process is gone."""


class Trouble:
    """What happens to the next calls that change something on the disk of one node."""

    def __init__(self) -> None:
        # So many calls are done before the power fails; None if it does not.
        self.calls_left: int | None = None
        # What the system answers to a call that needs room; 0 if there is room.
        self.refusal = 0

    def meet(self) -> None:
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            self.calls_left = None
            raise PowerCut
        self.calls_left -= 1


class Files(SimulatedDisk):
    """One folder of the data directory."""

    def __init__(self, trouble: Trouble, *, refusable: bool) -> None:
        super().__init__()
        self.trouble = trouble
        # Whether a call may be refused now for want of room. A log that is open has allocated what
        # it writes to.
        self.refusable = refusable

    def meet(self, what: str) -> None:
        super().meet(what)
        self.trouble.meet()
        refusal = self.trouble.refusal
        if refusal and self.refusable and what.startswith(_NEEDS_ROOM):
            raise OSError(refusal, os.strerror(refusal), what)

    def close(self) -> None:
        """As a real directory is closed."""

    def twin(self, trouble: Trouble) -> Files:
        """A copy as a tool makes it that reads the files: all of it is durable."""
        copy = Files(trouble, refusable=self.refusable)
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
        self.root = Files(trouble, refusable=True)
        self.logs: dict[int, Files] = {}
        self._durable_logs: dict[int, Files] = {}
        # Logs whose folder was removed, or replaced by an older copy.
        self.lost_logs: set[int] = set()
        # Those of them that have an older folder.
        self.older_logs: set[int] = set()

    # -- what server/manifest.py asks of a data directory --------------------------------------

    def log_vfs(self, incarnation: int) -> Files:
        """The folder of a log, made if it is not there."""
        self.trouble.meet()
        if incarnation not in self.logs:
            self.logs[incarnation] = Files(self.trouble, refusable=False)
        self._sync_logs()
        return self.logs[incarnation]

    def incarnations(self) -> list[int]:
        return sorted(self.logs)

    @contextmanager
    def room_needed(self, incarnation: int) -> Iterator[None]:
        """Within, the calls for this log may be refused for want of room."""
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
        """As server/manifest.py does it: every file, the folder, then a sync of what is above."""
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

    # -- what the world knows ------------------------------------------------------------------

    @property
    def durable_manifest(self) -> Manifest | None:
        """What a power cut that loses everything would leave of the manifest."""
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

    # -- what happens to it --------------------------------------------------------------------

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

    def restore_log(self, incarnation: int, older: Files) -> None:
        """Replace the folder of a log by an older copy, as an operator may."""
        self.lost_logs.add(incarnation)
        self.older_logs.add(incarnation)
        self.logs[incarnation] = self._durable_logs[incarnation] = older.twin(self.trouble)

    def copy(self, trouble: Trouble | None = None) -> Directory:
        """A backup of all that can be read now, on another disk if one is given."""
        trouble = trouble or self.trouble
        twin = Directory(trouble)
        twin.storage = self.storage
        twin.lost_logs = {*self.lost_logs}
        twin.older_logs = {*self.older_logs}
        twin.root = self.root.twin(trouble)
        twin.logs = {log: files.twin(trouble) for log, files in self.logs.items()}
        twin._durable_logs = dict(twin.logs)
        return twin
