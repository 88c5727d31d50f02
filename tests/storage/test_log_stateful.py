"""A log on disk against a list, in any order of writes, crashes and openings."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_rig import FUZZ
from quorate.entry import Entry, make_entry
from quorate.storage.flusher import Flush
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Term
from verification.disk.crashes import FAILED, KILLED, MASKS, POWER_CUT, power_cut
from verification.disk.enumerate import Kept, Promise, open_disk, opening
from verification.disk.inode import KEPT, LOST, Fate
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

SIZES = st.lists(st.sampled_from((0, 100, 3_000, 9_000)), min_size=1, max_size=4)
FRACTIONS = st.sampled_from((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))


class Stop(NamedTuple):
    """How a plan ends before its end."""

    steps: int
    how: str
    fates: list[Fate]


STOPS = st.builds(
    Stop,
    st.integers(0, 12),
    st.sampled_from((KILLED, FAILED, POWER_CUT)),
    st.lists(st.sampled_from((KEPT, LOST, *MASKS)), max_size=6),
)
# The first stops the plan, the others the opens after it. Half of the plans come to their end.
CRASHES = st.booleans().flatmap(lambda calm: st.lists(STOPS, max_size=0 if calm else 3))


class LogMachine(RuleBasedStateMachine):
    """Every rule that writes may crash, and the opens after it, too.

    What is found must be what was there before or what was written, and all of it if whoever waited
    for the plan has heard of its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.log: SegmentLog
        self.flusher: Flusher
        self.log, self.flusher = open_disk(self.disk)
        self.kept = Kept()
        self.committed = 0
        self.spoken = self.log.record.boot
        self.change_vote([])

    @initialize(sizes=st.lists(SIZES, max_size=6))
    def begin_with_some_entries(self, sizes: list[list[int]]) -> None:
        for each in sizes:
            self.append(each, [])

    # -- writing -------------------------------------------------------------------------------

    @rule(sizes=SIZES, stops=CRASHES)
    def append(self, sizes: list[int], stops: list[Stop]) -> None:
        more = self.grow(self.kept.entries, sizes)
        flush = Flush(1, entries=more, committed=Index(self.committed))
        after = self.kept._replace(entries=self.kept.entries + more)
        self.carry_out(self.flusher.plan(flush), after, stops)

    @rule(where=FRACTIONS, sizes=SIZES, stops=CRASHES)
    def replace_the_end(self, where: float, sizes: list[int], stops: list[Stop]) -> None:
        """Another leader has another log."""
        entries = self.kept.entries
        first = self.committed + 1 + int(where * (len(entries) - self.committed))
        if first > len(entries):
            return
        vote = (Term(self.kept.term + 1), None)
        more = self.grow(entries[: first - 1], sizes, vote[0])
        flush = Flush(1, vote, Index(first), more, Index(self.committed))
        after = Kept(entries[: first - 1] + more, self.kept.first, *vote)
        self.carry_out(self.flusher.plan(flush), after, stops)

    @rule(stops=CRASHES)
    def change_vote(self, stops: list[Stop]) -> None:
        term = Term(self.kept.term + 1)
        vote = (term, NodeId(f"n{term}"))
        after = self.kept._replace(term=term, vote=vote[1])
        self.carry_out(self.flusher.plan(Flush(1, vote=vote)), after, stops)

    @rule(where=FRACTIONS, stops=CRASHES)
    def commit_and_do_chores(self, where: float, stops: list[Stop]) -> None:
        """Seals a segment if all in it is committed now."""
        self.committed += int(where * (len(self.kept.entries) - self.committed))
        self.carry_out(self.flusher.chores(Index(self.committed)), self.kept, stops)

    @precondition(lambda self: self.flusher.unproven)
    @rule(stops=CRASHES)
    def prove(self, stops: list[Stop]) -> None:
        self.carry_out(self.flusher.prove(Index(self.committed)), self.kept, stops)

    @rule(where=FRACTIONS, stops=CRASHES)
    def trim(self, where: float, stops: list[Stop]) -> None:
        sealed = [one for one in self.log.segments if one.footer is not None]
        dropped = int(where * len(sealed))
        first = self.log.segments[dropped].first if dropped else self.kept.first
        self.carry_out(self.flusher.trim(first), self.kept._replace(first=first), stops)

    @rule(stops=CRASHES)
    def close(self, stops: list[Stop]) -> None:
        self.carry_out(self.flusher.close(Index(self.committed)), self.kept, stops)
        self.reopen([])

    @rule(stops=CRASHES)
    def reopen(self, stops: list[Stop]) -> None:
        """After a kill, and perhaps a power cut."""
        for stop in stops:
            self.crash(opening(self.disk), stop)
        self.find(Promise(self.kept, self.kept, self.spoken, ended=True))

    # -- reading -------------------------------------------------------------------------------

    @rule(start=FRACTIONS, stop=FRACTIONS)
    def read(self, start: float, stop: float) -> None:
        entries, begin = self.kept.entries, self.kept.first
        size = len(entries) + 1 - begin
        first, last = sorted((begin + int(start * size), begin + int(stop * size)))
        found = list(self.log.entries(Index(first), Index(last)))
        assert found == list(entries[first - 1 : last - 1])
        for entry in found:
            assert self.log.position(entry.index) == entry.position
            assert not entry.count or self.log.index_at_offset(entry.base_offset) == entry.index

    @invariant()
    def the_log_is_as_long_as_the_list(self) -> None:
        entries = self.kept.entries
        assert self.log.first == self.kept.first
        assert self.log.last == (entries[-1].position if entries else ORIGIN)

    # -- what the rules share ------------------------------------------------------------------

    def grow(
        self, entries: tuple[Entry, ...], sizes: list[int], term: Term | None = None
    ) -> tuple[Entry, ...]:
        added: list[Entry] = []
        before = entries[-1] if entries else None
        for size in sizes:
            before = make_entry(
                before.position if before else ORIGIN,
                term or self.kept.term,
                EntryKind.DATA,
                b"%4d" % (self.log.record.number + size) * (size // 4),
                base_offset=before.base_offset + before.count if before else 0,
                count=size % 7,
            )
            added.append(before)
        return tuple(added)

    def carry_out(self, plan: Iterator[str], after: Kept, stops: list[Stop]) -> None:
        """Run ``plan`` to its end, or into the first of ``stops``; the others meet the opens."""
        if not stops:
            for _ in plan:
                pass
            self.kept = after
            return
        ended = self.crash(plan, stops[0])
        for stop in stops[1:]:
            self.crash(opening(self.disk), stop)
        self.find(Promise(self.kept, after, self.spoken, ended))

    def crash(self, plan: Iterator[str], stop: Stop) -> bool:
        """Whether ``plan`` had come to its end before the crash."""
        step: str | None = ""
        for _ in range(stop.steps):
            step = next(plan, None)
        if stop.how is FAILED and step is not None:
            self.disk.error = errno.EIO
            try:
                step = next(plan, None)
            except OSError:
                step = ""
            self.disk.error = 0
        elif stop.how is POWER_CUT:
            power_cut(self.disk, stop.fates)
        return step is None

    def find(self, promise: Promise) -> None:
        self.log, self.flusher = open_disk(self.disk)
        self.kept = promise.judge(self.log, self.disk)
        self.spoken = self.log.record.boot


TestLogInAnyOrder = LogMachine.TestCase
TestLogInAnyOrder.settings = settings(FUZZ, max_examples=200, stateful_step_count=30)
