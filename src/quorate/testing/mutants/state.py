"""Bugs planted in what a log means: producers, fences, conditions, checkpoints and the window."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

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
        "whoever was replaced writes nothing more",
        "state/judge.py",
        "    if epoch < producer.epoch:\n",
        "    if epoch < 0:\n",
    ),
    Mutant(
        "opening-not-known-again",
        "an opening that is repeated takes nothing over",
        "state/judge.py",
        "    if producer.instance != operation.instance:\n",
        "    if producer.instance:\n",
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
        "            check(applied == self._core.standing.log.last_index, "
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
        "            check(applied == self._core.standing.log.last_index, "
        '"nothing is logged before")\n',
        "        if leader is None:\n            return\n        if self._ahead is None:\n",
    ),
    # -- answering -----------------------------------------------------------------------------
    Mutant(
        "receipt-of-a-pending-batch",
        "a repeat is answered when what it repeats is applied",
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
        "a refusal waits until what it rests on is applied",
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
        "what is logged is applied, whatever this node is set to",
        "replica/engine.py",
        "            self.state.apply(entry)\n            if entry.index % COMPARED_EVERY == 0:\n",
        "            crowded = len(self.state.producers) >= self.config.limits.producers\n"
        '            if not (crowded and entry.kind.name == "PRODUCER"):\n'
        "                self.state.apply(entry)\n"
        "            if entry.index % COMPARED_EVERY == 0:\n",
    ),
    Mutant(
        "expiry-by-the-own-clock",
        "producers expire by an entry and its append time, not by a node's clock",
        "replica/engine.py",
        "            self.state.apply(entry)\n            if entry.index % COMPARED_EVERY == 0:\n",
        "            self.state.apply(entry)\n"
        "            for epoch in self.state.expired(self.core.standing.wall_time):\n"
        "                producers = self.state.producers\n"
        "                producers._remove(producers._by_epoch[epoch])\n"
        "            if entry.index % COMPARED_EVERY == 0:\n",
    ),
    Mutant(
        "expired-while-active",
        "a producer's batches put its expiry off",
        "state/producers.py",
        "        after = Producer(name, epoch, instance, last_sequence, runs, window, expiry_us, "
        "active_us)\n",
        "        after = producer._replace(last_sequence=last_sequence, runs=runs)\n",
    ),
    Mutant(
        "states-never-compared",
        "a replica whose state differs from a majority's stops",
        "replica/agreement.py",
        "            if count >= quorum:\n",
        "            if count > quorum:\n",
    ),
    # -- checkpoints and the window ------------------------------------------------------------
    Mutant(
        "checkpoint-ahead-of-the-disk",
        "a checkpoint knows nothing that a power cut could take from the log",
        "replica/engine.py",
        "        if sealed <= self._checkpointed or self.applied > standing.persisted:\n",
        "        if sealed <= self._checkpointed:\n",
    ),
    Mutant(
        "undecodable-checkpoint-ends-a-node",
        "a checkpoint that cannot be decoded is none",
        "replica/engine.py",
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
    # -- what a turn costs ---------------------------------------------------------------------
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
        "comparing states costs what changed",
        "state/producers.py",
        "        self.work += len(self._unhashed)\n",
        "        self._unhashed |= self._by_epoch.keys()\n"
        "        self.work += len(self._unhashed)\n",
    ),
    Mutant(
        "turn-without-an-end",
        "a turn that has looked at enough leaves the rest to the next",
        "replica/proposals.py",
        "        while self._arrived and self._ahead.work < TURN_WORK:\n",
        "        while self._arrived:\n",
    ),
    Mutant(
        "window-forgets-what-is-not-on-disk",
        "what leaves the window is on this disk",
        "replica/engine.py",
        "            done = min(self.applied, self.settled)\n",
        "            done = self.applied\n",
    ),
    Mutant(
        "window-forgets-what-is-not-committed",
        "what leaves the window is committed",
        "replica/engine.py",
        "            done = min(self.applied, self.settled)\n",
        "            done = self.core.standing.persisted\n",
    ),
    Mutant(
        "read-confirmed-beyond-a-loss",
        "a read shows everything up to the index that was confirmed for it",
        "replica/engine.py",
        "if lost is not None and index > applied:",
        "if index < 0:",
    ),
    Mutant(
        "damaged-entry-sent",
        "what the disk spoiled is never sent",
        "raft/log.py",
        '            return tuple(takewhile(attrgetter("whole"), archived))\n',
        "            return tuple(archived)\n",
    ),
    Mutant(
        "commit-believed-beyond-the-log",
        "a disk proves to be committed only what it holds",
        "storage/recovered.py",
        "        committed = min(committed, log.last.index)\n",
        "",
    ),
    # -- clients and nodes ---------------------------------------------------------------------
    Mutant(
        "plain-append-sent-again",
        "what would be done twice is not sent again",
        "client/retries.py",
        "        if self.effect is Effect.TWICE:\n            raise self._unknown() from None\n",
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
