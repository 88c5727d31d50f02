"""The disk and the start by which each node of the cluster is known, and the refusals that follow.

The promises of a node are on its disk. An empty disk, or an older copy of its disk, must not vote
under its name. ADR 20 has the argument.

The code here reads no file, no socket and no clock. A roster changes a manifest and calls ``save``
before other steps rely on the change; the caller passes in the introductions of the nodes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quorate.errors import Busy, Damaged, DiskFailed, QuorateError, WrongCluster, WrongDirectory
from quorate.server.identity.advice import AS_LOST, START_OVER, describe_missed, describe_older_copy
from quorate.storage.disk_errors import PASSING
from quorate.storage.manifest import Outdated, Told
from quorate.types import NodeId
from quorate.wire.handshake import STARTS_MAX, Introduction, Seen, judge_members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from quorate.storage.manifest import Manifest, Member
    from quorate.wire.handshake import NodeIdentity

__all__ = ["Roster"]

log = logging.getLogger(__name__)


class Roster:
    """The nodes of the cluster, as the manifest of one of them knows them."""

    def __init__(self, own: NodeIdentity, manifest: Manifest, save: Callable[[], None]) -> None:
        """Begin one start of a node. It is counted, durably, before the node sends its first
        message.

        ``save`` makes the manifest durable or raises OSError. Raises Damaged if the manifest cannot
        be the one that this node wrote, and WrongDirectory if it is marked as an older copy.
        """
        self.own = own
        self._manifest = manifest
        self._save = save
        # The last introduction of each peer in this process.
        self._heard: dict[NodeId, Introduction] = {}
        # Peers that know this node by another disk or member list, with the text of the error.
        self._disowned: dict[NodeId, str] = {}
        if manifest.outdated is not None:
            raise self._older_copy(manifest.outdated)
        self._check_complete()
        self._count_start()

    def _check_complete(self) -> None:
        """Raises Damaged if this node takes part and does not know the disks of all nodes, or not
        all nodes have confirmed its own disk."""
        if not self._manifest.formed:
            return
        for peer, known in self._peers():
            if known.storage is None or not known.confirmed:
                raise Damaged(
                    f"the manifest of {self.own.node} names logs and does not know the disk of "
                    f"{peer}; put the newest copy of the whole data directory back, or leave this "
                    f"node stopped: this release cannot replace it yet"
                )

    def _count_start(self) -> None:
        starts = self._manifest.starts
        newest = max(starts, default=0) + 1
        starts[newest] = self.own.boot
        # A start that a peer has recorded is kept until the peer has recorded a later one: without
        # it this node could not prove to that peer that it is no older copy.
        confirmed = {known.confirmed for _, known in self._peers()}
        oldest = min(confirmed, default=newest)
        for start in [*starts][:-1]:
            if start < oldest or (len(starts) > STARTS_MAX and start not in confirmed):
                del starts[start]
        self._save()

    def _peers(self) -> Iterator[tuple[NodeId, Member]]:
        return ((node, known) for node, known in self._nodes.items() if node != self.own.node)

    @property
    def _nodes(self) -> dict[NodeId, Member]:
        return self._manifest.nodes

    # -- this node's introduction --------------------------------------------------------------

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """The nodes that a first start still waits for: it needs the disk of each, and the
        confirmation of each that it has recorded the disk of this node. If empty, logs may be
        opened."""
        if self._manifest.formed:
            return ()
        return tuple(
            peer for peer, known in self._peers() if known.storage is None or not known.confirmed
        )

    def introduce(self) -> Introduction:
        """The introduction that this node sends in each HELLO and WELCOME, as of now."""
        *earlier, newest = self._manifest.starts.items()
        known: dict[str, Seen] = {
            node: seen for node, _ in self._peers() if (seen := self.seen(node)) is not None
        }
        formed, members = self._manifest.formed, self._members
        return Introduction(self.own.storage, *newest, dict(earlier), formed, known, members)

    @property
    def _members(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self._nodes))

    def seen(self, peer: NodeId) -> Seen | None:
        """The facts that this node knows of ``peer``; None if it does not even know its disk."""
        known = self._nodes[peer]
        if known.storage is None:
            return None
        place = {node: number for number, node in enumerate(self._members)}
        told = {place[witness]: (start, boot) for witness, start, boot in known.told}
        return Seen(known.storage, known.start, known.boot, told)

    # -- introductions of peers ----------------------------------------------------------------

    def judge(self, peer: NodeId, said: Introduction, *, linked: bool) -> QuorateError | None:
        """The error that refuses ``peer`` for its introduction in a HELLO or WELCOME; None if it is
        let in.

        ``linked`` is True if a link to a process of ``peer`` is open now. When this returns None,
        all facts that were learnt are durable. Raises DiskFailed, and WrongDirectory if ``peer``
        proves that this node runs on an older copy of its directory.
        """
        problem = (
            self._judge_list(peer, said)
            or self._judge_disk(peer, said)
            or self._judge_start(peer, said)
            or self._judge_second(peer, said, linked=linked)
            or self._judge_view(peer, said)
            or self._judge_others(peer, said)
            or self._write_down(self._learnt(peer, said))
        )
        if problem is None:
            self._heard[peer] = said
        return problem

    def take_outdated(self) -> list[NodeId]:
        """Peers that were let in and cannot be the process of which another node told since: their
        links must end. Each such peer is returned once."""
        found = [
            peer
            for peer, said in self._heard.items()
            if any(
                _was(_history(said), start, boot) is False
                for _, start, boot in self._nodes[peer].told
            )
        ]
        for peer in found:
            del self._heard[peer]
        return found

    @property
    def refusal(self) -> str:
        """The peers that do not let this node in, and the reason of the last one; empty if there
        are none."""
        if not self._disowned:
            return ""
        *_, why = self._disowned.values()
        refuse = "refuse" if len(self._disowned) > 1 else "refuses"
        return f"{' and '.join(sorted(self._disowned))} {refuse} this node: {why}"

    def is_second(self, peer: NodeId, said: Introduction) -> bool:
        """True if the last process of ``peer`` that was let in is another than the sender of
        ``said``."""
        heard = self._heard.get(peer)
        return heard is not None and (heard.start, heard.boot) != (said.start, said.boot)

    def hear_refusal(self, peer: NodeId, known: Seen | None) -> None:
        """Take a refusal by ``peer``, which knows ``known`` of this node. Raises WrongDirectory if
        that proves that this node runs on an older copy of its directory."""
        if known is not None and known.storage == self.own.storage:
            self._check_own(peer, known)

    def _judge_list(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        problem = judge_members(peer, said, self.own, self._nodes)
        if problem is not None and peer in self._nodes:
            self._disowned[peer] = str(problem)
        return problem

    def _judge_disk(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        own, bound = self.own, self._nodes[peer].storage
        if said.storage == own.storage:
            return WrongCluster(
                f"node {peer} has storage id {own.storage.hex()}, which is that of {own.node}: one "
                f"of the two is a copy"
            )
        if bound is None or bound == said.storage:
            return None
        return WrongCluster(
            f"node {peer} has storage id {said.storage.hex()}, {self._who_knows(peer, bound)} it "
            f"with {bound.hex()}: a wiped or copied disk is not its old self; "
            f"{self._remedy(peer, said)}"
        )

    def _judge_start(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """Refuse a peer that was not each process that is known to have had its name."""
        known = self._nodes[peer]
        told = [(start, boot) for _, start, boot in known.told]
        for start, _ in _missed(_history(said), (known.start, known.boot), told):
            return describe_missed(peer, said, start, self.own.node)
        return None

    def _judge_second(
        self, peer: NodeId, said: Introduction, *, linked: bool
    ) -> QuorateError | None:
        """Refuse a later start while the process before it still has a link: the later one is a
        copy, and to let it in would shut out the node itself. A link whose other end is gone ends
        soon; then the later start is let in."""
        if not linked or not self.is_second(peer, said):
            return None
        return Busy(
            f"{self.own.node} has a link to start {self._heard[peer].start} of {peer}, and this is "
            f"start {said.start}: a copy of the data directory of a node that runs must not be "
            f"started; after a power cut the link ends within seconds, and {peer} is let in"
        )

    def _judge_view(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """Refuse a peer whose knowledge of this node is not true."""
        own, seen = self.own, said.known.get(self.own.node)
        self._disowned.pop(peer, None)
        if seen is None:
            return None
        if seen.storage != own.storage:
            why = (
                f"{peer} knows node {own.node} with storage id {seen.storage.hex()}, the disk of "
                f"{own.node} has {own.storage.hex()}: a wiped or copied disk is not its old self; "
                f"{self._remedy(own.node, said)}"
            )
            self._disowned[peer] = why
            return WrongCluster(why)
        forgotten = self._check_own(peer, seen)
        if forgotten:
            return WrongCluster(
                f"{peer} knows a start {forgotten} of node {own.node} that {own.node} does not "
                f"remember any more; restart {peer}, so that other nodes tell it a later start"
            )
        return None

    def _check_own(self, peer: NodeId, seen: Seen) -> int:
        """A start of this node that ``peer`` knows and this node does not remember; 0 if there is
        none. Raises WrongDirectory if this node cannot have been one of those processes."""
        forgotten, starts = 0, self._manifest.starts
        for start, boot in _missed(starts, (seen.start, seen.boot), seen.told.values()):
            if _was(starts, start, boot) is False:
                raise self._give_up(Outdated(peer, start, boot))
            forgotten = start
        return forgotten

    def _give_up(self, proof: Outdated) -> WrongDirectory:
        """Mark the directory as outdated, so that no later start on it takes part either."""
        self._manifest.outdated = proof
        halt = self._older_copy(proof)
        try:
            self._save()
        except OSError as error:
            # A peer will tell the next start again. This start ends all the same.
            return WrongDirectory(f"{halt} (the directory could not be marked: {error.strerror})")
        return halt

    def _older_copy(self, proof: Outdated) -> WrongDirectory:
        return describe_older_copy(self.own.node, max(self._manifest.starts, default=0), proof)

    def _judge_others(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """Refuse to go on with a first start in which a third node has shown two disks, as long as
        no entry can have been acknowledged: the cluster would begin without that node."""
        if self._manifest.formed or said.formed:
            return None
        for node, seen in self._thirds(peer, said):
            bound = self._nodes[node].storage
            if bound is not None and bound != seen.storage:
                return WrongCluster(
                    f"{peer} knows node {node} with storage id {seen.storage.hex()}, "
                    f"{self._who_knows(node, bound)} it with {bound.hex()}: the disk of {node} "
                    f"changed before the first start of the cluster was complete; {START_OVER}"
                )
        return None

    def _thirds(self, peer: NodeId, said: Introduction) -> Iterator[tuple[NodeId, Seen]]:
        """The facts that ``peer`` knows of nodes other than itself and this one."""
        for name, seen in said.known.items():
            node = NodeId(name)
            if node in self._nodes and node not in (peer, self.own.node):
                yield node, seen

    def _who_knows(self, node: NodeId, storage: bytes) -> str:
        """The nodes that are known to know ``node`` by that disk, this node first, with the
        verb."""
        others = [
            peer
            for peer, said in self._heard.items()
            if (seen := said.known.get(node)) is not None and seen.storage == storage
        ]
        names = [self.own.node, *sorted(others)]
        return f"{' and '.join(names)} {'know' if others else 'knows'}"

    def _remedy(self, node: str, said: Introduction) -> str:
        remedy = AS_LOST.format(node=node)
        heard = [said, *self._heard.values()]
        formed = self._manifest.formed or any(one.formed for one in heard)
        return remedy if formed else f"{remedy}; {START_OVER}"

    # -- changes of the manifest ---------------------------------------------------------------

    def _learnt(self, peer: NodeId, said: Introduction) -> dict[NodeId, Member]:
        """The rows of the manifest that change with the introduction of ``peer``.

        A known disk is never replaced by another: all of ADR 20 rests on that.
        """
        known = self._nodes[peer]
        rows = {
            peer: known._replace(
                storage=said.storage,
                start=said.start,
                boot=said.boot,
                confirmed=max(known.confirmed, self._confirmed_by(said)),
                earlier=tuple(sorted(said.earlier.items())),
                told=(),
            )
        }
        for node, seen in self._thirds(peer, said):
            mine = self._nodes[node]
            if mine.storage not in (None, seen.storage):
                continue
            told = self._to_keep(mine, self._testimony(peer, said, node))
            rows[node] = mine._replace(storage=seen.storage, told=told)
        return {node: row for node, row in rows.items() if row != self._nodes[node]}

    def _confirmed_by(self, said: Introduction) -> int:
        """The earliest start of this node that it has to remember for the sender of ``said``."""
        seen = said.known.get(self.own.node)
        return min(seen.starts, default=(0, 0))[0] if seen is not None else 0

    def _testimony(self, peer: NodeId, said: Introduction, node: NodeId) -> Iterator[Told]:
        """The starts of ``node`` that ``peer`` was shown, and those that other nodes told it. The
        starts that this node was shown are left out: it knows them itself."""
        seen = said.known[node]
        yield Told(peer, seen.start, seen.boot)
        for place, (start, boot) in seen.told.items():
            witness = NodeId(said.members[place]) if place < len(said.members) else node
            if witness not in (self.own.node, peer, node):
                yield Told(witness, start, boot)

    def _to_keep(self, mine: Member, testimony: Iterable[Told]) -> tuple[Told, ...]:
        """The told starts of a node to keep, after a peer told more of them: each start that is
        later than the one that the node showed, or contradicts the history that it told then.

        Of each witness the latest is kept: the witness let the node in because that process had
        also been the earlier ones. The starts of different witnesses are all kept: they may have
        let in different copies.
        """
        kept, history = {one.witness: one for one in mine.told}, mine.history
        for one in testimony:
            before = kept.get(one.witness)
            if before is not None and not mine.start < before.start < one.start:
                continue  # old, or a contradiction: no later start settles that
            if one.start > mine.start or history.get(one.start, one.boot) != one.boot:
                kept[one.witness] = one
        return tuple(sorted(kept.values()))

    def _write_down(self, rows: Mapping[NodeId, Member]) -> QuorateError | None:
        if not rows:
            return None
        before = {node: self._nodes[node] for node in rows}
        self._nodes.update(rows)
        try:
            self._save()
        except OSError as error:
            self._nodes.update(before)
            own, names = self.own.node, ", ".join(rows)
            if error.errno in PASSING:
                return Busy(f"{own} cannot write down who {names} is: {error.strerror}")
            raise DiskFailed(f"{own}: the manifest: {error}") from error
        for node, row in rows.items():
            if before[node].storage is None and row.storage is not None:
                log.info("peer met peer=%s storage=%s", node, row.storage.hex())
        return None


def _history(said: Introduction) -> dict[int, int]:
    return said.earlier | {said.start: said.boot}


def _missed(
    starts: Mapping[int, int], shown: tuple[int, int], told: Collection[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The starts that a node with the history ``starts`` was not, among ``shown``, the start that
    it showed to another node, and ``told``, those that others told there. The node must remember
    the start that it showed, and the latest. A told start between these may be long ago: if the
    node does not remember it, that proves nothing."""
    latest = max([shown, *told])
    for start, boot in (shown, *told):
        was = _was(starts, start, boot)
        bound = start <= shown[0] or (start, boot) == latest
        if was is False or (was is None and bound):
            yield start, boot


def _was(starts: Mapping[int, int], start: int, boot: int) -> bool | None:
    """True if a node with the history ``starts`` was the process ``boot`` at ``start``; None if
    that start is over and the node does not remember it: that proves neither. Start 0 needs no
    proof."""
    if start == 0:
        return True
    if start in starts:
        return starts[start] == boot
    return False if start > max(starts) else None
