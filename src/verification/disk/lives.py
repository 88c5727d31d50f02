"""Histories of a log before its disk spoils a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from verification.disk.small import Step

__all__ = ["LIVES", "Life"]


class Life(NamedTuple):
    """The history of a log before its disk spoils a part of it."""

    name: str
    # All entries that an open may find, in order.
    entries: tuple[Entry, ...]
    # None: the process ends, and the next one opens the log.
    past: tuple[Step | None, ...]
    # The entries after so many were not synced when the process ended.
    durable: int

    def disk(self) -> tuple[SimulatedDisk, dict[tuple[str, int], list[bytes]]]:
        """The disk, and the earlier contents of each page of its files."""
        disk = SimulatedDisk()
        log, flusher = open_disk(disk)
        older: dict[tuple[str, int], list[bytes]] = {}
        for step in self.past:
            for name, data in disk.durable.items():
                for start in range(0, len(data), PAGE):
                    held = older.setdefault((name, start), [])
                    page = bytes(data[start : start + PAGE])
                    if page not in held:
                        held.append(page)
            if step is None:
                log, flusher = open_disk(disk)
            else:
                run(step(log, flusher))
        return disk, older


def _flush(*entries: Entry, cut: int | None = None, vote: int | None = None) -> Step:
    first = Index(cut) if cut is not None else None
    record = (Term(vote), NodeId(f"n{vote}")) if vote is not None else None
    flush = Flush(1, record, first, entries)
    return lambda _, flusher: flusher.plan(flush)


def _until(step: Step, last: str) -> Step:
    """Run ``step``, and end the process after the system call that begins with ``last``."""

    def ended(log: SegmentLog, flusher: Flusher) -> Iterator[str]:
        for done in step(log, flusher):
            yield done
            if done.startswith(last):
                return

    return ended


def _prove(_: SegmentLog, flusher: Flusher) -> Iterator[str]:
    return flusher.prove(Index(0))


def _close(_: SegmentLog, flusher: Flusher) -> Iterator[str]:
    return flusher.close(Index(0))


def _prove_all(log: SegmentLog, flusher: Flusher) -> Iterator[str]:
    """Prove the last flush, and claim that all of the log is committed."""
    return flusher.prove(log.last.index)


def _chores(committed: int) -> Step:
    return lambda _, flusher: flusher.chores(Index(committed))


_LOG = grow(ORIGIN, 100, 100, 100, 5_000)
_VOTE = _flush(vote=1)
# Blocks of one page, of one page and of two.
_PAST = (_VOTE, _flush(*_LOG[:1]), _flush(*_LOG[1:3]), _flush(*_LOG[3:]))
# The same up to its second entry; then others, in the place of older ones.
_OTHER = (*_LOG[:2], *grow(_LOG[1].position, 200, 300, term=2))
_OTHER_PAST = (*_PAST, _flush(*_OTHER[2:3], cut=3, vote=2), _prove, _flush(*_OTHER[3:]))
# A whole block goes and another one takes its place.
_ANEW = (_LOG[0], *grow(_LOG[0].position, 150, term=2))
_ANEW_PAST = (*_PAST[:3], _flush(*_ANEW[1:], cut=2, vote=2))
# An entry that reached into the next page goes, and another block begins there.
_LONGER = grow(ORIGIN, 3_000, 3_000)
_WITHIN = (_LONGER[0], *grow(_LONGER[0].position, 60, 70, 80, term=2))
_WITHIN_PAST = (
    _VOTE, _flush(*_LONGER), _flush(*_WITHIN[1:3], cut=2, vote=2), _flush(*_WITHIN[3:]),
)  # fmt: skip
# The entries have the same sizes, so that each page has a whole block on it, the old one or the new
# one.
_SAME = (_LOG[0], *grow(_LOG[0].position, 100, 100, term=2))
_SAME_PAST = (*_PAST[:3], _flush(*_SAME[1:], cut=2, vote=2))
# A block with more entries takes the place of one with fewer, on the same pages.
_MORE = (_LOG[0], *grow(_LOG[0].position, 100, 30, 30, term=2))
_MORE_PAST = (*_PAST[:2], _flush(*_LOG[1:2]), _flush(*_MORE[1:], cut=2, vote=2))
# The entries behind that block are cut off again: only the record tells which block it was.
_MORE_CUT = (_flush(*grow(_MORE[-1].position, 50, term=3), vote=3), _flush(cut=5, vote=4))
# A block of two pages takes the place of one of a page, and all of it is committed.
_WIDER = grow(ORIGIN, 3_000, 3_000, 100, term=2)
_WIDER_PAST = (
    _flush(*_LONGER[:1], vote=1), _flush(*_WIDER[:2], cut=1, vote=2), _flush(*_WIDER[2:]),
)  # fmt: skip
# Three segments: entries 1 to 3, 4 to 6 and 7; the first is sealed.
_LONG = grow(ORIGIN, *[4_500] * 7)
_LONG_PAST = (
    _VOTE, *(_flush(*_LONG[start : start + 2]) for start in range(0, 7, 2)), _chores(3), _chores(3),
)  # fmt: skip
# The second segment is cut off, becomes the spare and is the second one again.
_AGAIN = (*_LONG[:2], *grow(_LONG[1].position, 4_500, 4_500, 100, 100, term=2))
_AGAIN_PAST = (
    *_LONG_PAST[:3], _flush(*_AGAIN[2:4], cut=3, vote=2), _flush(*_AGAIN[4:5]), _flush(*_AGAIN[5:]),
)  # fmt: skip
_SMALL = grow(ORIGIN, 30, 30, 20_000)
# The second segment began after entry 3. It is cut off with that one, which then comes again with
# others behind it, and is begun once more.
_FIRST = grow(ORIGIN, 100, 100, 100, 13_000)
_BEGUN = (*_FIRST[:3], *grow(_FIRST[2].position, 60, 5_000, term=3))
_BEGUN_PAST = (
    _VOTE, _flush(*_FIRST[:2]), _flush(_FIRST[2]), _flush(_FIRST[3]),
    _flush(*grow(_FIRST[1].position, 60, term=2), cut=3, vote=2),
    _flush(*_BEGUN[2:4], cut=3, vote=3), _flush(_BEGUN[4]), _prove,
    _until(_flush(*grow(_BEGUN[4].position, 13_000, term=3)), "sync header"),
)  # fmt: skip

# The second segment begins behind entry 2, and then, recycled, behind entry 4. A third one follows
# before any of them is sealed.
_MIDDLE = (_SMALL[0], *grow(_SMALL[0].position, 30, 30, 30, 20_000, 20_000, term=2))
_MIDDLE_PAST = (
    _VOTE, *map(_flush, _SMALL), _flush(_MIDDLE[1], cut=2, vote=2), *map(_flush, _MIDDLE[2:]),
)  # fmt: skip
# Once more, and behind the same entry: that now stands on the page behind an empty block.
_BEHIND = (*_SMALL[:2], *grow(_SMALL[1].position, 20_000, 20_000, term=3))
_BEHIND_PAST = (
    _VOTE, *map(_flush, _SMALL), _flush(cut=2, vote=2), _prove, _flush(_BEHIND[1], vote=3),
    *map(_flush, _BEHIND[2:]),
)  # fmt: skip
# The second segment began behind five entries on two pages, and is begun behind three on four.
_MANY = grow(ORIGIN, *[30] * 5, 25_000)
_FEWER = (_MANY[0], *grow(_MANY[0].position, 3_000, 3_000, term=2))
_FEWER_PAST = (
    _VOTE, _flush(*_MANY[:5]), _flush(_MANY[5]),
    _flush(_FEWER[1], cut=2, vote=2), _flush(_FEWER[2]), _prove,
    _until(_flush(*grow(_FEWER[2].position, 25_000, term=2)), "sync header"),
)  # fmt: skip
# All of the second segment is cut off, and the next entry is too large for it: it stays empty.
_LARGE = (_SMALL[0], *grow(_SMALL[0].position, 40_000, 30, term=2))
_LARGE_PAST = (
    _VOTE, _flush(_SMALL[0]), _flush(*grow(_SMALL[0].position, 20_000)), _flush(cut=2, vote=2),
    *map(_flush, _LARGE[1:]),
)  # fmt: skip

LIVES = (
    Life("stopped", _LOG, (*_PAST, _close), 4),
    Life("stopped twice", _LOG, (*_PAST[:3], _close, None, _PAST[3], _close), 4),
    Life("killed", _LOG, (*_PAST, _prove), 4),
    Life("killed before the proof", _LOG, _PAST, 4),
    Life("killed while it wrote", _LOG, (*_PAST[:3], _until(_PAST[3], "write block")), 3),
    Life("replaced and stopped", _OTHER, (*_OTHER_PAST, _close), 4),
    Life("replaced and killed", _OTHER, (*_OTHER_PAST, _prove), 4),
    Life("a block replaced and stopped", _ANEW, (*_ANEW_PAST, _close), 2),
    Life("a block replaced and killed", _ANEW, (*_ANEW_PAST, _prove), 2),
    Life("a page replaced and stopped", _WITHIN, (*_WITHIN_PAST, _close), 4),
    Life("a page replaced and killed", _WITHIN, _WITHIN_PAST, 4),
    Life("same sizes and stopped", _SAME, (*_SAME_PAST, _close), 3),
    Life("same sizes and killed", _SAME, (*_SAME_PAST, _prove), 3),
    Life("more entries and stopped", _MORE, (*_MORE_PAST, _close), 4),
    Life("more entries and killed", _MORE, (*_MORE_PAST, _prove), 4),
    Life(
        "more entries and killed while it cut",
        _MORE,
        (*_MORE_PAST, _prove, _MORE_CUT[0], _until(_MORE_CUT[1], "erase")),
        4,
    ),
    Life("a wider block and stopped", _WIDER, (*_WIDER_PAST, _prove_all, _close), 3),
    Life("a wider block and killed", _WIDER, (*_WIDER_PAST, _prove_all), 3),
    Life("recycled in the middle and killed", _MIDDLE, (*_MIDDLE_PAST, _prove), 6),
    Life("recycled in the middle, committed", _MIDDLE, (*_MIDDLE_PAST, _prove_all), 6),
    Life("recycled and stopped", _AGAIN, (*_AGAIN_PAST, _close), 6),
    Life("recycled and killed", _AGAIN, (*_AGAIN_PAST, _prove), 6),
    Life("recycled and killed while it began", _BEGUN, _BEGUN_PAST, 5),
    Life("recycled behind the same entry and killed", _BEHIND, (*_BEHIND_PAST, _prove), 4),
    Life("an empty segment in the middle", _LARGE, (*_LARGE_PAST, _prove), 3),
    Life("killed while it began behind fewer entries", _FEWER, _FEWER_PAST, 3),
    Life("cut and stopped", _LOG[:2], (*_PAST, _flush(cut=3), _close), 2),
    Life("killed while it cut", _LOG[:2], (*_PAST, _until(_flush(cut=3), "sync vote-b")), 2),
    Life("many segments stopped", _LONG, (*_LONG_PAST, _close), 7),
    Life("many segments killed", _LONG, (*_LONG_PAST, _prove), 7),
)
