"""Crashes a log at every step of every operation, and opens the disk that is left.

``python -m verification.disk.enumerate [--only NAME ...] [--every N]``

Each scenario runs one plan. First the plan is crashed, in every way. Then, over the disks that are
left, the open is crashed in every way, too. Every result must keep the promise.

After that each life of ``verification.disk.lives`` is spoilt in many ways, and the open that
finds it is crashed in every way; over some of the disks that this leaves the next open is crashed,
too. At last many random lives are spoilt in a few ways each.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import QuorateError, ReplicaHalted
from quorate.storage.flusher import Flush
from quorate.storage.layout import index_name, segment_name
from quorate.types import ORIGIN, Index, NodeId, Term
from verification.disk.crashes import crash_states, power_cut
from verification.disk.lives import LIVES
from verification.disk.rot import spoil_all
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import SEGMENT_BYTES, OpenedDisks, grow, open_disk, opening, run
from verification.disk.wander import wander_all

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from quorate.entry import Entry
    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog
    from verification.disk.crashes import Crash
    from verification.disk.small import Open, Step

__all__ = [
    "SCENARIOS",
    "SEGMENT_BYTES",
    "BrokenPromise",
    "CrashScenario",
    "Kept",
    "OpenedDisks",
    "Promise",
    "enumerate_all",
    "grow",
    "open_disk",
    "opening",
]  # fmt: skip

SHOWN_MAX = 3
# The name of a life that is spoilt.
ROTTEN = "rot: "
# An open of a spoilt disk is crashed again over one of so many disks.
ROTTEN_EVERY = 20
# The name and the number of the random lives.
RANDOM = "rot: random lives"
RANDOM_LIVES = 40_000
# If ``every`` is larger than this, fewer ways to spoil a disk are tried as well.
ROTS_EVERY = 5


# -- the promise -------------------------------------------------------------------------------


class BrokenPromise(Exception):
    """An open found an entry that it must not find, or did not find an entry that it must find."""


# The errors with which a wrong open ends.
PROBLEMS = (BrokenPromise, QuorateError, ReplicaHalted, LookupError, OSError, ValueError)


class Kept(NamedTuple):
    """The content of a node's disk."""

    # All entries from the first ever, the trimmed ones included.
    entries: tuple[Entry, ...] = ()
    first: Index = Index(1)  # a NewType is the number itself
    term: Term = Term(0)
    vote: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """The results that an open may give after a crash of the plan that leads from ``before`` to
    ``after``."""

    before: Kept
    after: Kept
    # The highest boot number that another process has seen.
    spoken: int = 0
    # The plan had come to its end: the disk must hold ``after``.
    ended: bool = False

    def check(self, disk: SimulatedDisk) -> None:
        """Open ``disk``, and check that the log found stays the same and takes entries."""
        opened = open_disk(disk)
        log, _ = opened
        found = self.judge(log, disk)
        kept = Promise(found, found, log.record.boot, ended=True)
        without = disk.copy()
        power_cut(without)
        again, _ = open_disk(without)
        kept.judge(again, without)
        more = grow(log.last, 50, term=log.record.term + 1)
        run(opened[1].plan(Flush(1, entries=more)))
        power_cut(disk)
        longer = found._replace(entries=found.entries + more, term=more[0].term, vote=None)
        again, _ = open_disk(disk)
        Promise(longer, longer, log.record.boot, ended=True).judge(again, disk)

    def judge(self, log: SegmentLog, disk: SimulatedDisk) -> Kept:
        """The content that an open has found; raises BrokenPromise if it must not be found."""
        record = log.record
        _demand(not log.damage, f"sound bytes count as damaged: {log.damage}")
        _demand(not record.unsure, "the node is unsure of a log that it has")
        _demand(record.boot > self.spoken, f"boot {record.boot} after {self.spoken} was spoken")
        _demand(not (stray := _stray(log, disk)), f"files are left for ever: {stray}")
        found = tuple(log.entries(log.first, Index(log.last.index + 1)))
        self._judge_vote(found, (record.term, record.vote))
        self._judge_entries(log.first, found)
        kept = (self.before if self._older(log.first, found) else self.after).entries
        entries = kept[: log.last.index]
        return Kept(entries, log.first, record.term, record.vote)

    def _judge_entries(self, first: Index, found: tuple[Entry, ...]) -> None:
        before, after = self.before, self.after
        firsts = range(before.first, after.first + 1)
        last = first - 1 + len(found)
        _demand(first in firsts, f"the log begins at {first}, not in {firsts}")
        newer = found == after.entries[first - 1 : last]
        _demand(newer or self._older(first, found), f"no log ever was {_named(found)}")
        if self.ended:
            _demand(first == after.first, f"entries before {after.first} are back")
            _demand(newer and last == len(after.entries), f"{_named(found)} is not all")
        stays = sum(old == new for old, new in zip(before.entries, after.entries, strict=False))
        _demand(last >= stays, f"of {stays} entries that no plan cut, {last} are left")

    def _older(self, first: Index, found: tuple[Entry, ...]) -> bool:
        return found == self.before.entries[first - 1 : first - 1 + len(found)]

    def _judge_vote(self, found: tuple[Entry, ...], vote: tuple[Term, NodeId | None]) -> None:
        before, after = self.before, self.after
        untouched = found == before.entries[before.first - 1 :] and not self.ended
        allowed = [(after.term, after.vote)]
        if untouched or (before.term, before.vote) == (after.term, after.vote):
            allowed.append((before.term, before.vote))
        _demand(vote in allowed, f"the vote is {vote}, not in {allowed}")


