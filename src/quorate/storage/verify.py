"""Checking data directories offline: is every byte what was written, are copies the same?

Nothing is written, and no node may run there meanwhile. However large a segment is, one block of it
at most is in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.errors import WrongDirectory
from quorate.storage.audit import audit_log
from quorate.storage.damage import Damage
from quorate.storage.difference import agreement
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
from quorate.storage.layout import LOST_FOUND, UNFINISHED
from quorate.storage.manifest import MANIFEST, LogState, Manifest
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from quorate.storage.difference import Agreement
    from quorate.storage.findings import LogReport

__all__ = ["DirectoryReport", "Report", "bytes_to_read", "verify"]

# A node can do without it.
_TABLE = (TABLE, TABLE + UNFINISHED)


@dataclass(slots=True)
class DirectoryReport:
    """One data directory: whose it is, its logs, and what is wrong outside of them."""

    path: Path
    # None if the file that says it is bad.
    identity: Identity | None = None
    # None if there is none, or if it is bad.
    manifest: Manifest | None = None
    logs: list[LogReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.damage and not any(log.damage for log in self.logs)

    def name_of(self, incarnation: int) -> str | None:
        """What a log is called; None if the manifest does not say so."""
        life = self.manifest.logs.get(incarnation) if self.manifest is not None else None
        return life.name if life is not None else None


@dataclass(slots=True)
class Report:
    """Everything that was looked at."""

    directories: list[DirectoryReport]
    # One for each log that more than one of the directories holds.
    agreements: list[Agreement]

    @property
    def whole(self) -> bool:
        """Whether every byte is what was written, and copies are the same."""
        return all(directory.whole for directory in self.directories) and not any(
            one.positions for one in self.agreements
        )

    def name_of(self, incarnation: int) -> str | None:
        """The first name that one of the directories knows for it."""
        names = (directory.name_of(incarnation) for directory in self.directories)
        return next((name for name in names if name is not None), None)


def bytes_to_read(paths: Sequence[Path]) -> int:
    """How much there is to look at, for whoever shows progress."""
    return sum(
        path.stat(follow_symlinks=False).st_size
        for directory in paths
        for path in (directory / LOGS).rglob("*")
        if path.is_file()
    )


def verify(paths: Sequence[Path], progress: Callable[[int], None] = lambda _: None) -> Report:
    """Look at every byte of these data directories; ``progress`` is told how many each time.

    Raises WrongDirectory for one that is none, is of a newer release, or is in use.
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
    storage = report.identity.storage if report.identity is not None else None
    for place in sorted((path / LOGS).iterdir()) if (path / LOGS).is_dir() else ():
        incarnation = log_incarnation(place.name)
        if incarnation is None or place.is_symlink() or not place.is_dir():
            _blame(report, place, "it is not the directory of a log")
        elif not _is_deleted(report.manifest, incarnation):
            report.logs.append(audit_log(place, incarnation, storage, progress))
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
    return manifest


def _blame_missing(report: DirectoryReport, manifest: Manifest) -> None:
    for incarnation, life in manifest.logs.items():
        place = report.path / LOGS / log_name(incarnation)
        if life.state is LogState.MADE and not place.is_dir():
            _blame(report, place, f"log {life.name} was made here and is missing")


def _is_deleted(manifest: Manifest | None, incarnation: int) -> bool:
    """Whether a crash left some of a log whose files were being removed."""
    life = manifest.logs.get(incarnation) if manifest is not None else None
    return life is not None and life.state is LogState.DELETING


def _blame(report: DirectoryReport, place: Path, what: str) -> None:
    """The file as a whole is bad."""
    size = place.lstat().st_size if place.is_file() else 0
    name = place.relative_to(report.path).as_posix()
    report.damage.append(Damage(name, 0, size, Index(1), Index(0), what))


def _agreements(directories: list[DirectoryReport]) -> list[Agreement]:
    """Compare the copies of every log that is there more than once."""
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
