"""Linearizable reads without a clock: ReadIndex (Raft § 8, thesis § 6.4).

The leader confirms its committed index by hearing a majority after the read arrived; a read joins
only a round that began after it. Followers ask the leader and then answer from their own copy.
Every read ends: it is confirmed once the entries that it must show are committed on this node, or
refused at its deadline.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.messages import ReadIndex, ReadIndexReply, RequestId
from quorate.raft.output import Refusal
from quorate.types import Index, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quorate.raft.leader import Leader
    from quorate.raft.state import RaftState

__all__ = ["UNSURE_READ", "Reads"]


# The token of a node's own read: it asks for an index that was committed after the node restarted
# with a loss.
UNSURE_READ = -1


class _PeerAsks(NamedTuple):
    """A question of a follower. The follower keeps the deadline, and asks again if need be."""

    peer: NodeId
    request: RequestId


# A read of this node, by its token, or a follower's question.
_Asker = int | _PeerAsks


class _Round(NamedTuple):
    number: int
    committed: Index  # when the round began
    askers: tuple[_Asker, ...]


class Reads:
    """Linearizable reads on both sides: as leader they wait for a round, as follower for the
    leader's answer."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_asked_at",
        "_confirmed",
        "_deadlines",
        "_peers",
        "_raft",
        "_request",
        "_rounds",
        "unsure_until",
    )  # fmt: skip

    def __init__(self, raft: RaftState) -> None:
        self._raft = raft
        # The clock at which each read of this node is given up, by token.
        self._deadlines: dict[int, int] = {}
        # Reads and followers' questions that no round and no question covers yet.
        self._arrived: list[_Asker] = []
        # As leader: rounds that are not confirmed yet, oldest first.
        self._rounds: deque[_Round] = deque()
        # As leader: the question of each follower that waits for its answer, so that a repetition
        # of the question takes no second place.
        self._peers: dict[NodeId, RequestId] = {}
        # As follower: the reads that the question numbered ``_request`` covers. It is repeated
        # under its number until it is answered, so that a slow link's answer still counts.
        self._request = 0
        self._asked: list[int] = []
        self._asked_at = 0
        # Reads of this node that wait for their index to be committed here.
        self._confirmed: list[tuple[int, Index]] = []
        # The answer to the node's own read: an unsure node is sure again with the entries up to
        # it. None before it came. Without a deadline: on a slow line
        # the entries up to it may arrive much later than the answer.
        self.unsure_until: Index | None = None

    @property
    def waiting(self) -> int:
        """The number of reads of this node's clients that have no answer yet."""
        return len(self._deadlines) - (UNSURE_READ in self._deadlines)

    @property
    def unsure_read_waits(self) -> bool:
        """Whether the node's own read waits for its answer."""
        return UNSURE_READ in self._deadlines

    def read(self, token: int) -> None:
        """Begin a read of this node: it is confirmed or refused later, by its token."""
        raft = self._raft
        deadline = raft.clock + raft.ticks(raft.config.timing.read_ms)
        self._deadlines[token] = deadline
        self._arrived.append(token)

    def on_read_index(self, source: NodeId, ask: ReadIndex) -> None:
        raft = self._raft
        if raft.role is not Role.LEADER:
            raft.refuse(Refusal.NOT_LEADING)
            raft.send(source, ReadIndexReply(raft.term, ask.request, None))
        elif (waits := self._peers.get(source)) != ask.request:
            if waits is not None and (older := _PeerAsks(source, waits)) in self._arrived:
                self._arrived.remove(older)  # given up by its asker
            self._peers[source] = ask.request
            self._arrived.append(_PeerAsks(source, ask.request))

    def on_read_index_reply(self, source: NodeId, reply: ReadIndexReply) -> None:
        """Take an answer. It counts only for the open question: same boot, same number."""
        if reply.request != RequestId(self._raft.boot, self._request) or not self._asked:
            self._raft.refuse(Refusal.NOT_ASKED)
        elif reply.index is not None:
            asked, self._asked = self._asked, []
            if UNSURE_READ in asked:
                asked.remove(UNSURE_READ)
                del self._deadlines[UNSURE_READ]
                self.unsure_until = reply.index
            self._confirmed.extend((token, reply.index) for token in asked)

    def role_changed(self) -> None:
        """Start over after leading ended or began: rounds are void, own reads begin again, and
        followers ask again."""
        orphans = [asker for item in self._rounds for asker in item.askers]
        self._rounds.clear()
        self._peers.clear()
        waiting = [*orphans, *self._asked, *self._arrived]
        self._asked = []
        self._arrived = [asker for asker in waiting if isinstance(asker, int)]

    def tick(self) -> None:
        """Refuse reads past their deadline; repeat the question that has no answer."""
        raft = self._raft
        # The deadlines are in rising order: each read was given the same time.
        due = takewhile(lambda item: raft.clock >= item[1], self._deadlines.items())
        expired = [token for token, _ in due]
        if expired:
            for token in expired:
                del self._deadlines[token]
            raft.out.reads_refused.extend(expired)
            self._drop_expired()
        patience = raft.ticks(raft.config.timing.heartbeat_ms)
        if self._asked and raft.clock - self._asked_at >= patience:
            self._send_question()

    def _drop_expired(self) -> None:
        self._arrived = self._live(self._arrived)
        self._asked = [token for token in self._asked if token in self._deadlines]
        self._confirmed = [item for item in self._confirmed if item[0] in self._deadlines]
        kept = (item._replace(askers=tuple(self._live(item.askers))) for item in self._rounds)
        self._rounds = deque(item for item in kept if item.askers)

    def _live(self, askers: Iterable[_Asker]) -> list[_Asker]:
        return [one for one in askers if isinstance(one, _PeerAsks) or one in self._deadlines]

    def proceed(self, leader: Leader | None) -> None:
        """Advance every read as far as possible: called once at the end of a turn."""
        if leader is None:
            self._ask_leader()
        else:
            self._begin_round(leader)
            if self._rounds:
                self._end_rounds(leader.confirmed_round())
        if self._confirmed:
            self._release()

    def _ask_leader(self) -> None:
        if not self._arrived or self._asked or self._raft.leader is None:
            return
        own = [asker for asker in self._arrived if isinstance(asker, int)]
        if own:
            self._request += 1
            self._asked, self._arrived = own, []
            self._send_question()

    def _send_question(self) -> None:
        raft = self._raft
        self._asked_at = raft.clock
        if raft.leader is not None:
            request = RequestId(raft.boot, self._request)
            raft.send(raft.leader, ReadIndex(raft.term, request))

    def _begin_round(self, leader: Leader) -> None:
        """Begin a round for the reads that arrived. Only a leader with a commit in its own term, or
        without need for one, knows which entries are committed."""
        if self._arrived and leader.ready:
            leader.round += 1
            askers = tuple(self._arrived)
            self._rounds.append(_Round(leader.round, self._raft.committed, askers))
            self._arrived = []
            leader.beat()

    def _end_rounds(self, confirmed: int) -> None:
        raft = self._raft
        while self._rounds and self._rounds[0].number <= confirmed:
            done = self._rounds.popleft()
            for asker in done.askers:
                if isinstance(asker, _PeerAsks):
                    self._peers.pop(asker.peer, None)
                    answer = ReadIndexReply(raft.term, asker.request, done.committed)
                    raft.send(asker.peer, answer)
                else:
                    self._confirmed.append((asker, done.committed))

    def _release(self) -> None:
        """Confirm the reads whose index is committed here: the engine applies it in this turn."""
        committed = self._raft.committed
        for token, index in self._confirmed:
            if index <= committed:
                del self._deadlines[token]
                self._raft.out.reads_confirmed.append((token, index))
        self._confirmed = [item for item in self._confirmed if item[1] > committed]