def _demand(condition: bool, problem: str) -> None:
    if not condition:
        raise BrokenPromise(problem)


def _named(entries: Sequence[Entry]) -> list[str]:
    return [f"{entry.index}/{entry.term}" for entry in entries]


def _stray(log: SegmentLog, disk: SimulatedDisk) -> list[str]:
    """Files that belong to no part of the log and that no step will ever remove."""
    numbers = [segment.number for segment in log.segments]
    ours = {*map(segment_name, numbers), *map(index_name, numbers), "vote-a", "vote-b", "spare"}
    return sorted(set(disk.names()) - ours)


# -- scenarios ---------------------------------------------------------------------------------


class CrashScenario(NamedTuple):
    """One plan and the change that it makes."""

    name: str
    before: Kept
    after: Kept
    # The plan that is crashed; None for an open.
    plan: Step | None
    # The steps that were run on the disk before.
    past: tuple[Step, ...] = ()

    def disk(self) -> tuple[SimulatedDisk, int]:
        """The disk before the plan, and the number of its last boot."""
        disk = SimulatedDisk()
        if not self.past:
            return disk, 0
        log, flusher = open_disk(disk)
        for step in self.past:
            run(step(log, flusher))
        return disk, log.record.boot

    def start(self, disk: SimulatedDisk) -> Generator[str, None, Open]:
        """Begin the plan in a new process."""
        return opening(disk) if self.plan is None else _carry_out(self.plan, open_disk(disk))


def _carry_out(step: Step, opened: Open) -> Generator[str, None, Open]:
    yield from step(*opened)
    return opened


def _flush(*entries: Entry, cut: int | None = None, vote: int | None = None) -> Step:
    first = Index(cut) if cut is not None else None
    record = (Term(vote), NodeId(f"n{vote}")) if vote is not None else None
    flush = Flush(1, record, first, entries)
    return lambda _, flusher: flusher.plan(flush)


def _chores(committed: int) -> Step:
    return lambda _, flusher: flusher.chores(Index(committed))


def _trim(first: int) -> Step:
    return lambda _, flusher: flusher.trim(Index(first))


def _cut_without_room(log: SegmentLog, flusher: Flusher) -> Iterator[str]:
    """Cut all but the first entry, while another program takes the room that the cut gives back."""
    for step in flusher.plan(Flush(1, truncate_from=Index(2))):
        if step.startswith("truncate") and isinstance(log.vfs, SimulatedDisk):
            log.vfs.capacity -= log.vfs.space()[0]
        yield step


