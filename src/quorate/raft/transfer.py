"""Transfers of the leadership to a voter of the leader's choice (Raft thesis § 3.10).

::

                streams           has all, nothing waits
    APPROACH ─────────────▶ DRAIN ─────────────────────▶ ASKED ───▶ another term
        │                     │                            │
        └─────────────────────┴────────────────────────────┘
                 the time is over, or the target cannot: the leader goes on

From DRAIN on the leader logs no entry (R17), and it asks the target only when every entry is
committed and applied (R15): so no request has an unknown outcome because of a transfer. Heartbeats
and reads go on, and a transfer that fails costs the requests one election timeout at most while the
leader drains, and one while the target may campaign.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from quorate.errors import Busy, CatchingUp, InvalidArgument, NotLeader, QuorateError, Timeout
from quorate.raft.messages import Transfer, TransferRefused
from quorate.raft.output import EventKind, Refusal, Transferred
from quorate.raft.progress import ProgressState
from quorate.types import Index

if TYPE_CHECKING:
    from quorate.raft.changes import Changes
    from quorate.raft.leader import Leader
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState
    from quorate.types import NodeId

__all__ = ["ALIVE_HEARTBEATS", "Transfers"]

# A peer that was heard within this many heartbeat intervals is alive.
ALIVE_HEARTBEATS = 3


class _Phase(StrEnum):
    APPROACH = "approach"
    DRAIN = "drain"
    ASKED = "asked"
    # This node follows another term, whose leader it does not know yet.
    FOLLOWS = "follows"


class Transfers:
    """The transfer under way, of which there is at most one, and the requests that wait for it."""

    __slots__ = (
        "_any_target", "_choose_until", "_cut_at", "_deadline", "_hindrance", "_named", "_number",
        "_phase", "_raft", "_tried", "target",
    )  # fmt: skip

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft
        # The voter that is to lead; None while no transfer is under way.
        self.target: NodeId | None = None
        # The requests that named the target, and those that take any.
        self._named: list[int] = []
        self._any_target: list[int] = []
        # The targets of this transfer so far, and the clock from which on it chooses no other; 0 if
        # only requests that named the target wait.
        self._tried: set[NodeId] = set()
        self._choose_until = 0
        # The reason for which the target cannot take over, if that was found since the last turn.
        self._hindrance: str | None = None
        self._phase = _Phase.APPROACH
        # The number of the newest question to a target.
        self._number = 0
        # The clock at which the connection to each peer ended last.
        self._cut_at: dict[NodeId, int] = {}
        # The clock at which the phase is given up.
        self._deadline = 0

    @property
    def holds(self) -> bool:
        """Whether this leader may log no entry now (R17)."""
        return self.target is not None and self._phase in (_Phase.DRAIN, _Phase.ASKED)

    @property
    def successor(self) -> NodeId | None:
        """The node that this one gave the leadership to, until a new leader is known."""
        return self.target if self._phase is _Phase.FOLLOWS else None

    # -- requests ------------------------------------------------------------------------------

    def request(self, token: int, target: NodeId | None, leader: Leader | None) -> None:
        """Transfer the leadership to ``target``, or to the fittest voter. The output gets
        ``token`` with the new leader or with an error."""
        raft = self._raft
        if leader is None:
            known = raft.leader
            self._end_one(token, NotLeader(f"{raft.node} does not lead", leader=known))
        elif self.target is not None and target in (None, self.target):
            self._wait(token, target)
        elif self.target is not None:
            self._end_one(token, Busy(f"a transfer to {self.target} is under way"))
        elif target == raft.node:
            self._end_one(token, Transferred(raft.node))
        elif target is not None and target not in raft.electorate.voters:
            voters = ", ".join(sorted(raft.electorate.voters))
            problem = f"{target} is no voter of this log; its voters are {voters}"
            self._end_one(token, InvalidArgument(problem))
        elif target is not None and not raft.priority(target):
            problem = f"{target} has priority 0 in this log: it leads only while no other voter can"
            self._end_one(token, InvalidArgument(problem))
        else:
            self._begin(token, target, leader)

    def _begin(self, token: int, target: NodeId | None, leader: Leader) -> None:
        self._tried.clear()
        self._choose_until = 0
        choice = self._fittest(leader) if target is None else target
        if choice is None:
            self._end_one(token, CatchingUp(self._none_able(leader)))
        elif (reason := self._unable(leader.progress[choice])) is not None:
            self._end_one(token, CatchingUp(f"{choice} {reason}"))
        else:
            self._wait(token, target)
            self._approach(choice)

    def _wait(self, token: int, target: NodeId | None) -> None:
        """Note that the request waits for the end of the transfer."""
        if target is not None:
            self._named.append(token)
            return
        if not self._choose_until:
            self._choose_until = self._raft.clock + self._raft.election_ticks
        self._any_target.append(token)

    def begin_to_leave(self, leader: Leader) -> None:
        """Transfer the leadership to the fittest voter, if there is one. No request waits."""
        if self.target is not None:
            return
        self._tried.clear()
        target = self._fittest(leader)
        if target is not None:
            self._choose_until = self._raft.clock + self._raft.election_ticks
            self._approach(target)

    def _approach(self, target: NodeId) -> None:
        self.target = target
        self._tried.add(target)
        self._hindrance = None
        self._enter(_Phase.APPROACH)
        self._raft.report(EventKind.TRANSFERS, target)

    def _fittest(self, leader: Leader) -> NodeId | None:
        """The voter to choose among those that can take over and were not chosen before: one that
        lacks few entries, then the one with the highest priority, then the one with the most
        entries; None if there is none."""
        peers = (peer for peer in leader.progress.values() if peer.node not in self._tried)
        able = [peer for peer in peers if self._unable(peer) is None]
        best = max(able, key=self._fitness, default=None)
        return best.node if best is not None else None

    def preferred(self, leader: Leader) -> NodeId | None:
        """The voter with a higher priority than this node that can take over and lacks few entries;
        of several the one with the highest. None if there is none, or a transfer is under way."""
        own = self._raft.priority(self._raft.node)
        if self.target is not None:
            return None
        better = [
            peer
            for peer in leader.progress.values()
            if self._raft.priority(peer.node) > own
            and self._unable(peer) is None
            and self._near(peer)
        ]
        best = max(better, key=self._fitness, default=None)
        return best.node if best is not None else None

    def _fitness(self, peer: Progress) -> tuple[bool, int, Index, NodeId]:
        return self._near(peer), self._raft.priority(peer.node), peer.match, peer.node

    def may_give_way(self, leader: Leader, changes: Changes) -> bool:
        """Whether this node, whose priority is 0, can give the leadership to a voter with a higher
        one that has all entries, and no change of the members waits for this leader."""
        raft = self._raft
        waits = self.target is not None or changes.under_way or not leader.ready
        if raft.priority(raft.node) or waits:
            return False
        return any(
            raft.priority(peer.node) > 0
            and peer.match >= raft.log.last_index
            and self._unable(peer) is None
            for peer in leader.progress.values()
        )

    def _none_able(self, leader: Leader) -> str:
        reasons = [f"{node} {self._unable(peer)}" for node, peer in sorted(leader.progress.items())]
        return "; ".join(reasons) or f"{self._raft.node} is the only voter"

    def _unable(self, peer: Progress) -> str | None:
        """The reason why ``peer`` cannot take over soon; None if it can."""
        raft = self._raft
        alive = ALIVE_HEARTBEATS * raft.ticks(raft.config.timing.heartbeat_ms)
        if peer.node not in raft.electorate.voters:
            return "is no voter"
        if not peer.heard_within(raft.clock, alive):
            return "does not answer"
        if peer.heard_at <= self._cut_at.get(peer.node, -1):
            return "was not heard since the connection to it ended"
        if peer.unfit:
            return "stops, or cannot serve"
        if peer.full:
            return "has no room on its disk"
        return None

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._deadline = self._raft.clock + self._raft.election_ticks

    def _end_one(self, token: int, result: Transferred | QuorateError) -> None:
        self._raft.out.ended.append((token, result))

    # -- progress ------------------------------------------------------------------------------

    def proceed(self, leader: Leader | None) -> None:
        """Advance the transfer as far as possible: called once at the end of a turn, after the
        peers were fed."""
        if self.target is None:
            return
        if leader is None or self._phase is _Phase.FOLLOWS:
            self._follow()
            return
        self._look_at(leader.progress[self.target])
        if self._hindrance is not None:
            self._give_up(CatchingUp(self._hindrance), leader)
        if self.target is not None:
            self._advance(self.target, leader)

    def _look_at(self, target: Progress) -> None:
        # The answers of a target that was asked wait for its disk, which may be slow. A leader that
        # took the silence for a failure would lose the entries that it logs to the new leader.
        if self._phase is not _Phase.ASKED and (reason := self._unable(target)) is not None:
            self._hindrance = f"{target.node} {reason}"

    def _advance(self, target: NodeId, leader: Leader) -> None:
        if self._phase is _Phase.APPROACH and self._near(leader.progress[target]):
            self._enter(_Phase.DRAIN)
        if self.due(leader):
            self._enter(_Phase.ASKED)
            self._number += 1
            self._raft.send(target, Transfer(leader.term, self._raft.log.last, self._number))

    def _give_up(self, problem: QuorateError, leader: Leader | None) -> None:
        """Give this target up. Go on with one that was not tried before if no request named this
        one, or another request takes any, and this node has not chosen for long."""
        may_choose = self._raft.clock < self._choose_until
        other = self._fittest(leader) if may_choose and leader is not None else None
        if other is None:
            self._fail(problem)
            return
        if self._named:
            self._report_failure(problem)
            self._end_all(self._named, problem)
        self._approach(other)

    def _near(self, peer: Progress) -> bool:
        """Whether at most one window of entries is not sent to ``peer`` yet."""
        log, limits = self._raft.log, self._raft.config.limits
        return (
            peer.state is ProgressState.APPEND
            and peer.next >= log.first_in_memory
            and log.last_index - peer.next < limits.window_messages
            and log.bytes_after(Index(peer.next - 1)) <= limits.window_bytes
        )

    def due(self, leader: Leader) -> bool:
        """Whether the target is to be asked now: it has every entry, and each is committed and
        applied here, so that all requests in the log have their answers (R15)."""
        if self.target is None or self._phase is not _Phase.DRAIN:
            return False
        raft, last = self._raft, self._raft.log.last_index
        drained = raft.applied == raft.committed == last
        return drained and leader.progress[self.target].match == last

    def tick(self, leader: Leader | None) -> None:
        if self.target is not None and self._raft.clock >= self._deadline:
            waited_ms = self._raft.config.timing.election_ms
            problem = Timeout(f"{self.target} did not take over in {waited_ms} ms")
            self._give_up(problem, leader)

    def link_closed(self, peer: NodeId) -> None:
        self._cut_at[peer] = self._raft.clock
        if peer == self.target and self._phase is not _Phase.FOLLOWS:
            self._hindrance = f"the connection to {peer} ended"

    def on_refused(self, source: NodeId, answer: TransferRefused) -> None:
        raft = self._raft
        asked = source == self.target and self._phase is _Phase.ASKED
        if asked and (answer.term, answer.number) == (raft.term, self._number):
            self._hindrance = f"{source} cannot take over now"
        else:
            raft.refuse(Refusal.NOT_ASKED)

    def leadership_ended(self) -> None:
        """Note that this node does not lead any more: because of the transfer, if the target was
        asked."""
        if self.target is None:
            return
        if self._phase is _Phase.ASKED:
            self._enter(_Phase.FOLLOWS)
        else:
            self._fail(NotLeader("the leadership ended before the transfer"))

    def _follow(self) -> None:
        """End the transfer once the next leader is known."""
        found, target = self._raft.leader, self.target
        if found == target and target is not None:
            self._raft.report(EventKind.TRANSFERRED, target)
            self._end(Transferred(target))
        elif found is not None:
            self._fail(NotLeader(f"{found} leads, not {target}", leader=found))

    def _fail(self, problem: QuorateError) -> None:
        self._report_failure(problem)
        self._end(problem)

    def _report_failure(self, problem: QuorateError) -> None:
        if self._raft.eligible:  # a node that left the members hears of no other leader
            self._raft.report(EventKind.TRANSFER_FAILED, self.target, detail=str(problem))

    def _end(self, result: Transferred | QuorateError) -> None:
        self.target = None
        self._end_all(self._named, result)
        self._end_all(self._any_target, result)

    def _end_all(self, tokens: list[int], result: Transferred | QuorateError) -> None:
        for token in tokens:
            self._end_one(token, result)
        tokens.clear()
