"""The entries that rot took from each node, and those that it may still take.

No acknowledged entry may be lost, whichever disks rot; that needs no budget. A group that goes on
needs one. A node is *fit* if it may lead: rot took from it only entries before the one with which
its checkpoint on disk ends, their bodies or whole pages of them. Every other rot makes a node unfit
for the rest of the run: it may be unsure, may have to stop before an entry that it cannot apply, or
may stay down.

The budget:

1. Unfit nodes are a minority. So a fit node has every committed entry, and a majority votes for it.
2. An entry that a fit node lost is whole on as many other fit nodes as a majority has, less
   one. So a majority holds the last entry that any fit node lost: a leader need not send a majority
   the entries that it cannot read itself, and commits.

One play goes beyond that: all nodes that have an entry may be *stopped* before one that they cannot
apply, each before another that some other node has whole. None of them may serve, and yet the log
goes on: they feed the rest until a node can.

A node that was away for long may stay behind all the same: the leader may have lost an entry that
it needs, and there is no repair.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.errors import Damaged, DiskFailed
from quorate.storage.checkpoint import CHECKPOINT, read_checkpoint
from quorate.storage.layout import BLOCK_BYTES, PAGE, Block, SegmentHeader, block_seed
from quorate.types import Index, NodeId, Position
from verification.sim.proofs import proved_bytes
from verification.sim.voter_sets import majority

if TYPE_CHECKING:
    from quorate.errors import ReplicaHalted
    from quorate.storage.log import SegmentLog
    from verification.disk.durable import FramePlace
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Losses", "checkpointed"]

_FILES = re.compile(r"[\w-]+\.(?:segment|index)|vote")


class Losses:
    """The losses of all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The files that rot touched.
        self._files: defaultdict[NodeId, set[str]] = defaultdict(set)
        # The positions that were durable there or behind when the file rotted.
        self._held: defaultdict[NodeId, set[Position]] = defaultdict(set)
        # Nodes that lost more than entries that their checkpoint covers.
        self.unfit: set[NodeId] = set()
        # Fit nodes that lost an entry, or its body.
        self._without_body: defaultdict[Index, set[NodeId]] = defaultdict(set)
        # Nodes that lost the body of an entry that their checkpoint does not cover, and no more.
        self.stopped: set[NodeId] = set()
        # The entry after the last one of which a fit node may not even have the header: without
        # that it cannot say to a peer where this one goes on.
        self._behind_holes: dict[NodeId, Index] = {}

    def __contains__(self, node: SimulatedNode) -> bool:
        """Whether the disk of ``node`` ever rotted."""
        return node.name in self._files

    # -- the budget ----------------------------------------------------------------------------

    def allows(self, node: SimulatedNode) -> bool:
        """Whether ``node`` may become unfit."""
        if self._world.options.over_budget or node.name in self.unfit:
            return True
        if self.stopped:
            return False
        unfit = {*self.unfit, node.name}
        minority = self._world.lost_disks.leaves_majorities(unfit | self._world.lost_disks.names)
        return minority and all(self._is_whole_enough(index, unfit) for index in self._without_body)

    def allows_voters(self, voters: list[NodeId]) -> bool:
        """Whether a log may get these voters: a majority of them is fit and has its disk, and
        enough of them have each entry that a fit node lost."""
        gone = self.unfit | self._world.lost_disks.names
        fit = 2 * len(gone.intersection(voters)) < len(voters)
        return fit and not self.stopped and not self._without_body.keys()

    def spoilable_bodies(self, node: SimulatedNode) -> list[FramePlace]:
        """The entries of ``node`` whose body may rot, so that it stays fit."""
        places = self._spoilable(node, checkpointed(node))
        return [place for place in places if place.stop - place.start > HEADER_BYTES]

    def spoilable_pages(self, node: SimulatedNode) -> dict[tuple[str, int], list[FramePlace]]:
        """The pages of ``node`` that may rot, so that it stays fit, and the entries that each would
        take."""
        # Without the entry with which it ends a checkpoint counts for nothing.
        covered = checkpointed(node) - 1
        allowed = {place.position.index for place in self._spoilable(node, covered)}
        if not allowed:
            return {}  # an unfit node may lack files that it had
        places = node.store.durable.places
        firsts: dict[tuple[str, int], FramePlace] = {}
        for place in places[: max(0, covered)]:
            for page in range(place.start // PAGE * PAGE, place.stop, PAGE):
                firsts.setdefault((place.file, page), place)
        taken = {
            page: [*_unconfirmed(node, first, page[1]), *_taken(places, first, page[1])]
            for page, first in firsts.items()
        }
        return {
            page: lost
            for page, lost in taken.items()
            if all(place.position.index in allowed for place in lost)
        }

    def spoilable_new_bodies(self, node: SimulatedNode) -> list[FramePlace]:
        """The entries of ``node``, which is down, whose body may rot so that it is stopped."""
        covered = checkpointed(node)
        places = self._spoilable(node, len(self._world.invariants.committed))
        return [
            place
            for place in places
            if place.position.index > covered and place.stop - place.start > HEADER_BYTES
        ]

    def _spoilable(self, node: SimulatedNode, covered: int) -> list[FramePlace]:
        if node.name in self.unfit:
            return []
        committed, proved = self._world.invariants.committed, proved_bytes(node.store)
        return [
            place
            for place in node.store.durable.places[: max(0, min(covered, len(committed)))]
            # Without a proof of its place an entry with a bad body looks torn: it would be cut off.
            if place.stop <= proved.get(place.file, 0)
            and committed[place.position.index - 1].position == place.position
            and self._may_lose(node, place.position.index)
        ]

    def _may_lose(self, node: SimulatedNode, index: Index) -> bool:
        before = self._without_body.get(index, set())
        if node.name in before:
            return False
        return self._is_whole_on_enough(index, self.unfit | {node.name})

    def _is_whole_enough(self, index: Index, unfit: set[NodeId]) -> bool:
        lost = self._without_body[index] - unfit
        return not lost or self._is_whole_on_enough(index, unfit)

    def _is_whole_on_enough(self, index: Index, without: set[NodeId]) -> bool:
        """Whether enough nodes of each set of voters, leaving out those of ``without``, have all of
        a committed entry on disk."""
        nodes, lost = self._world.nodes, self._without_body.get(index, set())
        position = self._world.invariants.committed[index - 1].position
        whole = {
            name
            for name in nodes.keys() - without - lost - self._world.lost_disks.names
            if nodes[name].store.durable.position(index) == position
        }
        return all(
            len(whole.intersection(each)) >= max(1, majority(each) - 1)
            for each in self._world.lost_disks.sets_in_play()
        )

    # -- records of rot ------------------------------------------------------------------------

    def note(self, node: SimulatedNode, name: str, start: int) -> None:
        """Bytes of a file rotted, at ``start`` or behind: ``node`` is unfit from now on."""
        self.unfit.add(node.name)
        self._note(node, name, start)

    def note_body(self, node: SimulatedNode, place: FramePlace) -> None:
        """The body of an entry rotted, within the budget."""
        self._without_body[place.position.index].add(node.name)
        self._note(node, place.file, place.start)

    def note_new_body(self, node: SimulatedNode, place: FramePlace) -> None:
        """The body of an entry rotted that ``node`` cannot apply again."""
        self.stopped.add(node.name)
        self.note_body(node, place)

    def note_page(self, node: SimulatedNode, places: list[FramePlace]) -> None:
        """A page rotted, within the budget, and took these entries."""
        for place in places:
            self.note_body(node, place)
        following = Index(places[-1].position.index + 1)
        before = self._behind_holes.get(node.name, following)
        self._behind_holes[node.name] = max(before, following)

    def _note(self, node: SimulatedNode, name: str, start: int) -> None:
        self._files[node.name].add(name)
        self._held[node.name].update(
            place.position
            for place in node.store.durable.places
            if (place.file, place.stop) > (name, start)
        )

    # -- consequences of rot -------------------------------------------------------------------

    def held(self, node: SimulatedNode, position: Position) -> bool:
        """Whether ``node`` had ``position`` on disk until it rotted: an ack of it that was sent
        before was true, and may arrive now."""
        return position in self._held.get(node.name, ())

    def bars(self, leader: SimulatedNode, node: SimulatedNode) -> bool:
        """Whether ``leader`` may be unable to send some entry that ``node`` lacks."""
        if leader.name in self.unfit:
            lost = max((position.index for position in self._held[leader.name]), default=Index(0))
        else:
            mine = (index for index, names in self._without_body.items() if leader.name in names)
            lost = max(mine, default=Index(0))
        lost = max(lost, self._behind_holes.get(leader.name, lost))
        return node is not leader and self._agreed(node) < lost

    def _agreed(self, node: SimulatedNode) -> int:
        """The last index up to which the disk of ``node`` has the committed entries."""
        durable, committed = node.store.durable, self._world.invariants.committed
        known = range(min(durable.last, len(committed)))
        return bisect_left(
            known,
            True,
            key=lambda place: durable.position(Index(place + 1)) != committed[place].position,
        )

    def hides(self, node: SimulatedNode, *indexes: Index) -> bool:
        """Whether ``node`` may be unable to show a record that needs all of these entries."""
        lost = any(node.name in self._without_body.get(index, ()) for index in indexes)
        return lost or node.name in self.unfit or node.name in self.stopped

    @property
    def bodies(self) -> int:
        """The number of entries that a fit node lost."""
        return len(self._without_body)

    def explain_halt(self, node: SimulatedNode, halt: ReplicaHalted) -> bool:
        """Whether ``node`` may give up: its disk lost a part of a file, and the error names that
        file."""
        named = set(_FILES.findall(str(halt)))
        touched = self._files.get(node.name, set())
        return (
            isinstance(halt, Damaged | DiskFailed)
            and node.name in self.unfit
            and any(file in touched or file == "vote" for file in named)
        )

    def explain_damage(self, node: SimulatedNode, log: SegmentLog) -> bool:
        """Whether rot caused the damage that an open found."""
        if node.name in self.unfit:
            return True
        lost = {index for index, names in self._without_body.items() if node.name in names}
        found = {index for damage in log.damage for index in range(damage.first, damage.last + 1)}
        return (not log.record.unsure or node.newcomer) and found <= lost


def _unconfirmed(node: SimulatedNode, first: FramePlace, page: int) -> list[FramePlace]:
    """The entries in front of ``first`` that are lost with it: no block before ``page`` claims that
    they are committed, and without the next entry no chain says that they are not old."""
    content = bytes(node.store.disk.files[first.file].content)
    header = SegmentHeader.decode(content[:PAGE])
    in_front = [
        place
        for place in node.store.durable.places[: first.position.index - 1]
        if place.file == first.file
    ]
    confirmed = 0
    if header is None:
        return in_front
    for start in range(PAGE, page, PAGE):
        block = Block.decode(content[start : start + BLOCK_BYTES], block_seed(header.nonce, start))
        if block is not None:
            end = block.end(start)
            held = [place.position.index for place in in_front if place.start < end]
            confirmed = max(confirmed, min(block.committed, max(held, default=0)))
    return [place for place in in_front if place.position.index > confirmed]


def _taken(places: list[FramePlace], first: FramePlace, page: int) -> list[FramePlace]:
    """The entries that are lost with a ``page`` that holds a part of ``first``: all that stand
    on it, and all that follow in the block, for the frames of a block are found one after the
    other."""
    taken = [first]
    for place in places[first.position.index :]:
        follows = place.start == taken[-1].stop
        if place.file != first.file or not (follows or place.start < page + PAGE):
            break
        taken.append(place)
    return taken


def checkpointed(node: SimulatedNode) -> Index:
    """The last index that the checkpoint on disk covers; 0 while another one takes its place."""
    disk = node.store.disk
    checkpoint = read_checkpoint(disk, node.store.identity)
    if checkpoint is None or disk.durable_bytes(CHECKPOINT) != disk.files[CHECKPOINT].content:
        return Index(0)
    return checkpoint.position.index
