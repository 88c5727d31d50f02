"""The comparison of copies of one log: entries that every copy proves committed must be the same.

A position stands for every entry up to it, so copies with the same last position are the same. Only
if the last positions differ is the first difference looked for, entry by entry.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.storage.blocks import FlushedBlock, walk
from quorate.storage.layout import PAGE, SegmentHeader, segment_name, segment_number
from quorate.storage.vfs import RealVfs
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from quorate.storage.blocks import Gap
    from quorate.types import Position

__all__ = ["Agreement", "agreement"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of comparing copies of one log, and how far they were compared."""

    incarnation: int
    # The data directories, in the order of ``positions``.
    paths: tuple[Path, ...]
    # The highest index that all of them prove committed; entries above it were not compared.
    through: Index
    # The position in each copy of the first entry that is not the same in all; empty if there is
    # none.
    positions: tuple[Position, ...] = ()


def agreement(
    incarnation: int, paths: Sequence[Path], logs: Sequence[Path], through: Index
) -> Agreement:
    """Compare the ``logs`` of these data directories up to entry ``through``.

    An entry that one copy has lost is not compared; the audit of that copy reports the loss.
    """
    copies = [_Copy(log) for log in logs]
    try:
        ends = {next(copy.positions(through), None) for copy in copies}
        end = ends.pop() if len(ends) == 1 else None
        same = end is not None and end.index == through
        positions = () if same else _first_difference(copies, through)
        return Agreement(incarnation, tuple(paths), through, positions)
    finally:
        for copy in copies:
            copy.close()


def _first_difference(copies: list[_Copy], through: Index) -> tuple[Position, ...]:
    """The positions of the first entry that is not the same in all copies; all are walked side by
    side."""
    walks = [copy.positions(Index(1)) for copy in copies]
    heads = [next(one, None) for one in walks]
    while True:
        known = [head for head in heads if head is not None and head.index <= through]
        if len(known) < len(heads):
            return ()
        highest = max(head.index for head in known)
        if all(head.index == highest for head in known):
            if len(set(known)) > 1:
                return tuple(known)
            highest = Index(highest + 1)
        for place, one in enumerate(walks):
            while (head := heads[place]) is not None and head.index < highest:
                heads[place] = next(one, None)


class _Copy:
    """The entries of one copy, in order, as far as their headers can be read."""

    def __init__(self, path: Path) -> None:
        self._vfs = RealVfs(path, read_only=True)
        names = [name for name in self._vfs.names() if (path / name).is_file()]
        self._numbers = sorted(n for name in names if (n := segment_number(name)) is not None)

    def close(self) -> None:
        self._vfs.close()

    def positions(self, start: Index) -> Iterator[Position]:
        """The position of each entry, from ``start`` on."""
        headers = [self._header(number) for number in self._numbers]
        known = [header for header in headers if header is not None]
        # The last segment that begins at or before ``start`` holds it, if any does.
        early = [place for place, header in enumerate(known) if header.before.index < start]
        for header in known[max(early, default=0) :]:
            # The audit of this copy has reported the files that cannot be read.
            with suppress(OSError):
                for piece in self._pieces(header):
                    for frame in piece.frames if isinstance(piece, FlushedBlock) else ():
                        if frame.header.position.index >= start:
                            yield frame.header.position

    def _pieces(self, header: SegmentHeader) -> Iterator[FlushedBlock | Gap]:
        with closing(self._vfs.open(segment_name(header.number))) as file:
            yield from walk(file, header.nonce, file.size())

    def _header(self, number: int) -> SegmentHeader | None:
        header = None
        with suppress(OSError), closing(self._vfs.open(segment_name(number))) as file:
            header = SegmentHeader.decode(file.read(0, PAGE))
        return header if header is not None and header.number == number else None
