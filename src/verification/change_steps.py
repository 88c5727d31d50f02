"""Breaks a node at every step of every change of the members: one history, one membership.

``python -m verification.change_steps [--share K/N]``

The members change from one set of voters to another; each flush and each message is a step. For
each step, each node and each fault the change is played once: after that step the node is killed,
loses its power or is cut off for some time, and comes back. In the end one membership must be in
force on all its members, every acknowledged record must be there once, and records are taken again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import Receipt
from quorate.config import Config, Timing
from quorate.errors import QuorateError
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.types import EntryKind, Index, NodeId, Position, Role, Term
from verification.disk.inode import LOST
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.replica.engine_io import Input

__all__ = ["FAULTS", "Case", "Play", "cases", "changes", "main"]

FAULTS = ("killed", "powerless", "cut off")
# Short timeouts: fewer ticks to play.
TIMING = Timing(heartbeat_ms=30, election_ms=100, resend_ms=60, hint_min_ms=10, hint_max_ms=30)
ELECTION_TICKS = TIMING.ticks(TIMING.election_ms)
# Election timeouts that a fault lasts, and after which a whole cluster must be at rest.
FAULT_ELECTIONS = 6
HEALED_ELECTIONS = 60
STEPS_MAX = 5000
# A record is sent every so many steps.
RECORD_STEPS = 40
# A tick passes every so many steps, also while messages are under way.
TICK_STEPS = 20
FAILURES_SHOWN_MAX = 20

Voters = tuple[int, ...]


class Case(NamedTuple):
    """One change, and the fault that a node has after one of its steps."""

    old: Voters
    new: Voters
    step: int
    node: int
    fault: str


class BrokenChange(Exception):  # it is not an error of this program
    """A promise that was broken."""


def changes() -> list[tuple[Voters, Voters]]:
    """All changes among four nodes between sets of one and three voters, but for their names; and
    one between two sets of three that share no node."""
    sets = [*combinations(range(1, 5), 1), *combinations(range(1, 5), 3)]
    found = [(old, new) for old in ((1,), (1, 2, 3)) for new in sets if old != new]
    return [*found, ((1, 2, 3), (4, 5, 6))]


def _name(number: int) -> NodeId:
    return NodeId(f"n{number}")


class Play(HandCluster):
    """A cluster that is moved step by step, and watched at each turn."""

    def __init__(self, old: Voters, new: Voters) -> None:
        # What the cluster committed, by index, and who led in each term.
        self.history: dict[Index, Position] = {}
        self.leaders: dict[Term, NodeId] = {}
        self._seen: dict[NodeId, Index] = {}
        config = replace(Config(), timing=TIMING)
        super().__init__(max(4, *old, *new), config, auto_flush=False, voters=len(old))
        self.wanted = Membership(tuple(map(_name, new)))
        self.records: list[tuple[int, bytes]] = []
        self.changed: int | None = None
        self._steps = 0

    # -- watching ------------------------------------------------------------------------------

    def turn(self, name: str, inputs: Sequence[Input] = ()) -> None:  # type: ignore[override]  # a list each time
        super().turn(name, inputs)
        node = self.nodes[NodeId(name)]
        if node.halted is not None:
            raise BrokenChange(f"{name} halted: {node.halted}")
        if node.engine is None:
            return
        raft = node.engine.core.raft
        if raft.role is Role.LEADER and self.leaders.setdefault(raft.term, node.name) != node.name:
            raise BrokenChange(f"{name} and {self.leaders[raft.term]} lead in term {raft.term}")
        seen = self._seen.get(node.name, Index(0))
        for index in range(seen + 1, raft.committed + 1):
            position = raft.log.position(Index(index))
            if self.history.setdefault(Index(index), position) != position:
                raise BrokenChange(f"{name} committed another entry {index} than others did")
        self._seen[node.name] = raft.committed

    # -- moving --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Elect the first leader, commit a record, and ask for the change."""
        while self.leader() is None or not self._at_rest():
            self.step()
        self.send()
        while not self._at_rest():
            self.step()
        change = MemberChange(self.wanted, patience_ms=600_000)
        self.changed = self.change(self.leader() or "", change)

    def _at_rest(self) -> bool:
        return not self.table and all(node.flush is None for node in self.nodes.values())

    @property
    def done(self) -> bool:
        return self.changed in self.answers

    def step(self) -> None:
        """Carry out one flush, or deliver one message; if there is neither, a tick passes."""
        self._steps += 1
        if self._steps % TICK_STEPS == 0:
            self.tick()
        for name, node in self.nodes.items():
            if node.flush is not None:
                self.flush(name)
                return
        if self.table:
            self.deliver(self.table.pop(0))
        else:
            self.tick()

    def send(self) -> None:
        """Send a record to the node that leads, if one does."""
        leader = self.leader()
        if leader is not None:
            batch = b"record %d" % len(self.records)
            self.records.append((self.propose(leader, batch), batch))

    def rest(self, ticks: int) -> None:
        """Let time pass; deliver and flush all that comes up."""
        for _ in range(ticks):
            self.tick()
            while not self._at_rest():
                self.step()

    def break_node(self, number: int, fault: str) -> None:
        name = _name(number)
        if fault == "cut off":
            self.isolate(name)
        else:
            self.crash(name, (lambda: LOST) if fault == "powerless" else None)

    def heal_node(self, number: int) -> None:
        self.heal()
        name = _name(number)
        if self.nodes[name].engine is None:
            self.restart(name)
            self._seen[name] = Index(0)

    # -- judging -------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """Wait until the members agree and take a record."""
        for _ in range(HEALED_ELECTIONS):
            self.rest(ELECTION_TICKS)
            if self._agrees() and self._takes_record():
                return
        raise BrokenChange(f"no agreement in {HEALED_ELECTIONS} election timeouts: {self._told()}")

    def _takes_record(self) -> bool:
        self.send()
        self.rest(3)
        return isinstance(self.answers.get(self.records[-1][0]), Receipt)

    def _agrees(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        own = self.engine(leader).core.raft
        newest = own.memberships.newest
        ends = {self.engine(node).core.raft.log.last for node in newest.members}
        certain = own.memberships.index <= own.committed == own.applied == own.log.last_index
        return len(ends) == 1 and not newest.joint and certain and leader in newest.voters

    def _told(self) -> str:
        parts = []
        for name, node in self.nodes.items():
            if node.engine is not None:
                raft = node.engine.core.raft
                ends = f"{raft.committed} of {raft.log.last_index}"
                sure = "" if raft.sure else ", unsure"
                role = raft.role.name.lower()
                newest = raft.memberships.newest
                parts.append(f"{name} {role} in {raft.term}, {ends}{sure}: {newest}")
        return " | ".join(parts)

    def judge(self) -> None:
        """Check that each acknowledged record is in the log once, and no record twice."""
        leader = self.leader()
        assert leader is not None
        log = self.engine(leader).core.raft.log
        bodies = [
            entry.body
            for entry in log.entries(Index(1), Index(log.last_index + 1))
            if entry.kind is EntryKind.DATA
        ]
        for token, batch in self.records:
            count = sum(body.endswith(batch) for body in bodies)
            acked = isinstance(self.answers.get(token), Receipt)
            if count > 1 or (acked and not count):
                times = f"{count} times in the log, acked: {acked}"
                raise BrokenChange(f"{batch.decode()!r} is {times}")


def steps_of(old: Voters, new: Voters) -> int:
    """The number of steps of a change without a fault."""
    play = Play(old, new)
    play.begin()
    for step in range(STEPS_MAX):
        if play.done:
            result = play.answers[play.changed or 0]
            if isinstance(result, QuorateError):
                raise BrokenChange(f"the change from {old} to {new} failed: {result}")
            return step
        play.step()
        if step % RECORD_STEPS == 0:
            play.send()
    raise BrokenChange(f"the change from {old} to {new} does not end in {STEPS_MAX} steps")


def cases(old: Voters, new: Voters) -> Iterator[Case]:
    """Every step of a change, with every fault of every node."""
    for step in range(steps_of(old, new) + 1):
        for node in sorted({1, 2, *old, *new}):
            yield from (Case(old, new, step, node, fault) for fault in FAULTS)


def play(case: Case) -> str | None:
    """Play one case; returns the promise that was broken, or None."""
    try:
        cluster = Play(case.old, case.new)
        cluster.begin()
        for step in range(case.step):
            cluster.step()
            if step % RECORD_STEPS == 0:
                cluster.send()
        cluster.break_node(case.node, case.fault)
        cluster.rest(FAULT_ELECTIONS * ELECTION_TICKS)
        cluster.heal_node(case.node)
        cluster.settle_down()
        cluster.judge()
    except BrokenChange as broken:
        return f"{case}: {broken}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    prog = "python -m verification.change_steps"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--share", default="1/1", help="play the K-th of N shares (default: 1/1)")
    share, shares = map(int, parser.parse_args(arguments).share.split("/"))
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for old, new in changes():
            chosen = [*cases(old, new)][share - 1 :: shares]
            broken = [found for found in pool.map(play, chosen, chunksize=16) if found]
            counts["runs"] += len(chosen)
            counts["violations"] += len(broken)
            print(f"{old} to {new}: {len(chosen)} runs, {len(broken)} violations", flush=True)
            for found in broken[:FAILURES_SHOWN_MAX]:
                print(f"  {found}", flush=True)
    seconds = time.monotonic() - begun
    told = " ".join(f"{what}={count}" for what, count in counts.items())
    print(f"change_steps: {told} seconds={seconds:.0f}")
    return 1 if counts["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
