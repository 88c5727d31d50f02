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
        "if peer.match == standing.log.last_index or peer.throttled or not self.hears(peer):",
        "if (\n"
        "            peer.match == standing.log.last_index\n"
        "            or peer.throttled\n"
        "            or peer.lacks > peer.match\n"
        "            or not self.hears(peer)\n"
        "        ):",
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
        "a leader that gave up for a damaged entry waits before it does so again",
        "raft/election.py",
        "        if clock < self._patient_until:\n            return False\n",
        "",
    ),
    Mutant(
        "handover-always-as-often",
        "a leader gives up for damaged entries less and less often",
        "raft/election.py",
        "self._patience = longer if soon else HANDOVER_ELECTIONS * timeout",
        "self._patience = HANDOVER_ELECTIONS * timeout",
    ),
    Mutant(
        "handover-hardly-ever-again",
        "there is a longest wait before a leader gives up again",
        "raft/election.py",
        "longer = min(2 * self._patience, HANDOVER_ELECTIONS_MAX * timeout)",
        "longer = 2 * self._patience",
    ),
    Mutant(
        "handover-of-long-ago-remembered",
        "after a long time without damage a leader gives up at once, and waits as at first",
        "raft/election.py",
        "soon = clock < self._patient_until + self._patience",
        "soon = self._patience > 0",
    ),
    Mutant(
        "handover-back-to-itself",
        "a node that gave up earlier leads before the one that gave up last",
        "raft/core.py",
        'is damaged", elections=3)',
        'is damaged", elections=1)',
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
        "elif (lost := handover.others_can_feed()) and self._election.hands_over_for_damage():",
        "elif (lost := handover.others_can_feed()) and self._election.hands_over_for_damage() < 0:",
    ),
    # -- too many open files -------------------------------------------------------------------
    Mutant(
        "too-many-files-end-a-node",
        "a message about an entry that cannot be read now is put aside",
        "replica/engine.py",
        "        except Busy:\n            # It is about",
        "        except KeyError:\n            # It is about",
    ),
    Mutant(
        "record-written-impatiently",
        "a vote record waits until a file can be opened",
        "storage/steps.py",
        "    yield from patiently(partial(plan_vote, log.vfs, log.record))\n",
        "    yield from plan_vote(log.vfs, log.record)\n",
    ),
    Mutant(
        "segment-begun-impatiently",
        "a new segment waits until a file can be opened",
        "storage/flusher.py",
        "        file = yield from patiently(partial(self._write_header, header))\n",
        "        file = yield from self._write_header(header)\n",
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
        "            if reply.full:\n                self.full_voters.add(source)\n",
        "",
    ),
    Mutant(
        "full-voter-counts-as-roomy",
        "a new leader knows which of its voters are full",
        "raft/leader.py",
        "            self.progress[peer].full = True\n",
        "            self.progress[peer].full = None\n",
    ),
    Mutant(
        "full-voters-of-an-earlier-campaign",
        "whose disk was full in an earlier campaign says nothing about this one",
        "raft/election.py",
        "        self.full_voters = set()\n        self.postpone()\n",
        "        self.postpone()\n",
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
        "return len(able) >= standing.quorum",
        "return len(able) >= 1",
    ),
    Mutant(
        "cramped-peers-cannot-begin",
        "peers that have nothing but what is committed need no room to begin",
        "raft/handover.py",
        "if peer.room >= HEADER_BYTES or peer.match <= standing.committed\n",
        "if peer.room >= HEADER_BYTES\n",
    ),
    Mutant(
        "cramped-peers-always-begin",
        "a stuck leader leaves to peers without room only if they need none",
        "raft/handover.py",
        "if peer.room >= HEADER_BYTES or peer.match <= standing.committed\n",
        "if peer.room >= 0\n",
    ),
    Mutant(
        "silent-peer-has-room",
        "a peer that is not heard does not count as one with room",
        "raft/leader.py",
        "if not peer.full and self.hears(peer)]",
        "if not peer.full]",
    ),
    Mutant(
        "sent-since-told-ignored",
        "what a peer was sent after it told its room takes some of it",
        "raft/leader.py",
        "size + peer.since_told <= peer.room",
        "size <= peer.room",
    ),
    Mutant(
        "room-told-before-the-flush",
        "the room that a follower tells knows of every flush that it acknowledged",
        "replica/engine.py",
        "from now on.\n            self._look_at_room()\n",
        "from now on.\n",
    ),
    Mutant(
        "reserve-of-followers-for-clients",
        "a follower on a full disk keeps what clients append out of its reserve",
        "replica/allowance.py",
        "return 0 if spared else self._reserve",
        "return 0",
    ),
    Mutant(
        "reserve-kept-from-what-a-leader-found",
        "what a new leader found in its log may take the reserve",
        "replica/allowance.py",
        "entry.kind is EntryKind.NOOP or entry.term < term",
        "entry.kind is EntryKind.NOOP",
    ),
    Mutant(
        "reserve-kept-while-more-can-be-had",
        "a follower that can allocate more keeps nothing back",
        "replica/allowance.py",
        "spared = not self.shortage or entry.kind",
        "spared = entry.kind",
    ),
    Mutant(
        "lack-forgotten-with-what-follows",
        "what follows an entry that found no room does not make it forgotten",
        "replica/allowance.py",
        "            return None if self.wanted else message\n",
        "            self.wanted = 0\n            return message\n",
    ),
    Mutant(
        "lack-forgotten-with-a-copy",
        "an append that comes twice says nothing about the room for another entry",
        "replica/allowance.py",
        "            return None if self.wanted else message\n"
        "        if log.holds(message.entries[-1].position):\n",
        "            return None if self.wanted else message\n"
        "        if log.holds(message.entries[-1].position):\n"
        "            self.wanted = 0\n",
    ),
    Mutant(
        "what-has-no-room-asked-for-at-once",
        "what follows an entry that found no room is not asked for again at once",
        "replica/allowance.py",
        "            return None if self.wanted else message\n",
        "            return message\n",
    ),
    Mutant(
        "entry-wanted-for-ever",
        "an entry that found no room is forgotten with the leader that sent it",
        "replica/allowance.py",
        "self._term, self.wanted = term, 0",
        "self._term = term",
    ),
    Mutant(
        "old-leader-wants-room",
        "an old leader's append says nothing about the room for the present one",
        "replica/engine.py",
        "if type(message) is Append and message.term >= standing.term:",
        "if type(message) is Append:",
    ),
    Mutant(
        "free-bytes-of-peers-ignored",
        "a leader logs nothing that no majority can take",
        "raft/leader.py",
        "return self._majority_takes(lambda peer: size <= peer.room)",
        "return self._majority_takes(lambda _: True)",
    ),
    Mutant(
        "bytes-under-way-ignored",
        "what is on its way to peers takes their room",
        "raft/leader.py",
        "        size += self.uncommitted_bytes\n",
        "",
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