def _prove(_: SegmentLog, flusher: Flusher) -> Iterator[str]:
    return flusher.prove(Index(0))


def _close(_: SegmentLog, flusher: Flusher) -> Iterator[str]:
    return flusher.close(Index(0))


_VOTED = Kept(term=Term(1), vote=NodeId("n1"))
_VOTE = _flush(vote=1)
# Two blocks, of one page and of three.
_SHORT = grow(ORIGIN, 100, 100, 100, 9_000, 100)
_SHORT_PAST = (_VOTE, _flush(*_SHORT[:3]), _flush(*_SHORT[3:]))
# The same up to its second entry, then another one.
_OTHER = (*_SHORT[:2], *grow(_SHORT[1].position, 200))
# Four segments: entries 1 to 3, 4 to 6, 7 to 9 and 10.
_LONG = grow(ORIGIN, *[4_500] * 10)
_LONG_PAST = (_VOTE, *(_flush(*_LONG[start : start + 2]) for start in range(0, 10, 2)))
_SEALED_PAST = (*_LONG_PAST, _chores(6), _chores(6))


def _kept(entries: Sequence[Entry], first: int = 1) -> Kept:
    return _VOTED._replace(entries=tuple(entries), first=Index(first))


def _appending(
    name: str, past: tuple[Step, ...], old: Sequence[Entry], *sizes: int
) -> CrashScenario:
    more = grow(old[-1].position if old else ORIGIN, *sizes)
    return CrashScenario(name, _kept(old), _kept((*old, *more)), _flush(*more), past)


def _cutting(name: str, past: tuple[Step, ...], old: Sequence[Entry], cut: int) -> CrashScenario:
    return CrashScenario(name, _kept(old), _kept(old[: cut - 1]), _flush(cut=cut), past)


def _replacing(name: str, past: tuple[Step, ...], old: Sequence[Entry], cut: int) -> CrashScenario:
    """A scenario in which a follower replaces its log by another log of the leader of the next
    term."""
    stays = tuple(old[: cut - 1])
    more = grow(stays[-1].position if stays else ORIGIN, 200, 5_000, term=2)
    after = Kept(stays + more, Index(1), Term(2), NodeId("n2"))
    return CrashScenario(name, _kept(old), after, _flush(*more, cut=cut, vote=2), past)


def _same(name: str, plan: Step | None, kept: Kept, *past: Step) -> CrashScenario:
    return CrashScenario(name, kept, kept, plan, past)


SCENARIOS = (
    _same("first open", None, Kept()),
    _same("open after a kill", None, _kept(_SHORT), *_SHORT_PAST),
    _same("open after a clean close", None, _kept(_SHORT), *_SHORT_PAST, _close),
    _same("open of many segments", None, _kept(_LONG), *_SEALED_PAST),
    _appending("first append", (_VOTE,), (), 100, 100),
    _appending("append", _SHORT_PAST[:2], _SHORT[:3], 100, 9_000, 100),
    _appending("append after a proof", (*_SHORT_PAST, _prove), _SHORT, 100),
    _appending("append across a roll", _SHORT_PAST[:2], _SHORT[:3], *[5_000] * 4),
    _appending("append more than a segment", _SHORT_PAST[:2], _SHORT[:3], 40_000),
    _same("seal", _chores(3), _kept(_LONG), *_LONG_PAST),
    _same("seal another", _chores(6), _kept(_LONG), *_LONG_PAST, _chores(6)),
    _cutting("truncate within a block", _SHORT_PAST, _SHORT, 5),
    _cutting("truncate at the head of a block", _SHORT_PAST, _SHORT, 4),
    _cutting("truncate everything", _SHORT_PAST, _SHORT, 1),
    _cutting("truncate across segments", _LONG_PAST, _LONG, 2),
    _cutting("truncate to where a segment begins", _SEALED_PAST, _LONG, 7),
    _cutting("truncate in the same place again", (*_SHORT_PAST, _flush(*_OTHER[2:], cut=3)),
             _OTHER, 3),
    CrashScenario("truncate without room", _kept(_SHORT), _kept(_SHORT[:1]), _cut_without_room,
             _SHORT_PAST),
    _appending("append after a cut without room", (*_SHORT_PAST, _chores(0), _cut_without_room),
               _SHORT[:1], 100, 100),
    _replacing("replace within a block", _SHORT_PAST, _SHORT, 2),
    _replacing("replace across segments", _LONG_PAST, _LONG, 5),
    CrashScenario("trim", _kept(_LONG), _kept(_LONG, 7), _trim(9), _SEALED_PAST),
    CrashScenario("vote", _kept(_SHORT), _kept(_SHORT)._replace(term=Term(2), vote=NodeId("n2")),
             _flush(vote=2), _SHORT_PAST),
    _same("prove", _prove, _kept(_SHORT), *_SHORT_PAST),
    _same("clean close", _close, _kept(_SHORT), *_SHORT_PAST),
)  # fmt: skip


