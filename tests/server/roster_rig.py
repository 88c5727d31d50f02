"""Nodes without files, sockets and clocks: a roster over a manifest of which only saves last."""

from __future__ import annotations

from itertools import count, permutations
from typing import TYPE_CHECKING

from quorate.server.identity.roster import Roster
from quorate.server.manifest import take_list
from quorate.storage.manifest import LogLife, LogState, Manifest, Member
from quorate.types import NodeId
from quorate.wire.handshake import NodeIdentity

if TYPE_CHECKING:
    from quorate.errors import QuorateError

__all__ = ["NAMES", "Machine", "dial", "five_formed", "form", "hear", "meet"]

NAMES = tuple(map(NodeId, ("n1", "n2", "n3")))
CATALOG = LogLife(LogState.MADE, 0, NAMES, "/catalog")


class Machine:
    """A node with a disk of which only what was saved outlives its process."""

    _drawn = count(1)

    def __init__(self, name: NodeId, names: tuple[NodeId, ...] = NAMES) -> None:
        self.name = name
        self._names = names
        self.saves = 0
        # What the next save raises.
        self.failure: OSError | None = None
        self.wipe()

    def wipe(self) -> None:
        """An empty disk, and a first start on it."""
        self.storage = next(self._drawn).to_bytes(16, "little")
        self.saved = Manifest({name: Member(f"{name}:1") for name in self._names}).encode()
        self.start()

    def start(self) -> None:
        manifest = Manifest.decode(self.saved)
        assert manifest is not None
        self.manifest = manifest
        own = NodeIdentity("shop", self.name, self.storage, next(self._drawn))
        self.roster = Roster(own, manifest, self.save)

    def relist(self, *names: NodeId) -> None:
        """Start with another list of the nodes in the settings."""
        manifest = Manifest.decode(self.saved)
        assert manifest is not None
        take_list(manifest, {name: f"{name}:1" for name in names})
        self.saved = manifest.encode()
        self.start()

    def save(self) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.saves += 1
        self.saved = self.manifest.encode()

    def take_part(self) -> bool:
        """What a node does as soon as it may: whether its catalog is open."""
        if not self.roster.missing and not self.manifest.formed:
            self.manifest.logs[1] = CATALOG
            self.save()
        return self.manifest.formed

    def restore(self, backup: tuple[bytes, bytes]) -> None:
        self.storage, self.saved = backup
        self.start()

    @property
    def backup(self) -> tuple[bytes, bytes]:
        return self.storage, self.saved


def dial(source: Machine, target: Machine) -> QuorateError | None:
    """HELLO and WELCOME; why one of the two refused."""
    return hear(target, source) or hear(source, target)


def hear(target: Machine, source: Machine, *, linked: bool = False) -> QuorateError | None:
    """What ``target`` answers to what ``source`` says of itself."""
    return target.roster.judge(source.name, source.roster.introduce(), linked=linked)


def meet(*machines: Machine) -> None:
    for source, target in permutations(machines, 2):
        assert dial(source, target) is None


def form(*machines: Machine) -> None:
    """Let them complete their first start."""
    meet(*machines)
    assert all(machine.take_part() for machine in machines)


def five_formed() -> list[Machine]:
    names = tuple(NodeId(f"n{number}") for number in range(1, 6))
    machines = [Machine(name, names) for name in names]
    form(*machines)
    return machines
