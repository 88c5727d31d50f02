"""The inspection of data directories: it shows readable files and names unreadable ones.

An inspection writes no file and needs no lock, so it works beside a running node, too. It proves no
contents either: it takes the end of a sealed segment from the footer. ``verify`` proves contents.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorate.storage.blocks import Gap, read_footer, walk
from quorate.storage.directory import (
    IDENTITY,
    IDENTITY_BYTES_MAX,
    LOGS,
    Identity,
    log_incarnation,
    log_name,
    process_at_work,
)
from quorate.storage.layout import (
    CLEAN,
    PAGE,
    SPARE,
    VOTE_BYTES,
    VOTE_COPIES,
    CleanMark,
    SegmentHeader,
    newest_vote,
    pages,
    segment_name,
    segment_number,
)
from quorate.storage.manifest import MANIFEST, Manifest
from quorate.storage.offline.owner import find_log_id
from quorate.storage.vfs import RealVfs
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.storage.blocks import FlushedBlock
    from quorate.storage.layout import Footer
    from quorate.storage.vfs import RealFile
    from quorate.types import VoteRecord

__all__ = ["Inspection", "LogView", "SegmentView", "inspect_directory", "pieces"]


@dataclass(slots=True)
class SegmentView:
    """One segment as its header, its blocks and its footer describe it."""

    number: int
    bytes: int
    # Sealed, rolled or active; cut off or begun if the next open removes the segment; unreadable
    # if its header is bad, because without it no block can be read.
    state: str
    header: SegmentHeader | None = None
    footer: Footer | None = None
    # The last entry that can be read, and the offset after its last record.
    last: Index = Index(0)  # noqa: RUF009  # a NewType is the number itself
    next_offset: int = 0
    # Append times of the first and the last entry; None without entries.
    first_time: int | None = None
    last_time: int | None = None
    # The end of the blocks.
    end: int = PAGE
    # The byte at which the next open cuts the segment; 0 if it does not.
    cut: int = 0
    # Pages that are not zeros and hold no readable block.
    unreadable: list[Gap] = field(default_factory=list)

    @property
    def first(self) -> Index:
        return Index(self.header.before.index + 1 if self.header is not None else 0)


@dataclass(slots=True)
class LogView:
    """The files of one log."""

    incarnation: int
    # The log's name; None if the manifest does not have it.
    name: str | None = None
    # The newest vote record of each copy, by file name; None for a copy that is not whole.
    votes: dict[str, VoteRecord | None] = field(default_factory=dict)
    # Whether there is a mark of a clean stop, and its content; None if it is not whole.
    clean: bool = False
    mark: CleanMark | None = None
    spare_bytes: int | None = None
    segments: list[SegmentView] = field(default_factory=list)


@dataclass(slots=True)
class Inspection:
    """The identity, the process and the logs of a data directory."""

    path: Path
    # None if the identity file is missing or bad.
    identity: Identity | None
    # The process that works here; None if there is none, or if the kernel does not tell.
    process: int | None
    logs: list[LogView] = field(default_factory=list)


def inspect_directory(path: Path) -> Inspection:
    """Inspect the data directory ``path``. Raises WrongDirectory if a newer release wrote it."""
    identity = None
    if (path / IDENTITY).is_file():
        with (path / IDENTITY).open("rb") as file:
            identity = Identity.decode(file.read(IDENTITY_BYTES_MAX))
    found = Inspection(path, identity, process_at_work(path))
    names = _names(path / MANIFEST)
    for place in sorted((path / LOGS).iterdir()) if (path / LOGS).is_dir() else ():
        incarnation = log_incarnation(place.name)
        if incarnation is not None and place.is_dir() and not place.is_symlink():
            storage = identity.storage if identity is not None else None
            found.logs.append(_view_log(place, incarnation, storage, names.get(incarnation)))
    return found


def _names(place: Path) -> dict[int, str]:
    """The names of the logs in the manifest, by incarnation."""
    manifest = Manifest.decode(place.read_bytes()) if place.is_file() else None
    lives = manifest.logs if manifest is not None else {}
    return {incarnation: life.name for incarnation, life in lives.items()}


def pieces(
    path: Path, incarnation: int, header: SegmentHeader, cut: int = 0
) -> Iterator[FlushedBlock | Gap]:
    """The blocks and gaps of one segment, up to its footer or the end of the file.

    If the segment is being cut at byte ``cut``, the blocks and gaps up to there.
    """
    log = path / LOGS / log_name(incarnation)
    with (
        closing(RealVfs(log, read_only=True)) as vfs,
        closing(vfs.open(segment_name(header.number))) as file,
    ):
        footer = read_footer(file, header.nonce)
        end = footer.end if footer is not None else file.size()
        yield from walk(file, header.nonce, cut or end)


def _view_log(path: Path, incarnation: int, storage: bytes | None, name: str | None) -> LogView:
    view = LogView(incarnation, name)
    with closing(RealVfs(path, read_only=True)) as vfs:
        # While a node runs, a file may go between the listing and the opening.
        names = [name for name in vfs.names() if (path / name).is_file()]
        log = find_log_id(vfs, names, incarnation, storage)
        for name in names:
            with suppress(OSError), closing(vfs.open(name)) as file:
                if name in VOTE_COPIES:
                    view.votes[name] = newest_vote([file.read(0, VOTE_BYTES)], log)
                elif name == CLEAN:
                    view.clean = True
                    view.mark = CleanMark.decode(file.read(0, PAGE), log)
                elif name == SPARE:
                    view.spare_bytes = file.size()
        whole = [record for record in view.votes.values() if record is not None]
        record = max(whole, key=lambda record: record.number, default=None)
        for name in names:
            number = segment_number(name)
            if number is not None:
                with suppress(OSError), closing(vfs.open(name)) as file:
                    view.segments.append(_view_segment(file, number, record))
    staying = [one for one in view.segments if one.state not in ("cut off", "begun")]
    for segment in staying[:-1]:
        if segment.state == "active":
            segment.state = "rolled"
    return view


def _view_segment(file: RealFile, number: int, record: VoteRecord | None) -> SegmentView:
    """The view of segment ``number``. ``record``, the newest vote record, names the newest segment
    with its nonce, and the place of a cut."""
    header = SegmentHeader.decode(file.read(0, PAGE))
    view = SegmentView(number, file.size(), "unreadable")
    if header is None or not header.belongs(number, record):
        return view
    view.header, view.footer = header, read_footer(file, header.nonce)
    view.last, view.next_offset = header.before.index, header.base_offset
    view.state = "active" if view.footer is None else "sealed"
    if record is not None and record.number > 0 and number > record.segment:
        view.state = "cut off" if record.cutting else "begun"
    elif record is not None and number == record.segment:
        view.cut = record.cutting
    for piece in walk(file, header.nonce, view.cut or file.size()):
        if isinstance(piece, Gap):
            view.unreadable += [] if piece.blank else [piece]
            continue
        for frame in piece.frames:
            view.last = frame.header.position.index
            view.next_offset = frame.header.base_offset + frame.header.count
            view.last_time = frame.header.append_time
            if view.first_time is None:
                view.first_time = view.last_time
        view.end = pages(piece.stop)
        if view.footer is not None and view.first_time is not None:
            break  # the footer has the remaining fields
    if view.footer is not None:
        view.last, view.next_offset = view.footer.last.index, view.footer.next_offset
        view.last_time, view.end = view.footer.append_time, view.footer.end
        view.unreadable.clear()
    return view