# -- running them ------------------------------------------------------------------------------


def enumerate_all(scenario: CrashScenario, every: int = 1) -> OpenedDisks:
    """Crash the plan in every way, and then the open, over every so many of the disks that are
    left."""
    disk, boot = scenario.disk()
    outcome = OpenedDisks()
    promise = Promise(scenario.before, scenario.after)
    for crash in crash_states(disk, scenario.start):
        spoken = boot + (scenario.plan is not None or crash.ended)
        held = replace(promise, spoken=spoken, ended=crash.ended)
        if outcome.crashed % every == 0:
            # If the open itself goes wrong, the check that follows reports the error.
            with suppress(*PROBLEMS):
                _crash_the_open(crash, held, outcome)
        outcome.crashed += 1
        _check(held, crash.disk, str(crash), outcome)
    return outcome


def _crash_the_open(crash: Crash[Open], promise: Promise, outcome: OpenedDisks) -> None:
    held = promise
    for again in crash_states(crash.disk, opening):
        if again.ended and held is promise and again.result is not None:
            # The node has answered with the log that it found: that is the log from now on.
            log, _ = again.result
            found = promise.judge(log, again.disk)
            held = Promise(found, found, log.record.boot, ended=True)
        outcome.crashed_again += 1
        _check(held, again.disk, f"{crash}; open {again}", outcome)


def _check(promise: Promise, disk: SimulatedDisk, how: str, outcome: OpenedDisks) -> None:
    try:
        promise.check(disk)
    except PROBLEMS as problem:
        outcome.problems.append(f"{how}: {problem!r}")


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    names = [*(scenario.name for scenario in SCENARIOS), *(ROTTEN + life.name for life in LIVES),
             RANDOM]  # fmt: skip
    unknown = set(parsed.only or ()) - set(names)
    if unknown:
        print(f"error: no scenario {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    states = bad = 0
    print(f"{'scenario':36} {'crashed':>8} {'and while opening':>18} {'bad':>6}", flush=True)
    for name, outcome in _outcomes(parsed.only or names, parsed.every):
        states += outcome.states
        bad += len(outcome.problems)
        counts = f"{outcome.crashed:8} {outcome.crashed_again:18} {len(outcome.problems):6}"
        print(f"{name:36} {counts}", flush=True)
        for problem in outcome.problems[:SHOWN_MAX]:
            print(f"  {problem}", flush=True)
    print(f"crash states: {states}, bad: {bad}")
    return 1 if bad else 0


def _outcomes(names: Sequence[str], every: int) -> Iterator[tuple[str, OpenedDisks]]:
    for scenario in SCENARIOS:
        if scenario.name in names:
            yield scenario.name, enumerate_all(scenario, every)
    for life in LIVES:
        if ROTTEN + life.name in names:
            rots_every = max(1, every // ROTS_EVERY)
            yield ROTTEN + life.name, spoil_all(life, every * ROTTEN_EVERY, rots_every)
    if RANDOM in names:
        yield RANDOM, wander_all(range(RANDOM_LIVES // every))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verification.disk.enumerate", description=__doc__
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these scenarios")
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="crash the open over every so many disks; 1, unless told: some minutes of one core",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
