"""Refuses clients' requests before they are judged: by size, the role of this node, the room on
disks, and the limits on waiting requests.

Every refusal of this file means that no entry was logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.commands import Abort
from quorate.entry import COUNT_MAX
from quorate.errors import (
    Busy,
    DiskFull,
    EmptyBatch,
    NotLeader,
    QuorateError,
    TooLarge,
    Transferring,
)
from quorate.replica.disk_space import NAMES_BYTES
from quorate.replica.engine_io import Operate, Propose, Stage
from quorate.storage.flusher import UNPROMISED_PAGES
from quorate.storage.layout import PAGE

if TYPE_CHECKING:
    from quorate.config import Config
    from quorate.raft.core import Core
    from quorate.raft.leader import Leader
    from quorate.replica.disk_space import DiskSpace
    from quorate.replica.engine_io import Request
    from quorate.replica.proposals import Proposals

__all__ = ["RequestFilter"]


class RequestFilter:
    """Checks each request of a client to one replica before it is judged."""

    __slots__ = ("_config", "_core", "_disk_space", "_largest", "_proposals")

    def __init__(
        self, core: Core, config: Config, proposals: Proposals, disk_space: DiskSpace
    ) -> None:
        self._core = core
        self._config = config
        self._proposals = proposals
        self._disk_space = disk_space
        # An entry larger than a segment never finds room, however long its client waits: a publish
        # of very many chunks, where segments are small.
        self._largest = config.storage.segment_bytes // PAGE * PAGE - UNPROMISED_PAGES * PAGE

    def refusal(self, item: Request) -> QuorateError | None:
        """The error with which ``item`` is refused; None if it is accepted."""
        problem = None
        if not isinstance(item, Operate):
            problem = self._refuse_batch(item)
        return problem or self._refuse_proposal(item)

    def _refuse_batch(self, item: Propose | Stage) -> QuorateError | None:
        """The error of a batch that is empty, too large or meant for another term; None if it is
        none of these."""
        limit = self._config.limits.batch_bytes
        if item.count < 1:
            return EmptyBatch("a batch has at least one record")
        if item.count > COUNT_MAX:
            return TooLarge(f"batch of {item.count} records, limit {COUNT_MAX}")
        if len(item.batch) > limit:
            return TooLarge(f"batch of {len(item.batch)} bytes, limit {limit} (limits.batch_bytes)")
        if not isinstance(item, Propose) or self._core.leader is None:
            return None
        expected, term = item.expected_term, self._core.raft.term
        if expected not in (None, term):
            node = self._core.raft.node
            return NotLeader(f"term is {term}, expected {expected}; leader: {node}", leader=node)
        return None

    def _refuse_proposal(self, item: Request) -> QuorateError | None:
        limits, proposals = self._config.limits, self._proposals
        size, names = item.size, 0 if isinstance(item, Propose) else NAMES_BYTES
        node, leader = self._core.raft.node, self._core.leader
        if leader is None:
            known = self._core.raft.leader
            return NotLeader(f"{node} does not lead; leader: {known or 'none'}", leader=known)
        lost = self._core.raft.lost
        if lost is not None:
            return Transferring(
                f"{node} leads only until another node has the whole log: entry {lost} is damaged "
                f"on its disk; try again"
            )
        arrived, arrived_bytes = proposals.arrived
        # An append that comes alone needs no room for dropping the chunks that others staged.
        beside = proposals.room if arrived or _drops(item) else 0
        room = arrived_bytes + size + names + beside
        disk_space = self._disk_space
        takes = disk_space.takes(room, arrived + 1)
        # The room without the other requests of this turn: their need is temporary.
        dropped = max(0, proposals.room - NAMES_BYTES * arrived) if _drops(item) else 0
        alone = disk_space.needs(size + names + dropped, 1)
        if not takes and alone > self._largest:
            return TooLarge(
                f"{size} bytes take {alone} bytes of a segment with what is written beside them, "
                f"limit {self._largest}: send less, or raise storage.segment_bytes"
            )
        if not takes and disk_space.takes_later(room, arrived + 1):
            return Busy(f"what is on its way to the disk of {node} leaves no room for {size} bytes")
        if not takes and not disk_space.shortage:
            return Busy(f"{node} is about to allocate the room for {size} bytes")
        needs = disk_space.needs(room, arrived + 1)
        if not takes:
            disk_space.refused(alone)
        if not takes or not leader.has_room_now(needs):
            if not takes or not leader.has_room(needs):
                return self._no_room(size, needs, leader, own=not takes or self._core.raft.full)
            return self._no_room_yet(size, leader)
        if proposals.waiting >= limits.pending_appends:
            return self._too_many(
                f"{limits.pending_appends} appends wait already (limits.pending_appends)"
            )
        if proposals.waiting_bytes + size > limits.pending_bytes:
            return self._too_many(
                f"{proposals.waiting_bytes} bytes wait already (limits.pending_bytes)"
            )
        if leader.uncommitted_bytes + arrived_bytes + size > limits.uncommitted_bytes:
            return Busy(
                f"{leader.uncommitted_bytes} bytes are not committed yet (limits.uncommitted_bytes)"
            )
        return None

    def _too_many(self, what: str) -> Busy | Transferring:
        transfers = self._core.transfers
        if not transfers.holds:
            return Busy(what)
        node = self._core.raft.node
        return Transferring(f"{node} gives the leadership to {transfers.target}; {what}")

    def _no_room_yet(self, size: int, leader: Leader) -> Busy:
        peers = leader.progress.values()
        untold = [peer.node for peer in peers if peer.full is None and leader.hears(peer)]
        if untold:
            return Busy(f"no answer yet from {', '.join(untold)} about room for {size} bytes")
        return Busy(f"what is on its way to the disks of peers leaves no room for {size} bytes")

    def _no_room(self, size: int, needs: int, leader: Leader, *, own: bool) -> DiskFull:
        """The error that names the nodes without room: with ``own`` this node is one of them, and
        peers are named by their last report."""
        shortage = self._disk_space.shortage
        node = self._core.raft.node
        full = [f"{node} ({shortage})" if shortage else str(node)] if own else []
        peers = leader.progress.values()
        full += [peer.node for peer in peers if peer.full or peer.room < needs]
        silent = [peer.node for peer in peers if peer.node not in full and not leader.hears(peer)]
        down = f", and no answer from {', '.join(silent)}" if silent else ""
        return DiskFull(
            f"no room for {size} bytes on {', '.join(full)}{down}; free some space there, or raise "
            f"storage.disk_usage_max"
        )


def _drops(item: Request) -> bool:
    """Whether ``item`` may cause an entry that drops chunks, up to all that are staged."""
    return isinstance(item, Stage) or (
        isinstance(item, Operate) and isinstance(item.operation, Abort)
    )
