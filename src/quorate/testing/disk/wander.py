"""Random lives of a log: pages of it rot or are again what they were, and an open crashes.

``quorate.testing.disk.rot`` tries every way to spoil a few lives; this spoils many in a few ways.
Whatever was durable when a page rotted must be there, or its node must know that it is not.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import Corrupt, Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import BLOCK_BYTES, PAGE, VOTE_COPIES, segment_name
from quorate.storage.recovered import Recovered, SegmentArchive
from quorate.testing.disk.rot import Unnoticed
from quorate.testing.disk.simulated import KEPT, LOST, TORN, SimulatedDisk
from quorate.testing.disk.small import Outcome, grow, open_disk, opening, run
from quorate.types import ORIGIN, Index, NodeId, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog

    # A file and the start of one of its pages.
    Page = tuple[str, int]

__all__ = ["Wandering", "wander", "wander_all"]

GARBAGE = b"\xa5" * PAGE
# Bodies of entries: small ones that share a page, and some that reach into the next.
SIZES = ((30,), (30, 3_000), (3_000, 5_000), (9_000, 30), (3_000,), (0, 30))
# Old contents are the most: they are whole, each by itself.
KINDS = ("old", "old", "old", "zero", "garbage", "head", "flip")
STEPS_MAX = 14


class Spoilable(NamedTuple):
    """What a disk may spoil at the end of a life, such that something else tells."""

    pages: list[Page]
    votes: list[Page]


class Wandering:
    """One life: a log that grows, is cut, proved and opened again, in any order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.disk = SimulatedDisk()
        self._log, self._flusher = open_disk(self.disk)
        self._sizes = random.choice(SIZES)
        self._committed = Index(0)
        self._term = Term(1)
        self._vote: tuple[Term, NodeId | None] = (Term(0), None)
        # All that is durable, in order.
        self.entries: list[Entry] = []
        # What each page held before.
        self._older: dict[Page, list[bytes]] = {}

    # -- the life ------------------------------------------------------------------------------

    def live(self) -> None:
        self._flush(0)
        for _ in range(self._random.randrange(4, STEPS_MAX)):
            self._remember()
            chance = self._random.random()
            if chance < 0.55 or not self.entries:
                self._flush(self._random.randrange(1, 4))
            elif chance < 0.8 and len(self.entries) > self._committed:
                self._replace()
            elif chance < 0.86:
                run(self._flusher.prove(self._committed))
            elif chance < 0.92:
                self._committed = Index(
                    self._random.randrange(self._committed, len(self.entries) + 1)
                )
                run(self._flusher.chores(self._committed))
            elif chance < 0.96:
                run(self._flusher.allocate_ahead())
            else:
                self._log, self._flusher = open_disk(self.disk)

    def end(self) -> Spoilable | None:
        """Stop in order, or be killed when the last flush was proved; what may be spoilt then."""
        self._remember()
        closed = self._random.random() < 0.3
        run((self._flusher.close if closed else self._flusher.prove)(self._committed))
        newest = self._log.segments[-1] if self._log.segments else None
        if newest is None or not self.entries or (self._flusher.unproven and not closed):
            return None
        pages = []
        for segment in self._log.segments:
            # A sealed one is believed until it is read, and only then looked at.
            if segment.footer is None:
                # Without a mark nothing tells of the last block but itself.
                end = segment.end - PAGE * (segment is newest and not closed)
                pages += [(segment_name(segment.number), place) for place in range(0, end, PAGE)]
        votes = [(name, place) for name in VOTE_COPIES for place in (0, PAGE)]
        return Spoilable(pages, votes) if pages else None

    def _flush(self, count: int, cut: Index | None = None) -> None:
        last = self.entries[-1].position if self.entries else ORIGIN
        sizes = [self._random.choice(self._sizes) for _ in range(count)]
        new = grow(last, *sizes, term=self._term)
        vote = None
        if self._vote[0] != self._term:
            self._vote = vote = (self._term, NodeId(f"n{self._random.randrange(1, 4)}"))
        run(self._flusher.plan(Flush(1, vote, cut, new, self._committed)))
        self.entries += new

    def _replace(self) -> None:
        """Another leader has other entries from somewhere on, or none."""
        kept = self._random.randrange(self._committed, len(self.entries))
        del self.entries[kept:]
        self._term = Term(self._term + 1)
        self._flush(self._random.randrange(3), Index(kept + 1))

    def _remember(self) -> None:
        for name, data in self.disk.durable.items():
            for place in range(0, len(data), PAGE):
                page = bytes(data[place : place + PAGE])
                held = self._older.setdefault((name, place), [])
                if any(page) and page not in held:
                    held.append(page)

    # -- what becomes of its disk --------------------------------------------------------------

    def spoil(self, spoilable: Spoilable) -> str:
        """One page or two of the log, and now and then one of the vote record; what was done."""
        changed = [page for page in spoilable.pages if self._others(*page)]
        pages = changed if changed and self._random.random() < 0.6 else spoilable.pages
        chosen = self._random.choices(pages, k=self._random.choice((1, 1, 2)))
        if self._random.random() < 0.2:
            chosen.append(self._random.choice(spoilable.votes))
        return ", ".join(self._spoil(*page) for page in chosen)

    def _others(self, name: str, place: int) -> list[bytes]:
        """What the page held before and does not hold now."""
        now = bytes(self.disk.files[name].content[place : place + PAGE])
        return [page for page in self._older.get((name, place), ()) if page != now]

    def _spoil(self, name: str, place: int) -> str:
        content = self.disk.files[name].content
        kind, other = self._random.choice(KINDS), self._others(name, place)
        if kind == "old" and other:
            data = self._random.choice(other)
        elif kind in ("old", "zero"):
            data = bytes(PAGE)
        elif kind == "flip":
            place += self._random.randrange(PAGE)
            data = bytes([content[place] ^ 1 << self._random.randrange(8)])
        else:
            data = GARBAGE if kind == "garbage" else GARBAGE[:BLOCK_BYTES]
        self.disk.spoil(name, place, data[: len(content) - place])
        return f"{kind} at {place} of {name}"

    def crash_an_open(self) -> None:
        """Kill the open that finds it, or cut the power while it is under way."""
        steps = self._random.randrange(1, 20)
        with suppress(Damaged):
            for _ in islice(opening(self.disk), steps):
                pass
            if self._random.random() < 0.7:
                self.disk.power_cut(lambda: self._random.choice((LOST, KEPT, TORN)))

    # -- the verdict ---------------------------------------------------------------------------

    def check(self) -> str:
        """How an open answers; raises Unnoticed if it forgets something."""
        try:
            log, _ = open_disk(self.disk)
            Recovered.of(log)
            if (vote := (log.record.term, log.record.vote)) != self._vote:
                raise Unnoticed(f"the vote is {vote}, not {self._vote}")
            if log.record.unsure:
                return "unsure"
            self._check_entries(log)
        except (Corrupt, Damaged):
            return "damaged"
        return "whole"

    def _check_entries(self, log: SegmentLog) -> None:
        if log.last != self.entries[-1].position:
            raise Unnoticed(
                f"{_named(log.last)} is the last, not {_named(self.entries[-1].position)}"
            )
        archive = SegmentArchive(log)
        found: list[Entry] = []
        while len(found) < len(self.entries):
            found += archive.entries(Index(len(found) + 1), Index(len(self.entries) + 1))
        for right, entry in zip(self.entries, found, strict=True):
            if entry.position != right.position or (entry.whole and entry != right):
                raise Unnoticed(f"entry {right.index} is {_named(entry.position)}")


def _named(position: Position) -> str:
    return f"{position.index}/{position.term}"


def wander(seed: int) -> str | None:
    """The life of ``seed`` and what comes of it; None if nothing of it may be spoilt."""
    random = Random(f"wander {seed}")
    life = Wandering(random)
    life.live()
    spoilable = life.end()
    if spoilable is None:
        return None
    done = life.spoil(spoilable)
    if random.random() < 0.4:
        life.crash_an_open()
        done += ", and the open crashed"
    try:
        return life.check()
    except (Unnoticed, LookupError, OSError, ValueError, AssertionError) as problem:
        raise Unnoticed(f"seed {seed}, {done}: {problem!r}") from problem


def wander_all(seeds: Iterable[int]) -> Outcome:
    """Every one of these lives."""
    outcome = Outcome()
    for seed in seeds:
        try:
            outcome.crashed += wander(seed) is not None
        except Unnoticed as problem:
            outcome.problems.append(str(problem))
    return outcome
