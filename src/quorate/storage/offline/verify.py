"""The offline check of data directories: every byte against the format, and copies of a log against
each other.

The check writes no file, and no node may run there meanwhile. Of a segment of any size, at most one
block is in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.errors import WrongDirectory
from quorate.storage.damage import Damage
from quorate.storage.directory import (
    IDENTITY,
    IDENTITY_BYTES_MAX,
    LOCK,
    LOGS,
    TABLE,
    Identity,
    hold_still,
    log_incarnation,
    log_name,
)
from quorate.storage.layout import LOST_FOUND, UNFINISHED, VOTE_COPIES, LogId
from quorate.storage.manifest import MANIFEST, LogState, Manifest
from quorate.storage.offline.compare import agreement
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.used import is_used
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from quorate.storage.offline.compare import Agreement
    from quorate.storage.offline.report import LogReport

__all__ = ["DirectoryReport", "Report", "bytes_to_read", "verify"]

# The catalog's table, which is not checked: a node makes it again from its log.
_TABLE = (TABLE, TABLE + UNFINISHED)


@dataclass(slots=True)
class DirectoryReport:
    """The report on one data directory: identity, logs, and damage outside of the logs."""

    path: Path
    # None if the identity file is missing or bad.
    identity: Identity | None = None
    # None if the manifest is missing or bad.
    manifest: Manifest | None = None
    logs: list[LogReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.damage and not any(log.damage for log in self.logs)

    def name_of(self, incarnation: int) -> str | None:
        """The name of a log; None if the manifest does not have it."""
        life = self.manifest.logs.get(incarnation) if self.manifest is not None else None
        return life.name if life is not None else None


@dataclass(slots=True)
class Report:
    """The reports on all data directories, and the comparison of their logs."""

    directories: list[DirectoryReport]
    # One for each log that more than one of the directories holds.
    agreements: list[Agreement]

    @property
    def whole(self) -> bool:
        """Whether every byte is as it was written, and copies are the same."""
        return all(directory.whole for directory in self.directories) and not any(
            one.positions for one in self.agreements
        )

    def name_of(self, incarnation: int) -> str | None:
        """The name of a log in the first directory that knows it; None if none does."""
        names = (directory.name_of(incarnation) for directory in self.directories)
        return next((name for name in names if name is not None), None)


def bytes_to_read(paths: Sequence[Path]) -> int:
    """The number of bytes in the files of all logs, for a display of the progress."""
    return sum(
        path.stat(follow_symlinks=False).st_size
        for directory in paths
        for path in (directory / LOGS).rglob("*")
        if path.is_file()
    )


def verify(paths: Sequence[Path], progress: Callable[[int], None] = lambda _: None) -> Report:
    """Check every byte of these data directories. ``progress`` is called with the number of bytes
    that were checked since its last call.

    Raises WrongDirectory for a path that is no data directory, is of a newer release, or is in use.
    """
    with ExitStack() as held:
        for path in paths:
            if not (path / IDENTITY).exists() and not (path / LOGS).is_dir():
                raise WrongDirectory(f"{path} is not a data directory; name one that a node made")
            held.enter_context(hold_still(path))
        directories = [_verify_directory(path, progress) for path in paths]
        return Report(directories, _agreements(directories))


def _verify_directory(path: Path, progress: Callable[[int], None]) -> DirectoryReport:
    report = DirectoryReport(path)
    for place in sorted(path.iterdir()):
        if place.name == IDENTITY:
            report.identity = _read_identity(report, place)
        elif place.name == MANIFEST:
            report.manifest = _read_manifest(report, place)
        elif place.name == LOGS and place.is_dir() and not place.is_symlink():
            continue
        elif place.name not in (LOCK, LOST_FOUND, MANIFEST + UNFINISHED, *_TABLE):
            _blame(report, place, "nothing in a data directory has this name")
    if not (path / IDENTITY).exists():
        _blame(report, path / IDENTITY, "the identity is missing")
    if report.manifest is not None:
        _blame_missing(report, report.manifest)
    elif not (path / MANIFEST).exists() and any((path / LOGS).glob("*")):
        _blame(report, path / MANIFEST, "the manifest is missing, and there are logs")
    storage = report.identity.storage if report.identity is not None else None
    for place in sorted((path / LOGS).iterdir()) if (path / LOGS).is_dir() else ():
        incarnation = log_incarnation(place.name)
        if incarnation is None or place.is_symlink() or not place.is_dir():
            _blame(report, place, "it is not the directory of a log")
        elif not _is_deleted(report.manifest, incarnation):
            try:
                log = audit_log(place, incarnation, storage, progress)
            except OSError as error:
                _blame(report, place, f"it cannot be read: {error.strerror}")
                continue
            report.logs.append(log)
            _blame_refused(report, place, log)
    return report


def _read_identity(report: DirectoryReport, place: Path) -> Identity | None:
    identity = None
    if place.is_file() and not place.is_symlink():
        with place.open("rb") as file:
            identity = Identity.decode(file.read(IDENTITY_BYTES_MAX))
    if identity is None:
        _blame(report, place, "the identity is bad")
    return identity


def _read_manifest(report: DirectoryReport, place: Path) -> Manifest | None:
    manifest = None
    if place.is_file() and not place.is_symlink():
        manifest = Manifest.decode(place.read_bytes())
    if manifest is None:
        _blame(report, place, "the manifest is bad")
    elif manifest.outdated is not None:
        peer, start, _ = manifest.outdated
        what = f"the directory is an older copy: {peer} knows start {start} of its node"
        _blame(report, place, what)
    return manifest


def _blame_missing(report: DirectoryReport, manifest: Manifest) -> None:
    for incarnation, life in manifest.logs.items():
        place = report.path / LOGS / log_name(incarnation)
        if life.state is LogState.MADE and not place.is_dir():
            _blame(report, place, f"log {life.name} was made here and is missing")


def _blame_refused(report: DirectoryReport, place: Path, log: LogReport) -> None:
    """Note the folder of a log that its node refuses although every byte may be as it was written:
    it is an older copy, or its vote record is gone."""
    life = report.manifest.logs.get(log.incarnation) if report.manifest is not None else None
    if life is None:
        _blame_unknown(report, place, log)
    elif not any((place / copy).exists() for copy in VOTE_COPIES):
        _blame(report, place, f"log {life.name} was made here and its vote record is missing")
    elif log.record is not None or not log.damage:  # else the damage says why it is refused
        boot = log.record.boot if log.record is not None else 0
        if boot < life.boot:
            what = "the folder is an older copy: its vote record is of boot"
            _blame(report, place, f"{what} {boot}, and the log was opened with boot {life.boot}")


def _blame_unknown(report: DirectoryReport, place: Path, log: LogReport) -> None:
    """Note a log that the manifest does not have, unless it was only about to be made."""
    identity = report.identity
    if report.manifest is None or identity is None:
        return  # that is noted
    if is_used(place, LogId(log.incarnation, identity.storage)):
        what = "it holds a log that the manifest does not know: the manifest is an older one"
        _blame(report, place, what)


def _is_deleted(manifest: Manifest | None, incarnation: int) -> bool:
    """Whether a log is being deleted: a crash may have left some of its files."""
    life = manifest.logs.get(incarnation) if manifest is not None else None
    return life is not None and life.state is LogState.DELETING


def _blame(report: DirectoryReport, place: Path, what: str) -> None:
    """Note damage of the whole file at ``place``."""
    size = place.lstat().st_size if place.is_file() else 0
    name = place.relative_to(report.path).as_posix()
    report.damage.append(Damage(name, 0, size, Index(1), Index(0), what))


def _agreements(directories: list[DirectoryReport]) -> list[Agreement]:
    """Compare the copies of every log that more than one directory holds."""
    found = []
    for incarnation in sorted({log.incarnation for one in directories for log in one.logs}):
        copies = [
            (one.path, log)
            for one in directories
            for log in one.logs
            if log.incarnation == incarnation
        ]
        if len(copies) > 1:
            paths = [path for path, _ in copies]
            logs = [path / LOGS / log_name(incarnation) for path in paths]
            through = min(log.committed for _, log in copies)
            found.append(agreement(incarnation, paths, logs, through))
    return found
