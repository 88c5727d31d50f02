"""Bugs planted where a group handles damaged entries, too few files and states that differ, and in
corners of elections and durability."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["ADVERSITY"]

ADVERSITY = (
    # -- damaged entries -----------------------------------------------------------------------
    Mutant(
        "any-damage-bars-a-leader",
        "a damaged entry that is applied keeps no node from leading",
        "raft/state.py",
        "[index for index in self.without_body if index > self.applied]",
        "list(self.without_body)",
    ),
    Mutant(
        "damage-ahead-of-the-state-leads",
        "a node that cannot apply an entry leaves leading to those that can",
        "raft/state.py",
        "return self.may_feed and self.lost is None",
        "return self.may_feed",
    ),
    Mutant(
        "no-last-resort",
        "if no node that can serve leads, one leads that can only feed the others",
        "raft/election.py",
        "return raft.may_lead or (raft.may_feed and patient and bool(raft.peers))",
        "return raft.may_lead",
    ),
    Mutant(
        "lone-last-resort",
        "a node without peers that cannot apply an entry does not lead",
        "raft/election.py",
        "(raft.may_feed and patient and bool(raft.peers))",
        "(raft.may_feed and patient)",
    ),
    Mutant(
        "unsure-last-resort",
        "a node that may have lost acknowledged entries does not lead, not even to feed others",
        "raft/state.py",
        "        return self.sure and can_begin and self.memberships.known\n",
        "        return can_begin and self.memberships.known\n",
    ),
    Mutant(
        "last-resort-takes-requests",
        "a leader that cannot apply an entry takes no request",
        "replica/request_filter.py",
        "        if lost is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "last-resort-forgets-what-is-idle",
        "a leader that cannot apply an entry does not decide which state is idle",
        "replica/expiry.py",
        "leader = core.leader if raft.lost is None else None",
        "leader = core.leader",
    ),
    Mutant(
        "last-resort-stays",
        "a leader that cannot serve gives up once another node has the whole log",
        "raft/core.py",
        "elif step_down.others_can_serve() and",
        "elif False and",
    ),
    Mutant(
        "damaged-entry-sent-from-memory",
        "an entry without its body is not sent, also if it is in memory",
        "raft/log.py",
        "if not entry.whole or (size > bytes_max and count):",
        "if size > bytes_max and count:",
    ),
    Mutant(
        "replay-applies-damage",
        "a replay stops before the first entry that is not whole",
        "raft/log.py",
        'yield from takewhile(attrgetter("whole"), self.walk(start, stop))',
        "yield from self.walk(start, stop)",
    ),
    Mutant(
        "lost-entry-halts-a-leader",
        "a leader that lost an entry blocks the peer that needs it",
        "raft/log.py",
        "            except Corrupt:\n                return ()\n",
        "            except Corrupt:\n                raise\n",
    ),
    Mutant(
        "lost-end-of-a-peer-halts-a-leader",
        "a leader that lost the entry with which a peer ends blocks that peer",
        "raft/feeder.py",
        "            self._pass_over(peer, Index(peer.next - 1))\n            return None\n",
        "            raise\n",
    ),
    Mutant(
        "peer-blocked-for-an-entry-that-it-has",
        "a leader that lost an entry asks a peer about entries behind it",
        "raft/feeder.py",
        "behind = self._position_between(peer.next, peer.differs)",
        "behind = None",
    ),
    Mutant(
        "shorter-peer-asked-about-what-it-lacks",
        "a peer that is shorter than the lost entry is blocked at once",
        "raft/leader.py",
        "peer.differs = reply.prev if reply.hint_term else reply.hint_index",
        "peer.differs = reply.prev",
    ),
    Mutant(
        "lost-entry-halts-a-follower",
        "an entry that is committed and lost is no reason to stop when a leader names it",
        "raft/log.py",
        "        except Corrupt:\n            return True\n",
        "        except Corrupt:\n            raise\n",
    ),
    Mutant(
        "blocked-peer-never-tried-again",
        "a leader reads a damaged entry again after a while",
        "raft/feeder.py",
        "if peer.match == raft.log.last_index or peer.throttled or not heard:",
        "if (\n"
        "            peer.match == raft.log.last_index\n"
        "            or peer.throttled\n"
        "            or peer.lacks > peer.match\n"
        "            or not heard\n"
        "        ):",
    ),
    Mutant(
        "handover-without-a-successor",
        "a leader gives up for a damaged entry only if another live node could lead",
        "raft/step_down.py",
        "if not blocked or not able:",
        "if not blocked:",
    ),
    Mutant(
        "handover-again-and-again",
        "a leader that gave up for a damaged entry waits before it does so again",
        "raft/patience.py",
        "        if self.waits:\n            return False\n",
        "",
    ),
    Mutant(
        "handover-always-as-often",
        "a leader gives up for damaged entries less and less often",
        "raft/patience.py",
        "self._length = longer if soon else HANDOVER_ELECTIONS * timeout",
        "self._length = HANDOVER_ELECTIONS * timeout",
    ),
    Mutant(
        "handover-hardly-ever-again",
        "there is a longest wait before a leader gives up again",
        "raft/patience.py",
        "longer = min(2 * self._length, HANDOVER_ELECTIONS_MAX * timeout)",
        "longer = 2 * self._length",
    ),
    Mutant(
        "handover-of-long-ago-remembered",
        "after a long time without damage a leader gives up at once, and waits as at first",
        "raft/patience.py",
        "soon = clock < self._until + self._length",
        "soon = self._length > 0",
    ),
    Mutant(
        "slow-leader-gives-up-again-and-again",
        "a slow leader whose place none of the others takes waits before it gives up again",
        "raft/core.py",
        "if step_down.disk_too_slow() and election.patience.ends():",
        "if step_down.disk_too_slow():",
    ),
    Mutant(
        "full-leader-gives-up-again-and-again",
        "a full leader whose place none of the others takes waits before it gives up again",
        "raft/core.py",
        "elif step_down.others_have_room() and election.patience.ends():",
        "elif step_down.others_have_room():",
    ),
    Mutant(
        "stuck-leader-gives-up-again-and-again",
        "a stuck leader whose place none of the others takes waits before it gives up again",
        "raft/core.py",
        "elif step_down.others_can_begin() and election.patience.ends():",
        "elif step_down.others_can_begin():",
    ),
    Mutant(
        "place-taken-and-not-noticed",
        "a leader whose place was taken gives up at once the next time",
        "raft/election.py",
        "        self.patience.forget()\n",
        "",
    ),
    Mutant(
        "handover-back-to-itself",
        "a node that gave up earlier leads before the one that gave up last",
        "raft/core.py",
        'from this disk", elections=3)',
        'from this disk", elections=1)',
    ),
    Mutant(
        "lack-begins-with-every-look",
        "since when a peer lacks an entry does not change when that is found again",
        "raft/progress.py",
        "        if self.lacks != self.next:\n"
        "            self.lacks, self.lacks_since = self.next, clock\n",
        "        self.lacks, self.lacks_since = self.next, clock\n",
    ),
    Mutant(
        "handover-never-for-damage",
        "a leader that cannot feed a peer lets another node try",
        "raft/core.py",
        "elif (lost := step_down.others_can_feed()) and election.damage_patience.ends():",
        "elif (lost := step_down.others_can_feed()) and election.damage_patience.ends() < 0:",
    ),
    Mutant(
        "lost-end-of-a-pair-told-like-any",
        "without a third voter the report of a lost end says that there is no leader until then",
        "raft/core.py",
        "NEEDED_BY_ALL_MAX = 2",
        "NEEDED_BY_ALL_MAX = 0",
    ),
    # -- too many open files -------------------------------------------------------------------
    Mutant(
        "too-many-files-end-a-node",
        "a message about an entry that cannot be read now is put aside",
        "replica/engine.py",
        "        except Busy:\n            # The message",
        "        except KeyError:\n            # The message",
    ),
    Mutant(
        "record-written-impatiently",
        "a vote record waits until a file can be opened",
        "storage/vote.py",
        "    yield from patiently(partial(plan_vote, log.vfs, log.identity, log.record))\n",
        "    yield from plan_vote(log.vfs, log.identity, log.record)\n",
    ),
    Mutant(
        "segment-begun-impatiently",
        "a new segment waits until a file can be opened",
        "storage/flusher.py",
        "        file = yield from patiently(partial(self._write_header, header))\n",
        "        file = yield from self._write_header(header)\n",
    ),
    # -- states that differ --------------------------------------------------------------------
    Mutant(
        "disagreement-without-end",
        "replicas that differ do not go on without a majority that decides",
        "replica/state_check.py",
        "        if clock - disagreement.since >= self._patience:\n",
        "        if clock < disagreement.since:\n",
    ),
    Mutant(
        "disagreement-without-patience",
        "a replica whose state differs from another one waits for the digests of the others",
        "replica/state_check.py",
        "if not any(electorate.won(agreeing | silent) for agreeing in nodes.values()):",
        "if len(said) > 1:",
    ),
    Mutant(
        "disagreement-outlives-a-majority",
        "a majority with the same state ends the disagreement",
        "replica/state_check.py",
        "            self._disagreement = None\n        if decided",
        "            pass\n        if decided",
    ),
    Mutant(
        "lost-digest-stays-lost",
        "a replica that waits for a majority is sent the digests of the others again",
        "replica/state_check.py",
        "return self._said.get(message.index, {}).get(self._node) if message.asks else None",
        "return None",
    ),
    Mutant(
        "older-agreement-ends-a-disagreement",
        "a majority that agreed on an older state does not end a disagreement",
        "replica/state_check.py",
        " and self._disagreement is not None and index >= self._disagreement.index:",
        ":",
    ),
    Mutant(
        "answers-are-answered",
        "an answer with a digest is not answered",
        "replica/engine.py",
        "                    self._tell_state(envelope.source, message.index, own, effects)",
        "                    self._tell_state(\n"
        "                        envelope.source, message.index, own, effects, asks=True\n"
        "                    )",
    ),
    # -- elections and durability --------------------------------------------------------------
    Mutant(
        "unsure-node-grants-pre-votes",
        "a node that may have lost acknowledged entries encourages no node to campaign",
        "raft/election.py",
        "        granted = granted and raft.sure\n",
        "",
    ),
    Mutant(
        "vote-does-not-postpone",
        "a node that votes waits for the winner",
        "raft/election.py",
        "        if granted:\n            self.postpone()\n",
        "        if not granted:\n            self.postpone()\n",
    ),
    Mutant(
        "sure-before-the-flush",
        "a node is sure again once its disk has the committed entries, not its memory",
        "raft/core.py",
        "if until is not None and min(raft.committed, raft.persisted) >= until:",
        "if until is not None and raft.committed >= until:",
    ),
    Mutant(
        "sure-with-entries-of-a-lost-leader",
        "an unsure node is sure once it knows the entries up to the answer to be committed",
        "raft/core.py",
        "if until is not None and min(raft.committed, raft.persisted) >= until:",
        "if until is not None and raft.persisted >= until:",
    ),
    Mutant(
        "answer-to-an-unsure-node-expires",
        "the answer to an unsure node counts however long its entries take",
        "raft/reads.py",
        "        if expired:\n",
        "        if not raft.clock % raft.ticks(raft.config.timing.read_ms):\n"
        "            self.unsure_until = None\n"
        "        if expired:\n",
    ),
    Mutant(
        "last-resort-adds-a-noop",
        "a leader that cannot serve adds no entry if all of its log is committed",
        "raft/core.py",
        "(scarce or raft.lost is not None) and raft.all_committed",
        "scarce and raft.all_committed",
    ),
    Mutant(
        "held-message-of-an-old-term-leaves",
        "held messages of an earlier term are dropped",
        "replica/durability.py",
        "            if envelope.message.term < term:\n                continue\n",
        "",
    ),
    Mutant(
        "cut-entry-is-written",
        "an entry that was cut before it was written is not written",
        "replica/durability.py",
        "while self._entries and self._entries[-1].index >= first:",
        "while self._entries and self._entries[-1].index > first:",
    ),
    Mutant(
        "rounds-outlive-a-leadership",
        "read rounds are void when a leadership ends",
        "raft/reads.py",
        "        self._rounds.clear()\n        self._peers.clear()\n",
        "        self._peers.clear()\n",
    ),
    Mutant(
        "hint-below-committed",
        "a leader is not asked to look below the committed index",
        "raft/follower.py",
        "hint_index = max(log.first_index_of_term_at(prev.index), Index(raft.committed + 1))",
        "hint_index = log.first_index_of_term_at(prev.index)",
    ),
)
