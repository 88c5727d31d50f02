"""Random lives of a cluster: starts, handshakes that break in the middle, older copies of one node.

Two rules hold in each of them. A node that completed a handshake in which it was shown or told a
start of another node lets in no directory of which that start was another process. And a node that
was never copied is neither refused nor marked.
"""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from roster_rig import Machine, form, hear

from quorate.errors import WrongDirectory
from quorate.types import NodeId

ROUNDS = 6


class Life:
    """One cluster; only its first node is ever rolled back."""

    def __init__(self, seed: int, *, copies: bool) -> None:
        self.random = random = Random(seed)
        names = tuple(
            NodeId(f"n{number}") for number in range(1, random.choice((3, 4, 5, 5, 5)) + 1)
        )
        self.machines = [Machine(name, names) for name in names]
        form(*self.machines)
        self.copies = copies
        # The copy of its directory that is put back each time.
        self.backup = self.machines[0].backup
        # The copied node while it is on a marked directory.
        self.marked: set[Machine] = set()
        # By the node that knows it and the node that it is a start of.
        self.known: dict[tuple[NodeId, NodeId], set[tuple[int, int]]] = {}
        self.refusals = 0
        self.halts = 0

    def live(self) -> None:
        """The first node meets some of the others, on its directory and on an older copy of it. In
        between the others tell each other, and forget what is only in memory."""
        first, *others = self.machines
        for _ in range(ROUNDS):
            self._visit(first, self.random.sample(others, self.random.randrange(3)))
            if self.copies and self.random.random() < 0.5:
                first.restore(self.backup)
                self.marked.clear()
            for _ in range(self.random.randrange(8)):
                if self.random.random() < 0.4:
                    self.random.choice(others).start()
                else:
                    self._meet(*self.random.sample(others, 2))

    def _visit(self, machine: Machine, peers: list[Machine]) -> None:
        if machine not in self.marked:
            for _ in range(self.random.randrange(3)):
                machine.start()
        for peer in peers:
            self._meet(*self.random.sample([machine, peer], 2))

    def _meet(self, one: Machine, other: Machine) -> None:
        if not self.marked & {one, other}:
            lost = self.random.random() < 0.2
            if self._hear(other, one) and not lost:
                self._hear(one, other)

    def _hear(self, target: Machine, source: Machine) -> bool:
        """Whether ``target`` lets ``source`` in."""
        try:
            problem = hear(target, source)
            if problem is not None:
                self.refusals += 1
                assert self._is_copied(source, target), problem
                source.roster.hear_refusal(target.name, target.roster.seen(source.name))
        except WrongDirectory as halt:
            halted = (
                source
                if halt.args[0].startswith(f"the data directory of {source.name} ")
                else target
            )
            assert self._is_copied(halted), halt
            self.halts += 1
            self.marked.add(halted)
            return False
        if problem is None:
            self._check_known(target, source)
            self._learn(target, source)
        target.roster.take_outdated()
        return problem is None

    def _is_copied(self, *machines: Machine) -> bool:
        return self.copies and self.machines[0] in machines

    def _check_known(self, target: Machine, source: Machine) -> None:
        """All that ``target`` knows of ``source`` is true of the directory that it lets in."""
        starts = source.manifest.starts
        for start, boot in self.known.get((target.name, source.name), ()):
            assert starts.get(start, boot) == boot
            assert start <= max(starts)

    def _learn(self, target: Machine, source: Machine) -> None:
        said = source.roster.introduce()
        self._note(target, source.name, (said.start, said.boot))
        for name, seen in said.known.items():
            self._note(target, NodeId(name), *seen.starts)

    def _note(self, target: Machine, node: NodeId, *starts: tuple[int, int]) -> None:
        self.known.setdefault((target.name, node), set()).update(starts)


@cache
def _backups(count: int) -> tuple[tuple[NodeId, tuple[bytes, bytes]], ...]:
    """The disks of so many nodes whose first start is complete."""
    names = tuple(NodeId(f"n{number}") for number in range(1, count + 1))
    machines = [Machine(name, names) for name in names]
    form(*machines)
    return tuple((machine.name, machine.backup) for machine in machines)


def _formed(count: int) -> list[Machine]:
    machines = []
    for name, backup in _backups(count):
        machine = Machine(name)
        machine.restore(backup)
        machines.append(machine)
    return machines


@pytest.mark.parametrize(("seeds", "copies"), [(800, True), (200, False)])
def test_no_start_that_was_told_is_forgotten_and_no_healthy_node_is_refused(
    seeds: int, copies: bool
) -> None:
    refusals = halts = 0
    for seed in range(seeds):
        life = Life(seed, copies=copies)
        life.live()
        refusals += life.refusals
        halts += life.halts
    assert bool(refusals) is bool(halts) is copies
