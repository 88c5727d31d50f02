"""Linearizable reads without a clock: ReadIndex (Raft § 8, thesis § 6.4).

The leader vouches for its committed index by hearing a majority after the read arrived; a read
joins only a round that began after it. Followers ask the leader and then answer from their own
copy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from quorate.raft.messages import ReadIndex, ReadIndexReply, RequestId
from quorate.raft.output import Refusal
from quorate.types import Index, NodeId, Role

if TYPE_CHECKING:
    from quorate.raft.leader import Leader
    from quorate.raft.roles import Standing

__all__ = ["Reads"]


class _Asker(NamedTuple):
    """Who waits: a read of this node by its token, or a peer by its request."""

    token: int
    peer: NodeId | None = None
    request: RequestId | None = None


class _Round(NamedTuple):
    number: int
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    askers: tuple[_Asker, ...]


class Reads:
    """Both sides: what waits for a round here, and what waits for the leader's answer."""

    __slots__ = (
        "_arrived",
        "_asked",
        "_asked_at",
        "_deadlines",
        "_request",
        "_rounds",
        "_standing",
    )

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        # Reads that no round and no question covers yet.
        self._arrived: list[_Asker] = []
        # As leader: rounds that are out, oldest first.
        self._rounds: deque[_Round] = deque()
        # As follower: the question that is out, and the reads that it covers.
        self._request = 0
        self._asked: list[_Asker] = []
        self._asked_at = 0
        # The clock at which each own read is given up, oldest first.
        self._deadlines: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """How many reads have no answer yet, those of peers included."""
        rounds = sum(len(item.askers) for item in self._rounds)
        return len(self._arrived) + len(self._asked) + rounds

    def read(self, token: int) -> None:
        """A read of this node: confirmed or refused later, by its token."""
        standing = self._standing
        deadline = standing.clock + standing.ticks(standing.config.timing.read_ms)
        self._deadlines[token] = deadline
        self._arrived.append(_Asker(token))

    def on_read_index(self, source: NodeId, ask: ReadIndex) -> None:
        standing = self._standing
        if standing.role is not Role.LEADER or self.waiting >= standing.config.limits.pending_reads:
            standing.refuse(Refusal.NOT_LEADING)
            standing.send(source, ReadIndexReply(standing.term, ask.request, None))
        else:
            # A peer has one question out: a newer one means that it gave up the older.
            self._arrived = [asker for asker in self._arrived if asker.peer != source]
            self._arrived.append(_Asker(-1, source, ask.request))

    def on_read_index_reply(self, source: NodeId, reply: ReadIndexReply) -> None:
        """An answer counts for the very question that is out: same boot, same number."""
        if reply.request != RequestId(self._standing.boot, self._request) or not self._asked:
            self._standing.refuse(Refusal.NOT_ASKED)
            return
        asked, self._asked = self._asked, []
        if reply.index is None:
            self._arrived[:0] = asked  # asked again, until the deadline
            self._asked_at = self._standing.clock
        else:
            for asker in asked:
                self._confirm(asker, reply.index)

    def role_changed(self) -> None:
        """Leading ended or began: rounds are void, own reads start over, peers ask again."""
        orphans = [asker for item in self._rounds for asker in item.askers]
        self._rounds.clear()
        waiting = [*orphans, *self._asked, *self._arrived]
        self._asked = []
        self._arrived = [asker for asker in waiting if asker.peer is None]

    def tick(self) -> None:
        """Give up what waited too long; ask again for what is still wanted."""
        standing = self._standing
        expired = [token for token, at in self._deadlines.items() if standing.clock >= at]
        if expired:
            standing.out.reads_refused.extend(expired)
            for token in expired:
                del self._deadlines[token]
            self._drop_expired()
        resend = standing.ticks(standing.config.timing.heartbeat_ms)
        if self._asked and standing.clock - self._asked_at >= resend:
            self._arrived[:0] = self._asked
            self._asked = []

    def _drop_expired(self) -> None:
        def live(askers: list[_Asker]) -> list[_Asker]:
            return [one for one in askers if one.peer is not None or one.token in self._deadlines]

        self._arrived = live(self._arrived)
        self._asked = live(self._asked)
        kept = (item._replace(askers=tuple(live(list(item.askers)))) for item in self._rounds)
        self._rounds = deque(item for item in kept if item.askers)

    def proceed(self, leader: Leader | None) -> None:
        """Move every read as far as it goes: called once at the end of a turn."""
        if leader is None:
            self._ask_leader()
            return
        if self._arrived and leader.ready:
            leader.round += 1
            self._rounds.append(
                _Round(leader.round, self._standing.committed, tuple(self._arrived))
            )
            self._arrived = []
            leader.beat()
        confirmed = leader.confirmed_round()
        while self._rounds and self._rounds[0].number <= confirmed:
            done = self._rounds.popleft()
            for asker in done.askers:
                self._confirm(asker, done.index)

    def _ask_leader(self) -> None:
        standing = self._standing
        if not self._arrived or self._asked or standing.leader is None:
            return
        self._request += 1
        self._asked, self._arrived = self._arrived, []
        self._asked_at = standing.clock
        request = RequestId(standing.boot, self._request)
        standing.send(standing.leader, ReadIndex(standing.term, request))

    def _confirm(self, asker: _Asker, index: Index) -> None:
        standing = self._standing
        if asker.peer is not None and asker.request is not None:
            standing.send(asker.peer, ReadIndexReply(standing.term, asker.request, index))
        elif self._deadlines.pop(asker.token, None) is not None:
            standing.out.reads_confirmed.append((asker.token, index))
