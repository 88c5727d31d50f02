"""What rot took from each node, entry by entry, and what it may still take.

Nothing acknowledged may be lost, whatever rots; that needs no budget. A group that goes on needs
one. A node is *fit* if it may lead: what rot took from it are entries before the one with which its
checkpoint on disk ends, their bodies or whole pages of them. Every other rot makes a node unfit for
the rest of the run: it may be unsure, may have to stop before an entry that it cannot apply, or may
stay down.

The budget:

1. Unfit nodes are a minority. So a fit node has everything that was committed, and a majority votes
   for it.
2. An entry that a fit node lost is whole on as many other fit nodes as a majority has, less
   one. So a majority holds the last entry that any fit node lost: a leader need not send it what it
   cannot read itself, and commits.

One play goes beyond that: all nodes that have an entry may be *stopped* before one that they cannot
apply, each before another that some other node has whole. None of them may serve, and yet the log
goes on: they feed the rest until a node can.

A node that was away for long may stay behind all the same: the leader may have lost an entry that
it needs, and there is no repair.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.errors import Damaged, DiskFailed
from quorate.storage.checkpoint import CHECKPOINT, read_checkpoint
from quorate.storage.layout import PAGE
from quorate.testing.sim.proofs import proved_bytes
from quorate.types import Index, NodeId, Position

if TYPE_CHECKING:
    from quorate.errors import ReplicaHalted
    from quorate.storage.log import SegmentLog
    from quorate.testing.disk.durable import Place
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World

__all__ = ["Losses"]

_FILES = re.compile(r"[\w-]+\.(?:segment|index)|vote")


class Losses:
    """Of all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The files that rot touched.
        self._files: defaultdict[NodeId, set[str]] = defaultdict(set)
        # What was durable there or behind when it did.
        self._held: defaultdict[NodeId, set[Position]] = defaultdict(set)
        # Nodes that lost more than entries that their checkpoint covers.
        self.unfit: set[NodeId] = set()
        # Fit nodes that lost an entry, or its body.
        self._hollow: defaultdict[Index, set[NodeId]] = defaultdict(set)
        # Nodes that lost the body of an entry that their checkpoint does not cover, and no more.
        self.stopped: set[NodeId] = set()
        # The entry after the last one of which a fit node may not even have the header: without
        # that it cannot say to a peer where this one goes on.
        self._behind_holes: dict[NodeId, Index] = {}

    def __contains__(self, node: Node) -> bool:
        """Whether the disk of ``node`` ever rotted."""
        return node.name in self._files

    # -- the budget ----------------------------------------------------------------------------

    def allows(self, node: Node) -> bool:
        """Whether ``node`` may become unfit."""
        if self._world.options.over_budget or node.name in self.unfit:
            return True
        if self.stopped:
            return False
        unfit = {*self.unfit, node.name}
        minority = 2 * len(unfit) < len(self._world.nodes)
        return minority and all(self._is_whole_enough(index, unfit) for index in self._hollow)

    def spoilable_bodies(self, node: Node) -> list[Place]:
        """The entries of ``node`` whose body may rot, so that it stays fit."""
        places = self._spoilable(node, _checkpointed(node))
        return [place for place in places if place.stop - place.start > HEADER_BYTES]

    def spoilable_pages(self, node: Node) -> dict[tuple[str, int], list[Place]]:
        """The pages of ``node`` that may rot, so that it stays fit, and what that takes from it."""
        # Without the entry with which it ends a checkpoint counts for nothing.
        covered = _checkpointed(node) - 1
        allowed = {place.position.index for place in self._spoilable(node, covered)}
        places = node.store.durable.places
        firsts: dict[tuple[str, int], Place] = {}
        for place in places[: max(0, covered)]:
            for page in range(place.start // PAGE * PAGE, place.stop, PAGE):
                firsts.setdefault((place.file, page), place)
        taken = {page: _taken(places, first, page[1]) for page, first in firsts.items()}
        return {
            page: lost
            for page, lost in taken.items()
            if all(place.position.index in allowed for place in lost)
        }

    def spoilable_new_bodies(self, node: Node) -> list[Place]:
        """The entries of ``node``, which is down, whose body may rot so that it is stopped."""
        covered, proved = _checkpointed(node), proved_bytes(node.store)
        places = self._spoilable(node, len(self._world.invariants.committed))
        return [
            place
            for place in places[covered:]
            if place.stop - place.start > HEADER_BYTES and place.stop <= proved.get(place.file, 0)
        ]

    def _spoilable(self, node: Node, covered: int) -> list[Place]:
        if node.name in self.unfit:
            return []
        committed = self._world.invariants.committed
        return [
            place
            for place in node.store.durable.places[: max(0, min(covered, len(committed)))]
            if committed[place.position.index - 1].position == place.position
            and self._may_lose(node, place.position.index)
        ]

    def _may_lose(self, node: Node, index: Index) -> bool:
        before = self._hollow.get(index, set())
        if node.name in before:
            return False
        return self._whole_copies(index, self.unfit) - 1 >= max(1, self._world.quorum - 1)

    def _is_whole_enough(self, index: Index, unfit: set[NodeId]) -> bool:
        lost = self._hollow[index] - unfit
        return not lost or self._whole_copies(index, unfit) >= max(1, self._world.quorum - 1)

    def _whole_copies(self, index: Index, unfit: set[NodeId]) -> int:
        """How many fit nodes have all of a committed entry on disk."""
        position = self._world.invariants.committed[index - 1].position
        lost = self._hollow.get(index, set())
        return sum(
            node.name not in unfit
            and node.name not in lost
            and node.store.durable.position(index) == position
            for node in self._world.nodes.values()
        )

    # -- what rotted ---------------------------------------------------------------------------

    def note(self, node: Node, name: str, start: int) -> None:
        """Bytes of a file rotted, at ``start`` or behind: ``node`` is unfit from now on."""
        self.unfit.add(node.name)
        self._note(node, name, start)

    def note_body(self, node: Node, place: Place) -> None:
        """The body of an entry rotted, within the budget."""
        self._hollow[place.position.index].add(node.name)
        self._note(node, place.file, place.start)

    def note_new_body(self, node: Node, place: Place) -> None:
        """The body of an entry rotted that ``node`` cannot apply again."""
        self.stopped.add(node.name)
        self.note_body(node, place)

    def note_page(self, node: Node, places: list[Place]) -> None:
        """A page rotted, within the budget, and took these entries."""
        for place in places:
            self.note_body(node, place)
        following = Index(places[-1].position.index + 1)
        before = self._behind_holes.get(node.name, following)
        self._behind_holes[node.name] = max(before, following)

    def _note(self, node: Node, name: str, start: int) -> None:
        self._files[node.name].add(name)
        self._held[node.name].update(
            place.position
            for place in node.store.durable.places
            if (place.file, place.stop) > (name, start)
        )

    # -- what follows from it ------------------------------------------------------------------

    def held(self, node: Node, position: Position) -> bool:
        """Whether ``node`` had ``position`` on disk until that rotted: what it said of it then was
        true, and may arrive now."""
        return position in self._held.get(node.name, ())

    def bars(self, leader: Node, node: Node) -> bool:
        """Whether ``leader`` may be unable to send some entry that ``node`` lacks."""
        if leader.name in self.unfit:
            lost = max((position.index for position in self._held[leader.name]), default=Index(0))
        else:
            mine = (index for index, names in self._hollow.items() if leader.name in names)
            lost = max(mine, default=Index(0))
        lost = max(lost, self._behind_holes.get(leader.name, lost))
        return node is not leader and node.store.durable.last < lost

    def hides(self, node: Node, *indexes: Index) -> bool:
        """Whether ``node`` may be unable to show a record that needs all of these entries."""
        lost = any(node.name in self._hollow.get(index, ()) for index in indexes)
        return lost or node.name in self.unfit or node.name in self.stopped

    @property
    def bodies(self) -> int:
        """How many entries a fit node lost."""
        return len(self._hollow)

    def explain_halt(self, node: Node, halt: ReplicaHalted) -> bool:
        """Whether ``node`` may give up: its disk lost something and it says in which file."""
        named = set(_FILES.findall(str(halt)))
        touched = self._files.get(node.name, set())
        return (
            isinstance(halt, Damaged | DiskFailed)
            and node.name in self.unfit
            and any(file in touched or file == "vote" for file in named)
        )

    def explain_damage(self, node: Node, log: SegmentLog) -> bool:
        """Whether rot did what an open found."""
        if node.name in self.unfit:
            return True
        lost = {index for index, names in self._hollow.items() if node.name in names}
        found = {index for damage in log.damage for index in range(damage.first, damage.last + 1)}
        return not log.record.unsure and found <= lost


def _taken(places: list[Place], first: Place, page: int) -> list[Place]:
    """What is lost with a ``page`` that holds a part of ``first``: all that stands on it, and what
    follows in the block, for the frames of a block are found one after the other."""
    taken = [first]
    for place in places[first.position.index :]:
        follows = place.start == taken[-1].stop
        if place.file != first.file or not (follows or place.start < page + PAGE):
            break
        taken.append(place)
    return taken


def _checkpointed(node: Node) -> Index:
    """What the checkpoint on disk covers; nothing while another one takes its place."""
    disk = node.store.disk
    checkpoint = read_checkpoint(disk)
    if checkpoint is None or disk.durable_bytes(CHECKPOINT) != disk.files[CHECKPOINT].content:
        return Index(0)
    return checkpoint.position.index
