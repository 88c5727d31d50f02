"""Which disk and which start each node of the cluster is known by, and who is refused for it.

What a node has promised is on its disk. An empty disk, or an older copy of its disk, must not vote
under its name. ADR 20 has the argument.

Nothing here reads a file, a socket or a clock. A roster changes a manifest and calls ``save``
before anything rests on the change; the caller brings what the nodes say.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quorate.errors import Busy, Damaged, DiskFailed, QuorateError, WrongCluster
from quorate.storage.steps import PASSING
from quorate.types import NodeId
from quorate.wire.handshake import STARTS_MAX, Introduction, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from quorate.storage.manifest import Manifest, Member
    from quorate.wire.handshake import Identity

__all__ = ["Roster"]

log = logging.getLogger(__name__)

_START_OVER = (
    "if no node of this cluster was ever ready, stop all of them, remove the data directory of "
    "each and start them again"
)
_AS_LOST = (
    "put the newest data directory of {node} back, or leave {node} stopped as a node that lost its "
    "disk"
)


class Roster:
    """The nodes of the cluster, as the manifest of one of them knows them."""

    def __init__(self, own: Identity, manifest: Manifest, save: Callable[[], None]) -> None:
        """One start of a node. It is counted, durably, before the node can say a word.

        ``save`` makes the manifest durable or raises OSError. Raises Damaged if the manifest cannot
        be the one that this node wrote.
        """
        self.own = own
        self._manifest = manifest
        self._save = save
        # What each peer said last in this process.
        self._heard: dict[NodeId, Introduction] = {}
        self._check_complete()
        self._count_start()

    def _check_complete(self) -> None:
        """A node that takes part knows the disks of all, and all know its own."""
        if not self._manifest.formed:
            return
        for peer, known in self._peers():
            if known.storage is None or not known.confirmed:
                raise Damaged(
                    f"the manifest of {self.own.node} names logs and does not know the disk of "
                    f"{peer}; restore the manifest, or replace this node as a new one"
                )

    def _count_start(self) -> None:
        starts = self._manifest.starts
        newest = max(starts, default=0) + 1
        starts[newest] = self.own.boot
        # A peer remembers no start before the one that it confirmed.
        needed = min((known.confirmed for _, known in self._peers()), default=newest)
        for start in [*starts][:-1]:
            if start < needed or len(starts) > STARTS_MAX:
                del starts[start]
        self._save()

    def _peers(self) -> Iterator[tuple[NodeId, Member]]:
        return ((node, known) for node, known in self._nodes.items() if node != self.own.node)

    @property
    def _nodes(self) -> dict[NodeId, Member]:
        return self._manifest.nodes

    # -- what this node says -------------------------------------------------------------------

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """The nodes that a first start still waits for: it needs the disk of each, and to hear
        from each that it has written down the disk of this node. Empty: logs may be opened."""
        if self._manifest.formed:
            return ()
        return tuple(
            peer for peer, known in self._peers() if known.storage is None or not known.confirmed
        )

    def introduce(self) -> Introduction:
        """What this node says of itself in each HELLO and WELCOME, as of now."""
        *earlier, newest = self._manifest.starts.items()
        known: dict[str, Seen] = {
            node: Seen(one.storage, one.start, one.boot)
            for node, one in self._peers()
            if one.storage is not None
        }
        formed = self._manifest.formed
        return Introduction(self.own.storage, *newest, dict(earlier), formed, known)

    # -- what others say -----------------------------------------------------------------------

    def judge(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """Why ``peer``, which said this in a HELLO or WELCOME, is refused; None if it is not.

        When this returns None all that was learnt is durable. Raises DiskFailed.
        """
        problem = (
            self._judge_disk(peer, said)
            or self._judge_start(peer, said)
            or self._judge_view(peer, said)
            or self._judge_others(peer, said)
            or self._write_down(self._learnt(peer, said))
        )
        if problem is None:
            self._heard[peer] = said
        return problem

    def take_outdated(self) -> list[NodeId]:
        """Peers of which a later start is known than the one that was let in: their links must end.
        Each is named once."""
        found = [peer for peer, said in self._heard.items() if said.start < self._nodes[peer].start]
        for peer in found:
            del self._heard[peer]
        return found

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
            f"with {bound.hex()}: a wiped or copied disk is not its old self; {self._remedy(peer)}"
        )

    def _judge_start(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """The peer must be past the newest start that is known of it, and must have been that."""
        known = self._nodes[peer]
        if _continues(said.earlier | {said.start: said.boot}, known.start, known.boot):
            return None
        if said.start < known.start:
            what = f"node {peer} is at start {said.start}, {self.own.node} knows of its start "
            what += f"{known.start}: its data directory was rolled back to an older copy, and what "
            what += "it acknowledged since then is not there"
        else:
            what = f"node {peer} is at start {said.start}, and its start {known.start} was another "
            what += f"process than the one that {self.own.node} knows: two copies of its data "
            what += "directory were started"
        return WrongCluster(f"{what}; {_AS_LOST.format(node=peer)}")

    def _judge_view(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """What the peer knows of this node must be true."""
        own, seen = self.own, said.known.get(self.own.node)
        if seen is None:
            return None
        if seen.storage != own.storage:
            return WrongCluster(
                f"{peer} knows node {own.node} with storage id {seen.storage.hex()}, the disk of "
                f"{own.node} has {own.storage.hex()}: a wiped or copied disk is not its old self; "
                f"{self._remedy(own.node)}"
            )
        if _continues(self._manifest.starts, seen.start, seen.boot):
            return None
        return WrongCluster(
            f"{peer} knows a start {seen.start} of node {own.node} that the data directory of "
            f"{own.node} does not know: it was rolled back to an older copy, or copied; "
            f"{_AS_LOST.format(node=own.node)}"
        )

    def _judge_others(self, peer: NodeId, said: Introduction) -> QuorateError | None:
        """As long as nothing can have been acknowledged, a first start in which a third node has
        shown two disks does not go on: the cluster would begin without that node."""
        if self._manifest.formed or said.formed:
            return None
        for node, seen in self._thirds(peer, said):
            bound = self._nodes[node].storage
            if bound is not None and bound != seen.storage:
                return WrongCluster(
                    f"{peer} knows node {node} with storage id {seen.storage.hex()}, "
                    f"{self._who_knows(node, bound)} it with {bound.hex()}: the disk of {node} "
                    f"changed before the first start of the cluster was complete; {_START_OVER}"
                )
        return None

    def _thirds(self, peer: NodeId, said: Introduction) -> Iterator[tuple[NodeId, Seen]]:
        """What ``peer`` knows of other nodes than itself and this one."""
        for name, seen in said.known.items():
            node = NodeId(name)
            if node in self._nodes and node not in (peer, self.own.node):
                yield node, seen

    def _who_knows(self, node: NodeId, storage: bytes) -> str:
        """Every node that is known to know ``node`` by that disk, this one first."""
        others = [
            peer
            for peer, said in self._heard.items()
            if (seen := said.known.get(node)) is not None and seen.storage == storage
        ]
        names = [self.own.node, *sorted(others)]
        return f"{' and '.join(names)} {'know' if others else 'knows'}"

    def _remedy(self, node: str) -> str:
        remedy = _AS_LOST.format(node=node)
        return remedy if self._manifest.formed else f"{remedy}; {_START_OVER}"

    # -- what is written down ------------------------------------------------------------------

    def _learnt(self, peer: NodeId, said: Introduction) -> dict[NodeId, Member]:
        """The rows of the manifest that change with what ``peer`` says.

        A disk that is known is never replaced by another: all of ADR 20 rests on that.
        """
        known = self._nodes[peer]
        seen = said.known.get(self.own.node)
        rows = {
            peer: known._replace(
                storage=said.storage,
                start=said.start,
                boot=said.boot,
                confirmed=max(known.confirmed, seen.start if seen is not None else 0),
            )
        }
        for node, seen in self._thirds(peer, said):
            mine = self._nodes[node]
            same = mine.storage == seen.storage
            if mine.storage is None or (same and mine.start < seen.start):
                rows[node] = mine._replace(storage=seen.storage, start=seen.start, boot=seen.boot)
        return {node: row for node, row in rows.items() if row != self._nodes[node]}

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


def _continues(starts: Mapping[int, int], start: int, boot: int) -> bool:
    """Whether a node with these starts is the one that was seen at ``start`` with ``boot``: it was
    that process, or that is longer ago than it remembers."""
    return starts[start] == boot if start in starts else start < min(starts)
