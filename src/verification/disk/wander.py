"""Random lives of a log: its pages rot or fall back to earlier contents, and an open crashes.

``verification.disk.rot`` tries every way to spoil a few lives; this module spoils many lives in
a few ways. Half of them end between two steps, half of them amid a flush, a cut, a chore, an open
or a roll. Every entry that was durable when a page rotted must be there, or its node must know that
it is lost.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import Corrupt, Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, VOTE_COPIES, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries
from quorate.types import ORIGIN, Index, NodeId, Position, Term
from verification.disk.crashes import MASKS
from verification.disk.inode import KEPT, LOST, TORN
from verification.disk.page_history import PageHistory, Spoilable
from verification.disk.rot import Unnoticed
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import OpenedDisks, grow, open_disk, opening, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry
    from quorate.storage.log import SegmentLog
    from verification.disk.page_history import Page


__all__ = ["Wandering", "wander", "wander_all"]

# Bodies of entries: small ones that share a page, and some that reach into the next.
# An entry larger than a segment leaves the one before it empty if that was cut to its beginning.
SIZES = (
    (30,), (30, 3_000), (3_000, 5_000), (9_000, 30), (3_000,), (0, 30), (30, 9_000, 13_000),
    (30, 20_000, 40_000),
)  # fmt: skip
# An entry of this size needs the next segment, unless the newest one is as good as empty.
ROLLING = (13_000,)
# An entry of this size needs the next segment, unless the newest one has no entry.
BEYOND = 26_000
STEPS_MAX = 14


class Action(NamedTuple):
    """One operation of a node on its log."""

    name: str
    # The plan of the operation; None for another start of the node.
    plan: Iterator[str] | None
    # The log and the vote when the plan has come to its end.
    entries: list[Entry]
    vote: tuple[Term, NodeId | None]
    # The number of entries that are there before, during and after the operation.
    kept: int


class Wandering:
    """One life: a log that grows, is cut, proved and opened again, in any order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.disk = SimulatedDisk()
        self.pages = PageHistory(self.disk, random)
        self._log, self._flusher = open_disk(self.disk)
        self._sizes = random.choice(SIZES)
        self._committed = Index(0)
        self._term = Term(1)
        # The vote that was given, and the vote that may be found as well: a life may end within a
        # vote.
        self._vote: tuple[Term, NodeId | None] = (Term(0), None)
        self._votes: set[tuple[Term, NodeId | None]] = set()
        # All durable entries, in order.
        self.entries: list[Entry] = []
        # The entries that may be there behind that or not: a life ended while they were written or
        # cut off, or they were cut off once, and their page is back.
        self._unsettled: list[Entry] = []
        # The tails that were cut off, and where: another leader may have the same entries once
        # more.
        self._tails: list[tuple[Position, list[Entry]]] = []

    # -- the life ------------------------------------------------------------------------------

    def live(self) -> None:
        self._do(self._flush("vote", 0))
        for _ in range(self._random.randrange(4, STEPS_MAX)):
            self.pages.remember()
            self._do(self._act(self._random.random()))

    def end(self) -> Spoilable | None:
        """Stop in order, or kill the node when the last flush is proved; return the pages to spoil
        then."""
        self.pages.remember()
        closed = self._random.random() < 0.3
        if self._random.random() < 0.5:
            self._commit()
        run((self._flusher.close if closed else self._flusher.prove)(self._committed))
        newest = self._log.segments[-1] if self._log.segments else None
        if newest is None or not self.entries or (self._flusher.unproven and not closed):
            return None
        self._votes = {self._vote}
        pages = []
        for segment in self._log.segments:
            # Without a mark only the last block itself shows that it was there.
            end = segment.end - PAGE * (segment is newest and not closed)
            pages += [(segment_name(segment.number), place) for place in range(0, end, PAGE)]
        votes = [(name, place) for name in VOTE_COPIES for place in (0, PAGE)]
        return Spoilable(pages, votes, tuple(self._pages_of(Index(len(self.entries)))))

    def end_amid(self) -> Spoilable | None:
        """Prove the last flush, and kill the node or cut its power amid the next operation. Then
        one page of any file may be spoilt: the other pages prove everything that no operation was
        to change."""
        self.pages.remember()
        if self._random.random() < 0.5:
            return self._end_behind_header()
        run(self._flusher.prove(self._committed))
        self.pages.remember()
        if not self.entries or self._flusher.unproven:
            return None
        self._sizes = self._random.choice((self._sizes, ROLLING))
        action = self._act(0.3 + 0.7 * self._random.random())
        last = self._pages_of(Index(action.kept))
        for _ in islice(action.plan or opening(self.disk), self._random.randrange(1, 14)):
            pass
        self.pages.remember()
        if self._random.random() < 0.5:
            self.disk.power_cut(lambda: self._random.choice((LOST, KEPT, *MASKS)))
        self._votes = {self._vote, action.vote}
        self._unsettled = [*self.entries[action.kept :], *action.entries[action.kept :]]
        self._unsettled += [entry for _, tail in self._tails for entry in tail]
        del self.entries[action.kept :]
        return self._all_pages(last)

    def _end_behind_header(self) -> Spoilable | None:
        """Kill the node or cut its power when it has begun the next segment and the vote record
        does not name it yet. Under load the header of that segment is the first thing that is
        written behind the last block, and it alone proves that block."""
        if not self.entries:
            return None
        last = self._pages_of(Index(len(self.entries)))
        (large,) = grow(_end_of(self.entries), BEYOND, term=self._term)
        plan = self._flusher.plan(Flush(1, None, None, (large,), self._committed))
        # A log that had unused room for the entry begins no segment: then its block is written.
        if not any(step.startswith("sync header") for step in plan):
            return None
        self.pages.remember()
        if self._random.random() < 0.5:
            self.disk.power_cut(lambda: self._random.choice((LOST, KEPT, *MASKS)))
        self._votes = {self._vote}
        self._unsettled = [entry for _, tail in self._tails for entry in tail]
        return self._all_pages(last)

    def _all_pages(self, last: list[Page]) -> Spoilable:
        """One page of any file may be spoilt, and ``last`` are those of the last entry."""
        sizes = {name: len(inode.content) for name, inode in self.disk.files.items()}
        pages = [(name, at) for name, size in sizes.items() for at in range(0, size, PAGE)]
        return Spoilable(pages, [], tuple(page for page in last if page in pages))

    def _pages_of(self, index: Index) -> list[Page]:
        """The pages of the frame of this entry; none before the first."""
        if not index:
            return []
        segment = self._log.segment(index)
        start, stop = segment.rows.frame(index)
        name = segment_name(segment.number)
        return [(name, place) for place in range(start // PAGE * PAGE, stop, PAGE)]

    def _act(self, chance: float) -> Action:
        """The next operation: the lower ``chance``, the plainer."""
        if chance < 0.55 or not self.entries:
            return self._flush("flush", self._random.randrange(1, 4))
        if chance < 0.8 and len(self.entries) > self._committed:
            return self._replace()
        same = self.entries, self._vote, len(self.entries)
        if chance < 0.86:
            return Action("prove", self._flusher.prove(self._committed), *same)
        if chance < 0.92:
            self._commit()
            return Action("chores", self._flusher.chores(self._committed), *same)
        if chance < 0.96:
            return Action("allocate", self._flusher.allocate_ahead(), *same)
        return Action("open", None, *same)

    def _commit(self) -> None:
        self._committed = Index(self._random.randrange(self._committed, len(self.entries) + 1))

    def _do(self, action: Action) -> None:
        if action.plan is None:
            self._log, self._flusher = open_disk(self.disk)
        else:
            run(action.plan)
        self.entries, self._vote = action.entries, action.vote

    def _flush(self, name: str, count: int, kept: int | None = None) -> Action:
        """Append entries behind the whole log, or behind the first ``kept``."""
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
        """Replace the entries from some place on by those of another leader, or by none."""
        ends = [_end_of(self.entries[:kept]) for kept in range(len(self.entries))]
        known = {before for before, _ in self._tails}
        # The places where entries were cut off before that may come back.
        again = [one.index for one in ends[self._committed :] if one in known]
        kept = self._random.randrange(self._committed, len(self.entries))
        if again and self._random.random() < 0.5:
            kept = self._random.choice(again)
        self._term = Term(self._term + 1)
        action = self._flush("replace", self._random.randrange(3), kept)
        self._tails.append((_end_of(self.entries[:kept]), self.entries[kept:]))
        return action

    def _come_back(self, last: Position) -> list[Entry]:
        """Some of the entries that were cut off behind ``last`` once, now and then."""
        for before, tail in reversed(self._tails):
            if before == last and self._random.random() < 0.6:
                return tail[: self._random.randrange(1, len(tail) + 1)]
        return []

    def crash_an_open(self) -> None:
        """Kill the open that finds the spoilt pages, or cut the power while it is under way."""
        steps = self._random.randrange(1, 20)
        with suppress(Damaged):
            for _ in islice(opening(self.disk), steps):
                pass
            if self._random.random() < 0.7:
                self.disk.power_cut(lambda: self._random.choice((LOST, KEPT, TORN)))

    # -- the verdict ---------------------------------------------------------------------------

    def check(self) -> str:
        """The result of an open; raises Unnoticed if the open forgets an entry."""
        try:
            log, _ = open_disk(self.disk)
            recovered = Recovered.of(log)
        except (Corrupt, Damaged):
            return "damaged"
        if (vote := (log.record.term, log.record.vote)) not in self._votes:
            raise Unnoticed(f"the vote is {vote}, not one of {self._votes}")
        if recovered.committed > self._committed:
            raise Unnoticed(f"entry {recovered.committed} was never committed")
        lost = self._check_entries(log, recovered.committed)
        if log.record.unsure:
            return "unsure"
        last = _end_of(self.entries)
        behind = {one.position for one in self._unsettled if one.index > last.index}
        if log.last != last and log.last not in behind:
            raise Unnoticed(f"{_named(log.last)} is the last, not {_named(last)}")
        return "damaged" if lost else "whole"

    def _check_entries(self, log: SegmentLog, committed: Index) -> int:
        """Judge each entry and each position by itself; the number of those that are lost.

        An unsure node may end with entries that were replaced. It must not take one of them for
        committed.
        """
        right = {entry.position: entry for entry in (*self.entries, *self._unsettled)}
        right |= {entry.position: entry for _, tail in self._tails for entry in tail}
        stored, lost = StoredEntries(log), 0
        for index in map(Index, range(1, log.last.index + 1)):
            wanted = self.entries[index - 1] if index <= len(self.entries) else None
            if log.record.unsure and index > committed:
                wanted = None
            with suppress(Corrupt):
                position = stored.position(index)
                if wanted is not None and position != wanted.position:
                    raise Unnoticed(f"entry {index} is at {_named(position)}")
            try:
                (entry,) = stored.entries(index, Index(index + 1))
            except Corrupt:
                lost += 1
                continue
            if wanted is not None and entry.position != wanted.position:
                raise Unnoticed(f"entry {index} is {_named(entry.position)}")
            if entry.position not in right or (entry.whole and entry != right[entry.position]):
                raise Unnoticed(f"{_named(entry.position)} was never there, or has other bytes")
        return lost


def _end_of(entries: list[Entry]) -> Position:
    return entries[-1].position if entries else ORIGIN


def _named(position: Position) -> str:
    return f"{position.index}/{position.term}"


def wander(seed: int) -> str | None:
    """Run the life of ``seed``; return the result of its open, or None if no page may be spoilt."""
    random = Random(f"wander {seed}")
    life = Wandering(random)
    life.live()
    amid = random.random() < 0.5
    spoilable = life.end_amid() if amid else life.end()
    if spoilable is None:
        return None
    done = life.pages.spoil(spoilable)
    if random.random() < 0.4:
        life.crash_an_open()
        done += ", and the open crashed"
    try:
        answer = life.check()
        if random.random() < 0.5:
            # What the open kept must not rest on a proof that it removed.
            life.disk.power_cut(lambda: random.choice((LOST, KEPT, TORN)))
            life.check()
        return answer
    except (Unnoticed, LookupError, OSError, ValueError, AssertionError) as problem:
        raise Unnoticed(f"seed {seed}, {done}: {problem!r}") from problem


def wander_all(seeds: Iterable[int]) -> OpenedDisks:
    """Run the lives of all seeds."""
    outcome = OpenedDisks()
    for seed in seeds:
        try:
            outcome.crashed += wander(seed) is not None
        except Unnoticed as problem:
            outcome.problems.append(str(problem))
    return outcome
