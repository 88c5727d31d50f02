"""Planted bugs: changes of the members while nodes die, disks fill and messages come late."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["MEMBER_FAULTS"]

MEMBER_FAULTS = (
    Mutant(
        "change-taken-on-full-disks",
        "a change of the members is refused while the disks have only their reserve",
        "raft/changes.py",
        "        if not leader.has_room():\n",
        "        if False:\n",
    ),
    Mutant(
        "final-membership-waits-for-room",
        "the final membership may take the reserve",
        "raft/changes.py",
        "            return size <= raft.free and leader.reserve_takes(beside)\n",
        "            return size <= raft.free and leader.has_room(beside)\n",
    ),
    Mutant(
        "membership-without-allocated-space",
        "a leader logs a membership only into space that its disk has allocated",
        "raft/changes.py",
        "        return size + kept <= raft.free and leader.has_room(beside)\n",
        "        return leader.has_room(beside)\n",
    ),
    Mutant(
        "reserve-kept-from-memberships",
        "a follower takes a membership on its reserve",
        "replica/disk_space.py",
        "_SPARED = frozenset({EntryKind.NOOP, EntryKind.MEMBERSHIP})\n",
        "_SPARED = frozenset({EntryKind.NOOP})\n",
    ),
    Mutant(
        "dead-majority-taken-for-alive",
        "a new leader logs no joint membership with voters that it has not heard",
        "raft/changes.py",
        "        return leader.hears(peer) and peer.full is not None\n",
        "        return leader.hears(peer)\n",
    ),
    Mutant(
        "learner-never-campaigns",
        "a learner campaigns as a last resort",
        "raft/election.py",
        "not (raft.eligible or (patient and raft.is_learner))",
        "not raft.eligible",
    ),
    Mutant(
        "learner-campaigns-early",
        "a learner campaigns only if no voter has led for long",
        "raft/election.py",
        "(raft.eligible or (patient and raft.is_learner))",
        "(raft.eligible or raft.is_learner)",
    ),
    Mutant(
        "restart-forgets-removal",
        "a removed peer that restarts stays removed",
        "raft/leader.py",
        "        after.removed_by, after.removed_until = before.removed_by, before.removed_until\n",
        "",
    ),
    Mutant(
        "removal-told-once",
        "a removed peer is told for an election timeout that its removal is committed",
        "raft/leader.py",
        "min(peer.removed_until, raft.clock + raft.election_ticks)",
        "min(peer.removed_until, raft.clock + 1)",
    ),
    Mutant(
        "late-refusal-counts",
        "only the answer to the newest question ends a transfer",
        "raft/transfer.py",
        "        if asked and (answer.term, answer.number) == (raft.term, self._number):\n",
        "        if asked and answer.term == raft.term:\n",
    ),
    Mutant(
        "stopping-candidate-stays",
        "a candidate that stops gives up when its time is over",
        "raft/election.py",
        "                if raft.stopping and raft.role is Role.CANDIDATE:\n",
        "                if False:\n",
    ),
    Mutant(
        "too-many-members-on-the-way",
        "a change is refused if the members before and after it are too many together",
        "raft/changes.py",
        "        if members > MEMBERS_MAX:\n",
        "        if False:\n",
    ),
    Mutant(
        "turns-without-end",
        "a leader that cannot apply its first entry takes no turn for a change",
        "raft/changes.py",
        " or raft.applied < leader.start:\n",
        " or not leader.ready:\n",
    ),
    Mutant(
        "later-voters-counted-for-a-record",
        "a receipt does not count the majority of voters that came after the record",
        "raft/leader.py",
        "        counted = raft.memberships.index <= index <= raft.committed\n",
        "        counted = index <= raft.committed\n",
    ),
    Mutant(
        "catalog-waits-for-all-logs",
        "a node that stops has some time for the catalog, whatever its other logs take",
        "server/logs/handover.py",
        "0.75 * timeout_s",
        "100 * timeout_s",
    ),
    Mutant(
        "busy-log-not-handed-over",
        "a node that stops asks again for a log whose members are about to change",
        "server/logs/handover.py",
        "                await asyncio.sleep(LOOK_S)\n            except QuorateError as error:",
        "                return\n            except QuorateError as error:",
    ),
    Mutant(
        "any-transfer-repeated",
        "a transfer without a target is not sent again after a lost answer",
        "client/administration.py",
        "    idempotency = Idempotency.UNSAFE if node is None else Idempotency.IDEMPOTENT\n",
        "    idempotency = Idempotency.IDEMPOTENT\n",
    ),
    Mutant(
        "removed-learner-never-campaigns",
        "a learner campaigns as a last resort until its removal is known to be committed",
        "raft/memberships.py",
        "        self.learners = frozenset(node for each in rows for node in each.learners)\n",
        "        self.learners = frozenset(self.newest.learners)\n",
    ),
    Mutant(
        "unsure-majority-promoted",
        "no joint membership begins unless a majority of the new voters can vote (R6)",
        "raft/changes.py",
        "if self._answers(peer, leader) and not peer.unfit]",
        "if self._answers(peer, leader)]",
    ),
    Mutant(
        "repeated-change-called-failed",
        "a request that is made again has an unknown outcome while its entry may be committed",
        "raft/changes.py",
        "            self._wanted, self._logged = change.wanted, again\n",
        "            self._wanted, self._logged = change.wanted, False\n",
    ),
    Mutant(
        "removed-leader-answers-no-reads",
        "a follower hears its leader, also if an entry that is not committed removes that one",
        "raft/core.py",
        "        known = source in raft.memberships.members or source == raft.leader\n",
        "        known = source in raft.memberships.members\n",
    ),
    Mutant(
        "removed-leader-tells-no-commit",
        "a removed leader tells the commit before it leaves",
        "raft/core.py",
        "            leader.beat()\n            self.transfers.begin_to_leave(leader)\n",
        "            self.transfers.begin_to_leave(leader)\n",
    ),
)
