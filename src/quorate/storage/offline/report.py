"""The findings of an audit: contents of one log's files, damage in them, leftovers of a crash."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import TYPE_CHECKING

from quorate.storage.damage import Damage
from quorate.storage.layout import CLEAN
from quorate.storage.offline.owner import find_log_id
from quorate.storage.segment_scan import Fault
from quorate.storage.vfs import RealVfs
from quorate.types import ORIGIN, Index, Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.storage.offline.verify_segment import Progress
    from quorate.storage.vfs import RealFile
    from quorate.types import VoteRecord

__all__ = ["Findings", "LogReport"]


@dataclass(slots=True)
class LogReport:
    """The contents of a log, its damage, and warnings."""

    incarnation: int
    # Whether the log was closed in order.
    clean: bool = False
    record: VoteRecord | None = None
    segments: int = 0
    sealed: int = 0
    # Number of entries that can be read.
    entries: int = 0
    # Size of all files of the log.
    bytes: int = 0
    # Position of the entry before the first one, and of the last one.
    before: Position = ORIGIN
    last: Position = ORIGIN
    # Offset of the first record, and the offset after the last. Offsets have no gaps: the
    # difference is the number of records.
    first_offset: int = 0
    next_offset: int = 0
    # The highest index that a file of the log proves committed.
    committed: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    damage: list[Damage] = field(default_factory=list)
    warnings: list[Damage] = field(default_factory=list)

    def cut_of(self, number: int) -> int:
        """The byte at which segment ``number`` was to be cut; 0 if no cut of it was begun."""
        record = self.record
        return record.cutting if record is not None and record.segment == number else 0


class Findings:
    """Reads the files of a log, and collects damage and warnings. ``storage`` is the storage id of
    the data directory; None if its identity cannot be read."""

    def __init__(
        self, path: Path, incarnation: int, storage: bytes | None, progress: Progress
    ) -> None:
        self.report = LogReport(incarnation)
        self._progress = progress
        self._told = 0
        self.vfs = RealVfs(path, read_only=True)
        try:
            names = self.vfs.names()
        except OSError:
            self.vfs.close()
            raise
        self.report.clean = CLEAN in names
        # Size of every plain file, by name.
        self.sizes: dict[str, int] = {}
        for name in names:
            status = (path / name).stat(follow_symlinks=False)
            if S_ISREG(status.st_mode):
                self.sizes[name] = status.st_size
                self.report.bytes += status.st_size
            else:
                self.damage(name, "it is not a plain file")
        self.identity = find_log_id(self.vfs, self.sizes, incarnation, storage)

    def progress(self, length: int) -> None:
        """Report ``length`` more bytes as checked. The sum never exceeds the size of the files."""
        length = min(length, self.report.bytes - self._told)
        self._told += length
        self._progress(length)

    @contextmanager
    def reading(self, name: str) -> Iterator[RealFile]:
        """Open a file for reading. An error of the disk is noted as damage of the file."""
        try:
            file = self.vfs.open(name)
            try:
                yield file
            finally:
                file.close()
        except OSError as error:
            self.damage(name, f"it cannot be read: {error.strerror}")

    def read(self, name: str) -> bytes:
        """The whole content of a small file."""
        data = b""
        with self.reading(name) as file:
            data = file.read(0, file.size())
        self.progress(len(data))
        return data

    def damage(self, name: str, what: str, first: int = 1, last: int = 0) -> None:
        """Note damage of the whole file, and the entries first..last that it costs."""
        fault = Fault(0, self.sizes.get(name, 0), Index(first), Index(last), what)
        self.add(name, [fault], [])

    def warn(self, name: str, what: str) -> None:
        """Note a warning: no entry is lost, and the next open repairs the file."""
        self.add(name, [], [Fault.of_bytes(0, self.sizes.get(name, 0), what)])

    def leftover(self, name: str, what: str) -> None:
        """Note a leftover of a crash: a warning, but damage in a log that was closed in order."""
        (self.damage if self.report.clean else self.warn)(name, what)

    def add(self, name: str, damage: list[Fault], torn: list[Fault]) -> None:
        self.report.damage += [Damage(name, *fault) for fault in damage]
        self.report.warnings += [Damage(name, *fault) for fault in torn]
