"""Bugs planted in staging and publishing."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["STAGING"]

_FOUND = """    found = state.staging.named(operation.app, operation.batch_id, operation.parts)
"""
_LIKE = """    found = (
        next(
            one
            for one in {order}
            if (one.app, *one.key[:2], one.number, one.records)
            == (operation.app, operation.batch_id, part.partition, *part[2:])
        )
        for part in operation.parts
    )
"""

STAGING = (
    # -- publishing ----------------------------------------------------------------------------
    Mutant(
        "published-twice",
        "an app publishes a batch once",
        "state/staging.py",
        "        self.put_app(published)\n",
        "        if before is None:\n            self.put_app(published)\n",
    ),
    Mutant(
        "known-again-by-nobody",
        "the same batch again gets the first receipt",
        "state/judge.py",
        "    if app is not None and batch_id == app.batch_id:\n",
        "    if app is not None and batch_id == app.batch_id and operation.parts:\n",
    ),
    Mutant(
        "losers-chunk-published",
        "a publish takes the attempts that it names",
        "state/judge.py",
        _FOUND,
        _LIKE.format(order="reversed([*state.staging.attempts()])"),
    ),
    Mutant(
        "older-runs-chunk-published",
        "a publish takes nothing that an older run left",
        "state/judge.py",
        _FOUND,
        _LIKE.format(order="state.staging.attempts()"),
    ),
    Mutant(
        "published-without-a-chunk",
        "all chunks of a publish are there, or it is refused whole",
        "state/judge.py",
        "        if attempt is None or attempt.number < part.chunks:\n",
        "        if attempt is None:\n            continue\n        if not attempt.number:\n",
    ),
    Mutant(
        "offset-per-chunk",
        "every published record takes the next offset",
        "replica/drafts.py",
        "    count = operation.records\n",
        "    count = len(chunks)\n",
    ),
    Mutant(
        "published-at-one-offset",
        "the chunks of a publish are read at consecutive offsets",
        "replica/published.py",
        "            yield starts[place], chunk_at(self._rows, place)\n",
        "            yield starts[0] + place, chunk_at(self._rows, place)\n",
    ),
    Mutant(
        "append-time-of-the-staging",
        "a published record has the append time of its publish",
        "replica/reader.py",
        "chunk.records, chunk.size, publish.append_time)",
        "chunk.records, chunk.size, publish.append_time - 1)",
    ),
    Mutant(
        "digest-ignored",
        "a replay that differs is told, never merged",
        "state/judge.py",
        "        if (operation.records, operation.digest) == (app.count, app.digest):\n",
        "        if operation.records == app.count:\n",
    ),
    Mutant(
        "row-count-ignored",
        "a replay with more or fewer records is told",
        "state/judge.py",
        "        if (operation.records, operation.digest) == (app.count, app.digest):\n",
        "        if operation.digest == app.digest:\n",
    ),
    Mutant(
        "publish-shows-no-fence",
        "a publish shows the fence that is set",
        "state/judge.py",
        "    if operation.fence != state.fence:\n",
        "    if operation.fence is None is not state.fence:\n",
    ),
    # -- staging -------------------------------------------------------------------------------
    Mutant(
        "staged-after-its-publish",
        "for a published batch nothing is staged",
        "state/judge.py",
        "    if published is not None and label.batch_id <= published.batch_id:\n",
        "    if published is not None and label.batch_id < published.batch_id:\n",
    ),
    Mutant(
        "chunk-staged-twice",
        "a chunk that is repeated is known again",
        "state/judge.py",
        "    if known is not None and label.number < number:\n",
        "    if known is not None and label.number < number - 1:\n",
    ),
    Mutant(
        "gap-staged",
        "chunks of an attempt come in order",
        "state/judge.py",
        "    if label.number > number:\n",
        "    if label.number > number + 1:\n",
    ),
    Mutant(
        "staged-chunk-lost-on-leader-change",
        "what is staged outlives its leader",
        "state/state.py",
        "        other.producers, other.staging = self.producers.copy(), self.staging.copy()\n",
        "        other.producers = self.producers.copy()\n",
    ),
    Mutant(
        "checkpoint-without-staging",
        "a checkpoint holds what is staged",
        "state/state.py",
        "        return encode_sections(self._contents(), self.digest)\n",
        "        bare = self.copy()\n"
        "        bare.staging = Staging()\n"
        "        return encode_sections(bare._contents(), bare.digest)\n",
    ),
    # -- dropping ------------------------------------------------------------------------------
    Mutant(
        "losers-stay-staged",
        "a publish drops all that its app staged up to its batch",
        "state/staging.py",
        "for row in table.attempts.rows() if row[_BATCH_ID] <= batch_id]\n",
        "for row in table.attempts.rows() if row[_BATCH_ID] < batch_id or row in found]\n",
    ),
    Mutant(
        "staging-expires-by-the-own-clock",
        "what is staged expires by an entry, not by a node's clock",
        "replica/engine.py",
        "            self.state.apply(entry)\n            if entry.index % COMPARED_EVERY == 0:\n",
        "            self.state.apply(entry)\n"
        "            staging, timing = self.state.staging, self.config.timing\n"
        "            expiry_us = 1000 * timing.staged_expiry_ms\n"
        "            for first in staging.expired(self.core.standing.wall_time, expiry_us):\n"
        "                app = staging._owners[first]\n"
        "                staging._remove(app, [staging._tables[app].attempts[first]])\n"
        "            if entry.index % COMPARED_EVERY == 0:\n",
    ),
    Mutant(
        "expired-while-it-grows",
        "every chunk puts the expiry of its attempt off",
        "state/attempts.py",
        "                active_us=active_us,\n                records=",
        "                records=",
    ),
    Mutant(
        "leap-counts-in-full",
        "a leap of a leader's clock ages a log by one step only",
        "state/state.py",
        "        return self.age + min(append_time - self.append_time, AGE_STEP_US)\n",
        "        return self.age + append_time - self.append_time\n",
    ),
    Mutant(
        "still-log-never-ages",
        "a log to which nothing is added ages all the same",
        "replica/drafts.py",
        "    if ahead.remembers and now_us - ahead.append_time >= AGE_STEP_US:\n",
        "    if not ahead.remembers and now_us - ahead.append_time >= AGE_STEP_US:\n",
    ),
    Mutant(
        "app-forgotten-like-a-job",
        "only what published once and for all is forgotten soon",
        "state/staging.py",
        "(once_expiry_us if app.once else expiry_us)",
        "once_expiry_us",
    ),
    Mutant(
        "job-kept-like-an-app",
        "what published once and for all is forgotten soon",
        "state/staging.py",
        "(once_expiry_us if app.once else expiry_us)",
        "expiry_us",
    ),
    Mutant(
        "abort-undoes-a-publish",
        "an abort never undoes a publish",
        "replica/drafts.py",
        "            if not dropped:\n                return Aborted(last, 0)\n",
        "            if not dropped:\n"
        "                done = ahead.staging.app(app)\n"
        "                if done is None or done.batch_id != batch_id:\n"
        "                    return Aborted(last, 0)\n"
        "                undone = Parts(*encode_operation(ForgetApps((done.index,))))\n"
        "                return Draft(undone, Aborted(index, 0))\n",
    ),
    Mutant(
        "abort-of-another-attempt",
        "an abort drops the attempt that it names",
        "state/staging.py",
        "and attempt in (None, one.id)",
        "and (attempt is None or one.id)",
    ),
    Mutant(
        "abort-of-the-first-thousands",
        "an abort drops everything that it names, with however many entries",
        "replica/proposals.py",
        "made.answer.attempts == DROPPED_AT_ONCE:\n",
        "made.answer.attempts > DROPPED_AT_ONCE:\n",
    ),
    Mutant(
        "abort-in-part-denied",
        "what was logged in part is not reported as not logged",
        "replica/proposals.py",
        "        if self._dropped:\n",
        "        if self._dropped < 0:\n",
    ),
    Mutant(
        "abort-without-a-rest-denied",
        "an abort whose last drop left nothing is logged all the same",
        "replica/proposals.py",
        "if isinstance(made, Aborted) and self._dropped:",
        "if isinstance(made, Aborted) and self._dropped < 0:",
    ),
    Mutant(
        "drops-outlive-a-leadership",
        "what was dropped for an abort is forgotten with the leadership",
        "replica/proposals.py",
        "self._logged_bytes = self._alone = self._dropped = 0",
        "self._logged_bytes = self._alone = 0",
    ),
    Mutant(
        "walk-over-all-that-is-staged",
        "whoever finds nothing to drop looks at one attempt",
        "state/staging.py",
        "                return  # all attempts that follow got a chunk later\n",
        "                continue\n",
    ),
    Mutant(
        "garbage-collector-walks-over-attempts",
        "a full collection does not look at what is staged",
        "state/staging.py",
        "UntrackedDict(tuple, Attempt._make)",
        "UntrackedDict(Attempt._make, Attempt._make)",
    ),
    Mutant(
        "idle-order-lost-with-a-checkpoint",
        "what nothing was added to for the longest time goes first, after a restart as well",
        "state/checkpoint.py",
        "        self.contents.staging.settle()\n",
        "",
    ),
    Mutant(
        "idle-abort-not-confirmed",
        "that nothing is staged is said like a read",
        "replica/proposals.py",
        "            if isinstance(verdict, Aborted) or is_final(verdict):\n",
        "            if isinstance(verdict, QuorateError) and is_final(verdict):\n",
    ),
    Mutant(
        "full-with-older-runs-staged",
        "at the cap the older runs of an app go before it is told STAGE_FULL",
        "replica/drafts.py",
        "        yield _drop(DropReason.REPLACED, older)\n",
        "        if len(older) > 99:\n            yield _drop(DropReason.REPLACED, older)\n",
    ),
    Mutant(
        "full-of-what-is-idle",
        "at the cap what others left idle goes before anybody is told STAGE_FULL",
        "replica/drafts.py",
        "        if idle:\n",
        "        if len(idle) > 99:\n",
    ),
    Mutant(
        "busy-attempt-makes-room",
        "at the cap only what nothing was added to for long goes",
        "state/staging.py",
        "one.first for one in self._idle(age, idle_us) if",
        "one.first for one in self._idle(age, 0) if",
    ),
    Mutant(
        "own-partition-makes-room",
        "at the cap no run drops what it has staged itself",
        "state/staging.py",
        "for one in self._idle(age, idle_us) if (one.app, one.run) != (app, run))\n",
        "for one in self._idle(age, idle_us))\n",
    ),
    Mutant(
        "newer-run-dropped",
        "at the cap only runs that began earlier are dropped",
        "state/succession.py",
        "            if older == run:\n                return\n            yield older\n",
        "            if older != run:\n                yield older\n",
    ),
    Mutant(
        "replaced-run-comes-back-as-the-newest",
        "a run that began earlier is older, also if nothing of it is staged any more",
        "state/staging.py",
        "        for older in self.succession.before(app, run):\n",
        "        for older in self.succession.before(app, run if run in staged else bytes(16)):\n",
    ),
    Mutant(
        "new-run-makes-no-room",
        "a run that the log does not know is newer than all others",
        "state/succession.py",
        "        for older in self._runs.get(app, ()):\n",
        "        runs = self._runs.get(app, {})\n"
        "        for older in runs if run in runs else ():\n",
    ),
    Mutant(
        "late-chunk-of-a-replaced-run-stays",
        "what an older run stages late makes room like the rest of it",
        "state/staging.py",
        "            found += islice(staged.get(older, ()), DROPPED_AT_ONCE - len(found))\n",
        "            late = next(iter(staged.get(run, ())), 2**64)\n"
        "            found += [first for first in staged.get(older, ()) if first < late]\n",
    ),
    Mutant(
        "runs-forgotten-while-room-is-made",
        "runs are known until the chunk comes for which older ones made room",
        "state/staging.py",
        "        elif not replaced:\n",
        "        else:\n            self.succession.forget(app)\n        if False:\n",
    ),
    Mutant(
        "runs-forgotten-at-a-publish",
        "a publish makes no run newer",
        "state/staging.py",
        "        self.put_app(published)\n        self._trim_runs(app)\n",
        "        self._trim_runs(app)\n        self.put_app(published)\n",
    ),
    Mutant(
        "runs-of-every-app-wait",
        "one app at a time waits for the chunk that others made room for",
        "state/staging.py",
        "                self.succession.forget(before)\n",
        "                pass\n",
    ),
    Mutant(
        "runs-outlive-their-app",
        "the runs of an app are forgotten with it",
        "state/staging.py",
        "            self._forget_app(app)\n            self._trim_runs(app)\n",
        "            self._forget_app(app)\n",
    ),
    Mutant(
        "runs-without-an-end",
        "of the runs that have nothing staged the newest are known",
        "state/succession.py",
        "        if spare > 0:\n",
        "        if spare > 999:\n",
    ),
    Mutant(
        "digest-without-the-succession",
        "replicas compare which runs are older",
        "state/staging.py",
        "        return self._digest + self.succession.digest\n",
        "        return self._digest\n",
    ),
    Mutant(
        "checkpoint-with-the-runs-of-attempts-only",
        "a checkpoint holds which runs are older",
        "state/state.py",
        "        return encode_sections(self._contents(), self.digest)\n",
        "        bare = self.copy()\n"
        "        staged = {(one.app, one.run) for one in bare.staging.attempts()}\n"
        "        for _, (app, run, _) in [*bare.staging.succession]:\n"
        "            if (app, run) not in staged:\n"
        "                bare.staging.succession._forget(app, [run])\n"
        "        return encode_sections(bare._contents(), bare.digest)\n",
    ),
)
