"""Bugs planted in elections, replication, commit, reads and proposals."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["CONSENSUS"]

CONSENSUS = (
    # -- elections -----------------------------------------------------------------------------
    Mutant(
        "double-vote",
        "one vote per term (Raft § 5.2)",
        "raft/election.py",
        "granted = raft.vote in (None, source) and self._up_to_date(ask.last)",
        "granted = self._up_to_date(ask.last)",
    ),
    Mutant(
        "vote-without-log-check",
        "a vote only for a log that is up to date (Raft § 5.4.1)",
        "raft/election.py",
        "granted = raft.vote in (None, source) and self._up_to_date(ask.last)",
        "granted = raft.vote in (None, source)",
    ),
    Mutant(
        "vote-not-persisted-before-reply",
        "term and vote are on disk before a message that depends on them leaves",
        "replica/durability.py",
        "self._vote_number = self._next_number",
        "self._vote_number = 0",
    ),
    Mutant(
        "pre-vote-without-log-check",
        "a pre-vote only for a log that is up to date (thesis § 9.6)",
        "raft/election.py",
        "ask.term >= raft.term and not self.leader_alive and self._up_to_date(ask.last)",
        "ask.term >= raft.term and not self.leader_alive",
    ),
    Mutant(
        "pre-vote-not-sticky",
        "a node that hears a leader helps no candidate to replace it (thesis § 4.2.3)",
        "raft/election.py",
        "ask.term >= raft.term and not self.leader_alive and self._up_to_date(ask.last)",
        "ask.term >= raft.term and self._up_to_date(ask.last)",
    ),
    Mutant(
        "disk-never-too-slow",
        "a leader whose disk hangs hands over",
        "raft/step_down.py",
        "return raft.clock - self._moved_at > limit and raft.electorate.won(ahead)",
        "return False",
    ),
    Mutant(
        "window-read-in-one-turn",
        "a turn reads one message for each peer from disk",
        "raft/feeder.py",
        "            if fetched:\n                raft.out.more = True\n",
        "            if False:\n                raft.out.more = True\n",
    ),
    Mutant(
        "mismatch-looked-up-on-disk",
        "a peer's word about an entry that is only on disk is taken as it is",
        "raft/leader.py",
        "in_memory = reply.prev >= log.first_in_memory",
        "in_memory = True",
    ),
    Mutant(
        "window-read-tick-by-tick",
        "the rest of a window is read in the next turn, which comes at once",
        "raft/feeder.py",
        "                raft.out.more = True\n                return\n",
        "                return\n",
    ),
    Mutant(
        "no-check-quorum",
        "a leader that no majority answers steps down (thesis § 6.2)",
        "raft/leader.py",
        "return self._majority_heard()",
        "return True",
    ),
    Mutant(
        "reads-put-off-check-quorum",
        "check-quorum is due by time, even if other causes send heartbeats",
        "raft/leader.py",
        "            self.beat()\n        self._drop",
        "            self.beat()\n        else:\n            return True\n        self._drop",
    ),
    Mutant(
        "campaign-twice-in-a-term",
        "no second campaign in one term, not after a restart either",
        "raft/state.py",
        "self._begin_term(Term(self.term + 1), self.node)",
        "self._begin_term(Term(self.term + (self.vote != self.node)), self.node)",
    ),
    Mutant(
        "every-closed-link-ends-stickiness",
        "only a refused reconnect ends stickiness",
        "raft/election.py",
        "        if not self._hint_refused:\n",
        "        if self._hint_at is not None:\n",
    ),
    Mutant(
        "unsure-node-votes",
        "a node that may have lost acknowledged entries votes for no candidate",
        "raft/election.py",
        "        if not raft.sure:\n            raft.refuse(Refusal.UNSURE)\n",
        "        if False:\n            raft.refuse(Refusal.UNSURE)\n",
    ),
    Mutant(
        "flush-counted-before-the-turn-is-staged",
        "a truncation of the same turn caps the entries that a flush proves",
        "replica/engine.py",
        "before the proof is counted.\n        self._stage()\n",
        "before the proof is counted.\n",
    ),
    # -- replication ---------------------------------------------------------------------------
    Mutant(
        "ack-before-flush",
        "an ack leaves when the entry that it names is on disk",
        "replica/durability.py",
        "if type(message) is not Ack or message.match <= self.persisted:",
        "if True:",
    ),
    Mutant(
        "late-flush-proves-an-overwritten-entry",
        "a truncation caps the entries that earlier write numbers prove",
        "replica/durability.py",
        "            self._flying_proves = min(self._flying_proves, Index(first - 1))\n",
        "",
    ),
    Mutant(
        "truncate-on-overlap",
        "only a real mismatch truncates (Raft § 5.3)",
        "raft/follower.py",
        "mismatch = self._first_mismatch(message)",
        "mismatch = message.entries[0].index",
    ),
    Mutant(
        "truncate-below-committed",
        "a committed entry is never truncated",
        "raft/follower.py",
        "        if first <= raft.committed:\n",
        "        if first < 0:\n",
    ),
    Mutant(
        "truncation-keeps-persisted",
        "persisted falls with a truncation",
        "raft/state.py",
        "        self.persisted = min(self.persisted, Index(first - 1))\n",
        "",
    ),
    Mutant(
        "stale-term-append-accepted",
        "appends of an earlier term have no effect (Raft § 5.1)",
        "raft/core.py",
        "        if message.term < raft.term:\n"
        "            raft.refuse(Refusal.STALE_TERM)\n"
        "            # Tells",
        "        if message.term < raft.term and type(message) is not Append:\n"
        "            raft.refuse(Refusal.STALE_TERM)\n            # Tells",
    ),
    Mutant(
        "stale-term-control-accepted",
        "control messages of an earlier term have no effect",
        "raft/core.py",
        "        if message.term < raft.term:\n"
        "            raft.refuse(Refusal.STALE_TERM)\n"
        "            # Tells",
        "        if message.term < raft.term and type(message) is Append:\n"
        "            raft.refuse(Refusal.STALE_TERM)\n            # Tells",
    ),
    Mutant(
        "stale-term-ack-accepted",
        "answers of an earlier term have no effect",
        "raft/core.py",
        "        if message.term < raft.term:\n"
        "            raft.refuse(Refusal.STALE_TERM)\n"
        "        elif",
        "        if message.term < 0:\n            raft.refuse(Refusal.STALE_TERM)\n        elif",
    ),
    Mutant(
        "ack-beyond-what-was-proved",
        "an ack names at most the last entry that the message proved",
        "raft/follower.py",
        "Ack(raft.term, number, max(proved, raft.committed))",
        "Ack(raft.term, number, raft.log.last_index)",
    ),
    Mutant(
        "chain-not-compared",
        "positions agree by index, term and chain",
        "raft/log.py",
        "self.position(index) == position",
        "self.position(index)[:2] == position[:2]",
    ),
    Mutant(
        "match-kept-across-boots",
        "match belongs to one boot of the peer",
        "raft/core.py",
        "        if known is not None and self.leader is not None:\n"
        "            self.leader.peer_restarted(source)\n",
        "",
    ),
    Mutant(
        "earlier-boot-heard",
        "messages of an earlier boot are not listened to",
        "raft/core.py",
        "        if known is not None and boot.counter <= known.counter:\n",
        "        if known is not None and boot.counter < 0:\n",
    ),
    Mutant(
        "resend-never",
        "an entry that was not acked in time is sent again",
        "raft/feeder.py",
        "            if peer.overdue(raft.clock, patience):\n                self._resend(peer)\n",
        "",
    ),
    Mutant(
        "window-leak",
        "a stream that is given up gives its window back",
        "raft/progress.py",
        "        self.inflight.clear()\n        self.inflight_bytes = 0\n",
        "",
    ),
    Mutant(
        "throttle-holds-up-commit",
        "catching up is throttled below committed only",
        "raft/feeder.py",
        "lag = raft.committed - peer.next",
        "lag = raft.log.last_index - peer.next",
    ),
    Mutant(
        "restart-uses-up-the-quota",
        "a restart neither adds to a peer's share of a second nor uses it up",
        "raft/leader.py",
        "        after.quota = before.quota  # a restart neither adds to it nor uses it up\n",
        "",
    ),
    Mutant(
        "question-renumbered-at-every-try",
        "a repeated question keeps its number, so that a slow link's answer counts",
        "raft/feeder.py",
        "            peer.sent_at = None  # the same question again: an answer to either copy "
        "counts\n",
        "            peer.compare(peer.next)\n",
    ),
    Mutant(
        "watchdog-takes-a-question-back",
        "the watchdog takes no question back, and asks about no entry below the last one sent",
        "raft/feeder.py",
        "            if peer.state is not ProgressState.COMPARE:\n"
        "                peer.compare(peer.next)\n",
        "            peer.compare(Index(peer.match + 1))\n",
    ),
    # -- commit --------------------------------------------------------------------------------
    Mutant(
        "figure-8-commit",
        "only entries of the own term are committed by counting (Raft § 5.4.2)",
        "raft/leader.py",
        "if agreed > raft.committed and raft.log.term_at(agreed) == self.term:",
        "if agreed > raft.committed:",
    ),
    Mutant(
        "majority-off-by-one",
        "a majority is more than half",
        "raft/electorate.py",
        "return voters // 2 + 1",
        "return max(1, voters // 2)",
    ),
    Mutant(
        "own-copy-counted-early",
        "the leader's copy counts once it is on disk",
        "raft/leader.py",
        "copies[raft.node] = raft.persisted",
        "copies[raft.node] = raft.log.last_index",
    ),
    Mutant(
        "follower-commit-unbounded",
        "a follower commits no further than the message proved",
        "raft/follower.py",
        "raft.commit(min(message.committed, proved))",
        "raft.commit(min(message.committed, raft.log.last_index))",
    ),
    Mutant(
        "heartbeat-commits-by-index",
        "a heartbeat's commit counts for a follower that holds that very position",
        "raft/follower.py",
        "if raft.log.holds(message.committed):",
        "if message.committed.index <= raft.log.last_index:",
    ),
    Mutant(
        "expected-term-ignored",
        "an append that names a term is logged in that term or not at all",
        "replica/request_filter.py",
        "        if expected not in (None, term):\n",
        "        if expected not in (None, term, term - 1):\n",
    ),
    Mutant(
        "unlogged-appends-end-as-unknown",
        "an append that was never logged is refused for good",
        "replica/proposals.py",
        'ended = NotLeader("leadership ended before logging", leader=successor)',
        'ended = OutcomeUnknown("leadership ended before logging")',
    ),
    Mutant(
        "synced-counts-everybody",
        "a receipt counts the copies that are known to be on disk",
        "raft/leader.py",
        "return max(known, raft.electorate.fewest) if counted else known",
        "return len(raft.electorate.voters)",
    ),
    Mutant(
        "append-time-goes-back",
        "append times never decrease",
        "raft/leader.py",
        "return max(raft.wall_time, raft.log.last_append_time, run_on)",
        "return raft.wall_time",
    ),
    Mutant(
        "append-time-stands-still",
        "a log grows older, even after a clock that was ahead",
        "raft/leader.py",
        "passed = max(0, raft.clock - self._timed_at - 1)",
        "passed = 0",
    ),
    Mutant(
        "one-room-for-all-of-a-turn",
        "entries are accepted only into room that was given to no other entry",
        "replica/engine.py",
        "                self._stage()\n                takes = self.disk_space",
        "                takes = self.disk_space",
    ),
    Mutant(
        "noop-skipped",
        "a new leader begins with an entry of its own term (Raft § 8)",
        "raft/leader.py",
        "self.start = self.append(EntryKind.NOOP).index if noop else raft.log.last_index",
        "self.start = raft.log.last_index",
    ),
    # -- reads ---------------------------------------------------------------------------------
    Mutant(
        "stale-read-index",
        "a read waits until a majority was heard after it began (thesis § 6.4)",
        "raft/reads.py",
        "self._end_rounds(leader.confirmed_round())",
        "self._end_rounds(leader.round)",
    ),
    Mutant(
        "read-before-own-term-commit",
        "a new leader answers reads only after a commit of its own term (Raft § 8)",
        "raft/reads.py",
        "if self._arrived and leader.ready:",
        "if self._arrived:",
    ),
    Mutant(
        "heartbeat-reply-counts-for-any-round",
        "an answer vouches for the rounds up to the one it names",
        "raft/leader.py",
        "peer.round = max(peer.round, reply.round)",
        "peer.round = self.round",
    ),
    Mutant(
        "reads-without-a-deadline",
        "every read ends",
        "raft/reads.py",
        "        if expired:\n",
        "        if False:\n",
    ),
    Mutant(
        "read-answer-of-an-earlier-boot",
        "an answer counts for the question that was asked in this boot",
        "raft/reads.py",
        "if reply.request != RequestId(self._raft.boot, self._request) or not self._asked:",
        "if reply.request.number != self._request or not self._asked:",
    ),
    Mutant(
        "read-joins-an-older-round",
        "a read joins only a round that began after it arrived",
        "raft/reads.py",
        "            leader.round += 1\n",
        "            leader.round = max(1, leader.round)\n",
    ),
)
