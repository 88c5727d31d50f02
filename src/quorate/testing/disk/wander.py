"""Random lives of a log: pages of it rot or are again what they were, and an open crashes.

``quorate.testing.disk.rot`` tries every way to spoil a few lives; this spoils many in a few ways.
Half of them end between two steps, half of them amid a flush, a cut, a chore or an open.
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
from quorate.testing.disk.crashes import MASKS
from quorate.testing.disk.rot import Unnoticed
from quorate.testing.disk.simulated import KEPT, LOST, TORN, SimulatedDisk
from quorate.testing.disk.small import Outcome, grow, open_disk, opening, run
from quorate.types import ORIGIN, Index, NodeId, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog

    # A file and the start of one of its pages.
    Page = tuple[str, int]

__all__ = ["Wandering", "wander", "wander_all"]

GARBAGE = b"\xa5" * PAGE
# Bodies of entries: small ones that share a page, and some that reach into the next.
SIZES = ((30,), (30, 3_000), (3_000, 5_000), (9_000, 30), (3_000,), (0, 30), (30, 9_000, 13_000))
# An entry of this size needs the next segment, unless the newest one is as good as empty.
ROLLING = (13_000,)
# Old contents are the most: they are whole, each by itself.
KINDS = ("old", "old", "old", "zero", "garbage", "head", "flip")
STEPS_MAX = 14


class Spoilable(NamedTuple):
    """What a disk may spoil at the end of a life, such that something else tells."""

    pages: list[Page]
    votes: list[Page]
    # Those of the last entry that must be there: few, and what comes after them may be gone.
    last: tuple[Page, ...] = ()


class Action(NamedTuple):
    """One thing that a node does with its log."""

    name: str
    # None for another start of the node.
    plan: Iterator[str] | None
    # The log and the vote when it has come to its end.
    entries: list[Entry]
    vote: tuple[Term, NodeId | None]
    # So many entries are there before, after and meanwhile.
    kept: int


class Wandering:
    """One life: a log that grows, is cut, proved and opened again, in any order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.disk = SimulatedDisk()
        self._log, self._flusher = open_disk(self.disk)
        self._sizes = random.choice(SIZES)
        self._committed = Index(0)
        self._term = Term(1)
        # What was voted, and what else may be found: a life may end within a vote.
        self._vote: tuple[Term, NodeId | None] = (Term(0), None)
        self._votes: set[tuple[Term, NodeId | None]] = set()
        # All that is durable, in order.
        self.entries: list[Entry] = []
        # What may be there or not behind that: a life ended while it was written or cut off, or it
        # was cut off once, and its page is back.
        self._unsettled: list[Entry] = []
        # What was cut off, and where: another leader may have the same once more.
        self._tails: list[tuple[Position, list[Entry]]] = []
        # What each page held before.
        self._older: dict[Page, list[bytes]] = {}

    # -- the life ------------------------------------------------------------------------------

    def live(self) -> None:
        self._do(self._flush("vote", 0))
        for _ in range(self._random.randrange(4, STEPS_MAX)):
            self._remember()
            self._do(self._act(self._random.random()))

    def end(self) -> Spoilable | None:
        """Stop in order, or be killed when the last flush was proved; what may be spoilt then."""
        self._remember()
        closed = self._random.random() < 0.3
        run((self._flusher.close if closed else self._flusher.prove)(self._committed))
        newest = self._log.segments[-1] if self._log.segments else None
        if newest is None or not self.entries or (self._flusher.unproven and not closed):
            return None
        self._votes = {self._vote}
        pages = []
        for segment in self._log.segments:
            # Without a mark nothing tells of the last block but itself.
            end = segment.end - PAGE * (segment is newest and not closed)
            pages += [(segment_name(segment.number), place) for place in range(0, end, PAGE)]
        votes = [(name, place) for name in VOTE_COPIES for place in (0, PAGE)]
        return Spoilable(pages, votes)

    def end_amid(self) -> Spoilable | None:
        """Prove the last flush, and be killed or lose the power amid what comes next. Then one page
        of any file may be spoilt: the rest tells of all that nothing was to change."""
        self._remember()
        run(self._flusher.prove(self._committed))
        self._remember()
        if not self.entries or self._flusher.unproven:
            return None
        self._sizes = self._random.choice((self._sizes, ROLLING))
        action = self._act(0.3 + 0.7 * self._random.random())
        last = self._pages_of(Index(action.kept))
        for _ in islice(action.plan or opening(self.disk), self._random.randrange(1, 14)):
            pass
        self._remember()
        if self._random.random() < 0.5:
            self.disk.power_cut(lambda: self._random.choice((LOST, KEPT, *MASKS)))
        self._votes = {self._vote, action.vote}
        self._unsettled = [*self.entries[action.kept :], *action.entries[action.kept :]]
        self._unsettled += [entry for _, tail in self._tails for entry in tail]
        del self.entries[action.kept :]
        sizes = {name: len(inode.content) for name, inode in self.disk.files.items()}
        pages = [(name, at) for name, size in sizes.items() for at in range(0, size, PAGE)]
        return Spoilable(pages, [], tuple(page for page in last if page in pages))

    def _pages_of(self, index: Index) -> list[Page]:
        """Those of the frame of this entry; none before the first."""
        if not index:
            return []
        segment = self._log.segment(index)
        start, stop = segment.rows.frame(index)
        name = segment_name(segment.number)
        return [(name, place) for place in range(start // PAGE * PAGE, stop, PAGE)]

    def _act(self, chance: float) -> Action:
        """What comes next: the lower ``chance``, the plainer."""
        if chance < 0.55 or not self.entries:
            return self._flush("flush", self._random.randrange(1, 4))
        if chance < 0.8 and len(self.entries) > self._committed:
            return self._replace()
        same = self.entries, self._vote, len(self.entries)
        if chance < 0.86:
            return Action("prove", self._flusher.prove(self._committed), *same)
        if chance < 0.92:
            self._committed = Index(self._random.randrange(self._committed, len(self.entries) + 1))
            return Action("chores", self._flusher.chores(self._committed), *same)
        if chance < 0.96:
            return Action("allocate", self._flusher.allocate_ahead(), *same)
        return Action("open", None, *same)

    def _do(self, action: Action) -> None:
        if action.plan is None:
            self._log, self._flusher = open_disk(self.disk)
        else:
            run(action.plan)
        self.entries, self._vote = action.entries, action.vote

    def _flush(self, name: str, count: int, kept: int | None = None) -> Action:
        """Entries behind all that is there, or behind the first ``kept``."""
        stays = self.entries[:kept]
        if kept is not None:
            stays = stays + self._come_back(_end_of(stays))
        sizes = [self._random.choice(self._sizes) for _ in range(count)]
        entries = [*stays, *grow(_end_of(stays), *sizes, term=self._term)]
        vote = None
        if self._vote[0] != self._term:
            vote = (self._term, NodeId(f"n{self._random.randrange(1, 4)}"))
        first = kept if kept is not None else len(self.entries)
        cut = Index(first + 1) if kept is not None else None
        flush = Flush(1, vote, cut, tuple(entries[first:]), self._committed)
        return Action(name, self._flusher.plan(flush), entries, vote or self._vote, first)

    def _replace(self) -> Action:
        """Another leader has other entries from somewhere on, or none."""
        ends = [_end_of(self.entries[:kept]) for kept in range(len(self.entries))]
        known = {before for before, _ in self._tails}
        # Where something was cut off before, that may come back.
        again = [one.index for one in ends[self._committed :] if one in known]
        kept = self._random.randrange(self._committed, len(self.entries))
        if again and self._random.random() < 0.5:
            kept = self._random.choice(again)
        self._term = Term(self._term + 1)
        action = self._flush("replace", self._random.randrange(3), kept)
        self._tails.append((_end_of(self.entries[:kept]), self.entries[kept:]))
        return action

    def _come_back(self, last: Position) -> list[Entry]:
        """Some of what was cut off behind ``last`` once, now and then."""
        for before, tail in reversed(self._tails):
            if before == last and self._random.random() < 0.6:
                return tail[: self._random.randrange(1, len(tail) + 1)]
        return []

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
        # Few pages are headers, and each tells of a whole segment.
        headers = [page for page in changed if page[1] == 0 and page[0].endswith(".segment")]
        drawn = self._random.random()
        pages = changed if changed and drawn < 0.6 else spoilable.pages
        if headers and drawn < 0.2:
            pages = headers
        elif set(spoilable.last) & set(changed) and drawn < 0.5:
            pages = [page for page in spoilable.last if page in changed]
        chosen = self._random.choices(pages, k=self._random.choice((1, 1, 2)))
        if not spoilable.votes:
            del chosen[1:]
        elif self._random.random() < 0.2:
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
            place += self._random.randrange(min(PAGE, len(content) - place))
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
            if (vote := (log.record.term, log.record.vote)) not in self._votes:
                raise Unnoticed(f"the vote is {vote}, not one of {self._votes}")
            if log.record.unsure:
                return "unsure"
            self._check_entries(log)
        except (Corrupt, Damaged):
            return "damaged"
        return "whole"

    def _check_entries(self, log: SegmentLog) -> None:
        right = {entry.position: entry for entry in (*self.entries, *self._unsettled)}
        last = _end_of(self.entries)
        behind = {one.position for one in self._unsettled if one.index > last.index}
        if log.last != last and log.last not in behind:
            raise Unnoticed(f"{_named(log.last)} is the last, not {_named(last)}")
        archive = SegmentArchive(log)
        found: list[Entry] = []
        while len(found) < log.last.index:
            found += archive.entries(Index(len(found) + 1), Index(log.last.index + 1))
        for wanted, entry in zip(self.entries, found, strict=False):
            if entry.position != wanted.position:
                raise Unnoticed(f"entry {wanted.index} is {_named(entry.position)}")
        for entry in found:
            if entry.position not in right or (entry.whole and entry != right[entry.position]):
                raise Unnoticed(f"{_named(entry.position)} was never there, or has other bytes")


def _end_of(entries: list[Entry]) -> Position:
    return entries[-1].position if entries else ORIGIN


def _named(position: Position) -> str:
    return f"{position.index}/{position.term}"


def wander(seed: int) -> str | None:
    """The life of ``seed`` and what comes of it; None if nothing of it may be spoilt."""
    random = Random(f"wander {seed}")
    life = Wandering(random)
    life.live()
    amid = random.random() < 0.5
    spoilable = life.end_amid() if amid else life.end()
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
