"""Bugs planted in the state of a log: producers, fences, conditions, checkpoints and the window."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["STATE"]

STATE = (
    # -- judging -------------------------------------------------------------------------------
    Mutant(
        "repeat-known-by-last-sequence-only",
        "a repeat is known by its own run, first sequence and count alike",
        "state/judge.py",
        "    if found is not None and found.count == count:\n        return found\n",
        "    if len(runs):\n        return runs[-1]\n",
    ),
    Mutant(
        "gap-accepted",
        "only the next sequence is logged",
        "state/judge.py",
        "    if sequence > expected:\n",
        "    if sequence > expected + 2:\n",
    ),
    Mutant(
        "epoch-not-checked",
        "a producer that was replaced writes no more batches",
        "state/judge.py",
        "    if epoch < producer.epoch:\n",
        "    if epoch < 0:\n",
    ),
    Mutant(
        "late-opening-takes-over",
        "a late copy of an opening replaces no producer that was opened since",
        "state/judge.py",
        "if held and (operation.known is None or producer.epoch <= operation.known):",
        "if held:",
    ),
    Mutant(
        "opening-not-known-again",
        "an opening that is repeated replaces no producer",
        "state/judge.py",
        "    held = producer.instance != operation.instance\n",
        "    held = bool(producer.instance)\n",
    ),
    Mutant(
        "fence-not-checked",
        "an append shows the fence that is set",
        "state/judge.py",
        "    if fence != state.fence:\n",
        "    if fence is None is not state.fence:\n",
    ),
    Mutant(
        "expected-fence-not-checked",
        "a fence replaces the one that its caller knows",
        "state/judge.py",
        "    if operation.expect != state.fence:\n",
        "    if operation.expect is None is not state.fence:\n",
    ),
    Mutant(
        "condition-not-judged",
        "a conditional append is judged before it is logged",
        "state/judge.py",
        "    if expect_offset is not None and expect_offset != state.end:\n",
        "    if expect_offset is not None and expect_offset > state.end:\n",
    ),
    Mutant(
        "judged-by-what-is-applied",
        "proposals are judged by all that was logged before them",
        "replica/proposals.py",
        "        if self._ahead is None:\n"
        "            check(applied == self._core.raft.log.last_index, "
        '"nothing is logged before")\n'
        "            self._ahead = state.copy()\n",
        "        self._ahead = state.copy()\n",
    ),
    Mutant(
        "offset-given-twice",
        "every record of every batch takes the next offset",
        "state/state.py",
        "        self.end += count\n",
        "        self.end += count if stamp is not None else 0\n",
    ),
    Mutant(
        "logged-before-the-noop-is-applied",
        "a leader judges by the state that it knows once its noop is applied",
        "replica/proposals.py",
        "        if leader is None or applied < leader.start:\n"
        "            return\n"
        "        if self._ahead is None:\n"
        "            check(applied == self._core.raft.log.last_index, "
        '"nothing is logged before")\n',
        "        if leader is None:\n            return\n        if self._ahead is None:\n",
    ),
    # -- answering -----------------------------------------------------------------------------
    Mutant(
        "receipt-of-a-pending-batch",
        "a repeat is answered when the batch that it repeats is applied",
        "replica/proposals.py",
        "        if index <= applied:\n",
        "        if index:\n",
    ),
    Mutant(
        "refusal-rests-on-too-little",
        "a refusal waits for all that it rests on, batches of the same entry included",
        "replica/proposals.py",
        "newest = index if runs else Index(index - 1)",
        "newest = Index(index - 1)",
    ),
    Mutant(
        "refusal-does-not-wait-for-the-commit",
        "a refusal waits until the entries that it rests on are applied",
        "replica/proposals.py",
        "                self._confirm(_Refused(token, verdict, newest), answers)\n",
        "                self._confirm(_Refused(token, verdict, applied), answers)\n",
    ),
    Mutant(
        "refusal-of-a-replaced-leader",
        "a refusal is a read: a majority followed this leader after the proposal came",
        "replica/proposals.py",
        "                self._confirm(_Refused(token, verdict, newest), answers)\n",
        "                self._confirmed.append(_Refused(token, verdict, newest))\n",
    ),
    # -- applying ------------------------------------------------------------------------------
    Mutant(
        "apply-depends-on-limits",
        "a logged entry is applied, however this node is set",
        "replica/applying.py",
        "            state.apply(entry)\n            raft.applied",
        "            crowded = len(state.producers) >= raft.config.limits.producers\n"
        '            if not (crowded and entry.kind.name == "PRODUCER"):\n'
        "                state.apply(entry)\n"
        "            raft.applied",
    ),
    Mutant(
        "expiry-by-the-own-clock",
        "producers expire by an entry and its append time, not by a node's clock",
        "replica/applying.py",
        "            state.apply(entry)\n            raft.applied",
        "            state.apply(entry)\n"
        "            for epoch in state.expired(raft.wall_time):\n"
        "                producers = state.producers\n"
        "                producers._remove(producers._by_epoch[epoch])\n"
        "            raft.applied",
    ),
    Mutant(
        "expired-while-active",
        "a producer's batches put its expiry off",
        "state/producers.py",
        "        after = ProducerState(\n"
        "            name, epoch, instance, last_sequence, runs, window, expiry_us, active_us\n"
        "        )\n",
        "        after = producer._replace(last_sequence=last_sequence, runs=runs)\n",
    ),
    Mutant(
        "states-never-compared",
        "a replica whose state differs from a majority's stops",
        "replica/state_check.py",
        "            if electorate.won(agreeing):\n",
        "            if agreeing == electorate.voters:\n",
    ),
    # -- checkpoints and the window ------------------------------------------------------------
    Mutant(
        "checkpoint-ahead-of-the-disk",
        "a checkpoint covers no entry that a power cut could take from the log",
        "replica/engine.py",
        "        if sealed <= self._checkpointed or self.applied > raft.persisted:\n",
        "        if sealed <= self._checkpointed:\n",
    ),
    Mutant(
        "undecodable-checkpoint-ends-a-node",
        "a checkpoint that cannot be decoded is none",
        "replica/applying.py",
        "        except InvalidArgument as odd:\n",
        "        except KeyError as odd:\n",
    ),
    Mutant(
        "checkpoint-without-producers",
        "a checkpoint holds all of the state",
        "state/state.py",
        "        return encode_sections(self._contents(), self.digest)\n",
        "        bare = self.copy()\n"
        "        bare.producers = Producers()\n"
        "        return encode_sections(bare._contents(), bare.digest)\n",
    ),
    Mutant(
        "checkpoint-of-the-state-that-goes-on",
        "a checkpoint is of the state as it was when it was due",
        "replica/engine.py",
        "self.state.copy().sections()",
        "self.state.sections()",
    ),
    Mutant(
        "checkpoint-encoded-by-the-loop",
        "the loop only copies the state for a checkpoint",
        "replica/engine.py",
        "self.state.copy().sections()",
        "[*self.state.copy().sections()]",
    ),
    Mutant(
        "sections-that-vouch-for-themselves-only",
        "sections of a checkpoint are all there, in their order",
        "storage/checkpoint.py",
        "    return crc32c(section, crc32c(_NUMBER.pack(len(section)), before))\n",
        "    return crc32c(section, crc32c(_NUMBER.pack(len(section))))\n",
    ),
    Mutant(
        "all-producers-in-one-section",
        "no section of a checkpoint takes longer than a turn may",
        "state/checkpoint.py",
        "        if size >= SECTION_BYTES or len(taken) == SECTION_ITEMS:\n",
        "        if size >= 2**30:\n",
    ),
    # -- the cost of a turn --------------------------------------------------------------------
    Mutant(
        "runs-written-over",
        "a version of a producer's runs never changes",
        "state/runs.py",
        " or len(buffer) != stop:\n",
        ":\n",
    ),
    Mutant(
        "window-copied-for-each-run",
        "one run more costs no copy of all others",
        "state/runs.py",
        "start > FORGOTTEN_BYTES_MIN and start > stop - start",
        "stop > start",
    ),
    Mutant(
        "digest-without-runs",
        "the digest of a state knows every run",
        "state/producers.py",
        "        runs.checksum, instance,\n",
        "        0, instance,\n",
    ),
    Mutant(
        "every-producer-hashed-again",
        "comparing states costs as much as has changed",
        "state/producers.py",
        "        self.work += len(self._unhashed)\n",
        "        self._unhashed.update(self._epochs.values())\n"
        "        self.work += len(self._unhashed)\n",
    ),
    Mutant(
        "turn-without-an-end",
        "a turn that has looked at enough leaves the rest to the next",
        "replica/proposals.py",
        "len(self._arrived) > later and self._ahead.work < TURN_WORK and not self._waits",
        "len(self._arrived) > later and not self._waits",
    ),
    Mutant(
        "turn-judges-all-requests",
        "a turn judges so many requests and leaves the rest to the next",
        "replica/proposals.py",
        "        later = max(0, len(self._arrived) - TURN_REQUESTS)\n",
        "        later = 0\n",
    ),
    Mutant(
        "forgotten-before-a-lost-entry",
        "entries below a lost one stay in memory until they are applied",
        "replica/engine.py",
        "            stopped = raft.lost == raft.applied + 1\n",
        "            stopped = raft.lost is not None\n",
    ),
    Mutant(
        "retry-answered-before-its-entry",
        "a retry is answered once its entry is applied",
        "replica/proposals.py",
        "        if index <= applied:\n"
        "            answers.append(Answer(token, self._result(logged)))\n",
        "        if index <= self._core.raft.committed:\n"
        "            answers.append(Answer(token, self._result(logged)))\n",
    ),
    Mutant(
        "window-forgets-what-is-not-on-disk",
        "an entry that leaves the window is on this disk",
        "replica/engine.py",
        "            done = self.settled if stopped else min(raft.applied, self.settled)\n",
        "            done = self.settled if stopped else raft.applied\n",
    ),
    Mutant(
        "window-forgets-what-is-not-committed",
        "an entry that leaves the window is committed",
        "replica/engine.py",
        "            done = self.settled if stopped else min(raft.applied, self.settled)\n",
        "            done = raft.persisted\n",
    ),
    Mutant(
        "read-confirmed-beyond-a-loss",
        "a read shows every record up to the index that was confirmed for it",
        "replica/applying.py",
        "            elif lost is not None and lost <= index:\n"
        "                answers.append(Answer(token, self.damaged(lost)))\n",
        "            elif lost is not None and lost <= index:\n"
        "                answers.append(Answer(token, ReadAnswer(applied, self.state.end)))\n",
    ),
    Mutant(
        "read-answered-before-its-index",
        "a confirmed read waits until the state has its index",
        "replica/applying.py",
        "            if index <= applied:\n",
        "            if lost is None or index < lost:\n",
    ),
    Mutant(
        "changed-producers-not-counted",
        "producers and attempts that a turn changes count with its entries",
        "replica/applying.py",
        "            if state.work >= left:\n",
        "            if not left:\n",
    ),
    Mutant(
        "rest-of-a-commit-forgotten",
        "entries that a turn leaves are applied in a turn that comes at once",
        "replica/engine.py",
        "proposals.behind or output.more or behind",
        "proposals.behind or output.more",
    ),
    Mutant(
        "damaged-entry-sent",
        "an entry that the disk spoiled is never sent",
        "raft/log.py",
        '            return tuple(takewhile(attrgetter("whole"), stored))\n',
        "            return tuple(stored)\n",
    ),
    Mutant(
        "commit-believed-beyond-the-log",
        "a disk proves to be committed only entries that it holds",
        "storage/recovery/result.py",
        "        committed = min(committed, log.last.index)\n",
        "",
    ),
    # -- clients and nodes ---------------------------------------------------------------------
    Mutant(
        "plain-append-sent-again",
        "a request that could take effect twice is not sent again",
        "client/retries.py",
        "        if self.idempotency is Idempotency.UNSAFE:\n"
        "            raise self._outcome_unknown() from None\n",
        "",
    ),
    Mutant(
        "log-made-anew-when-missing",
        "a log that was made and is gone is damage, not a new log",
        "server/manifest.py",
        "    if not any(vote.exists() for vote in votes):\n",
        "    if False:\n",
    ),
    Mutant(
        "older-manifest-deletes-logs",
        "a log that the manifest does not know is not taken for one that was about to be made",
        "server/manifest.py",
        "    if used:\n",
        "    if False:\n",
    ),
)
