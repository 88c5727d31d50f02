"""Bugs planted in what a group does with damaged entries, full disks, too few files and states that
differ, and in corners of elections and durability."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["ADVERSITY"]

ADVERSITY = (
    # -- damaged entries -----------------------------------------------------------------------
    Mutant(
        "any-damage-bars-a-leader",
        "a damaged entry that is applied keeps nobody from leading",
        "raft/roles.py",
        "[index for index in self.hollow if index > self.applied]",
        "list(self.hollow)",
    ),
    Mutant(
        "damage-ahead-of-the-state-leads",
        "a node that cannot apply an entry does not lead",
        "raft/roles.py",
        "return self.sure and self.lost is None and roomy",
        "return self.sure and roomy",
    ),
    Mutant(
        "replay-applies-damage",
        "a replay stops before the first entry that is not whole",
        "replica/engine.py",
        "            if not entry.whole:\n",
        "            if False:\n",
    ),
    Mutant(
        "blocked-peer-never-tried-again",
        "a leader reads a damaged entry again after a while",
        "raft/leader.py",
        "if peer.match == standing.log.last_index or peer.throttled or not lively:",
        "if peer.match == standing.log.last_index or peer.lacks > peer.match or not lively:",
    ),
    Mutant(
        "handover-to-nobody",
        "a leader gives up for a damaged entry only if another live node could lead",
        "raft/handover.py",
        "if not blocked or not any(peer.match >= standing.committed for peer in lively):",
        "if not blocked:",
    ),
    Mutant(
        "handover-again-and-again",
        "a leader gives up for the same damaged entry less and less often",
        "raft/election.py",
        "        if clock < again_at:\n            return False\n",
        "",
    ),
    Mutant(
        "handover-never-for-damage",
        "a leader that cannot feed a peer lets another node try",
        "raft/core.py",
        "elif (lost := handover.others_can_feed()) and self._election.hands_over_for(lost):",
        "elif (lost := handover.others_can_feed()) and self._election.hands_over_for(lost) < 0:",
    ),
    # -- too many open files -------------------------------------------------------------------
    Mutant(
        "too-many-files-end-a-node",
        "a message about an entry that cannot be read now is put aside",
        "replica/engine.py",
        "        except Busy:\n            # It is about",
        "        except KeyError:\n            # It is about",
    ),
    # -- full disks ----------------------------------------------------------------------------
    Mutant(
        "noop-on-full-disks",
        "a leader that knows all to be committed takes nothing of full disks",
        "raft/core.py",
        "noop=not (scarce and standing.all_committed)",
        "noop=True",
    ),
    Mutant(
        "noop-spared-too-early",
        "a leader begins without an entry only if all of its log is known to be committed",
        "raft/core.py",
        "noop=not (scarce and standing.all_committed)",
        "noop=not scarce",
    ),
    Mutant(
        "full-voter-not-heard",
        "a voter's full disk counts like the own one",
        "raft/election.py",
        "            self.voters_full = self.voters_full or reply.full\n",
        "",
    ),
    Mutant(
        "no-room-no-leader",
        "a node without room leads if it needs none to begin",
        "raft/roles.py",
        "roomy = not self.cramped or self.all_committed",
        "roomy = not self.cramped",
    ),
    Mutant(
        "cramped-candidate",
        "a node without room does not lead if it needs an entry to begin",
        "raft/roles.py",
        "roomy = not self.cramped or self.all_committed",
        "roomy = True",
    ),
    Mutant(
        "last-pages-never-claim",
        "on a full disk one page says that everything is committed",
        "storage/flusher.py",
        "return self.unproven and (claims or not self._scarce)",
        "return self.unproven and not self._scarce",
    ),
    Mutant(
        "last-pages-for-proofs",
        "the last pages of a disk are not spent on proofs that claim nothing",
        "storage/flusher.py",
        "return self.unproven and (claims or not self._scarce)",
        "return self.unproven",
    ),
    Mutant(
        "stuck-leader-stays",
        "a leader behind an entry that a majority cannot store leaves leading to others",
        "raft/handover.py",
        "        if ready or standing.clock",
        "        if not ready or standing.clock",
    ),
    Mutant(
        "stuck-leader-leaves-to-a-minority",
        "it does so only if the others are a majority without it",
        "raft/handover.py",
        "return sum(peer.room >= HEADER_BYTES for peer in stuck) >= standing.quorum",
        "return sum(peer.room >= HEADER_BYTES for peer in stuck) >= 1",
    ),
    Mutant(
        "free-bytes-of-peers-ignored",
        "a leader logs nothing that no majority can take",
        "raft/leader.py",
        "roomy = sum(peer.full is not True and peer.room >= size for peer in peers)",
        "roomy = sum(peer.full is not True for peer in peers)",
    ),
    Mutant(
        "bytes-under-way-ignored",
        "what is on its way to peers takes their room",
        "replica/gate.py",
        "if not leader.has_room(needs + leader.uncommitted_bytes):",
        "if not leader.has_room(needs):",
    ),
    Mutant(
        "room-told-while-there-is-more",
        "a disk that can grow has no bound",
        "replica/allowance.py",
        "return self.room if self.room is not None and self.shortage else ROOM_UNBOUNDED",
        "return self.room if self.room is not None else ROOM_UNBOUNDED",
    ),
    # -- states that differ --------------------------------------------------------------------
    Mutant(
        "doubt-without-end",
        "replicas that differ do not go on without a majority that decides",
        "replica/agreement.py",
        "        if clock - doubt.since >= self._patience:\n",
        "        if clock < doubt.since:\n",
    ),
    Mutant(
        "doubt-without-patience",
        "a replica that differs from one waits for what the others say",
        "replica/agreement.py",
        "if max(counts.values()) + self._voters - len(said) < quorum:",
        "if len(said) > 1:",
    ),
    Mutant(
        "doubt-outlives-a-majority",
        "a majority with the same state ends the doubt",
        "replica/agreement.py",
        "            self._doubt = None\n        others",
        "            pass\n        others",
    ),
    Mutant(
        "lost-digest-stays-lost",
        "a replica in doubt is told again what others have",
        "replica/agreement.py",
        "return self._said.get(message.index, {}).get(self._node) if message.asks else None",
        "return None",
    ),
    Mutant(
        "older-agreement-ends-a-doubt",
        "a majority that agreed on an older state does not end a doubt",
        "replica/agreement.py",
        " and self._doubt is not None and index >= self._doubt.index:",
        ":",
    ),
    Mutant(
        "answers-are-answered",
        "an answer to a replica in doubt is not answered",
        "replica/engine.py",
        "                    self._tell_state(envelope.source, message.index, own, effects)",
        "                    self._tell_state(\n"
        "                        envelope.source, message.index, own, effects, asks=True\n"
        "                    )",
    ),
    # -- elections and durability --------------------------------------------------------------
    Mutant(
        "unsure-node-grants-pre-votes",
        "a node that may have lost what it acknowledged encourages nobody to campaign",
        "raft/election.py",
        "        granted = granted and standing.sure\n",
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
        "doubt-ends-before-the-flush",
        "a node is sure again once its disk has what was committed, not its memory",
        "raft/core.py",
        "if self._doubt is not None and standing.persisted >= self._doubt:",
        "if self._doubt is not None and standing.log.last_index >= self._doubt:",
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
        "what was cut before it was written is not written",
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
        "a leader is not asked to look below what is committed",
        "raft/follower.py",
        "hint_index = max(log.first_index_of_term_at(prev.index), Index(standing.committed + 1))",
        "hint_index = log.first_index_of_term_at(prev.index)",
    ),
)
