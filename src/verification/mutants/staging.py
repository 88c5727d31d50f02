"""Bugs planted in staging and publishing."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["STAGING"]

_FOUND = """\
    found = state.staging.attempts.named(operation.app, operation.batch_id, operation.parts)
"""
_LIKE = """    found = (
        next(
            one
            for one in {order}
            if (one.app, *one.key[:2], one.chunk_count, one.records)
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
        _LIKE.format(order="reversed([*state.staging.attempts])"),
    ),
    Mutant(
        "older-runs-chunk-published",
        "a publish takes no chunk that an older run left",
        "state/judge.py",
        _FOUND,
        _LIKE.format(order="state.staging.attempts"),
    ),
    Mutant(
        "published-without-a-chunk",
        "all chunks of a publish are there, or it is refused whole",
        "state/judge.py",
        "        if attempt is None or attempt.chunk_count < part.chunks:\n",
        "        if attempt is None:\n            continue\n        if not attempt.chunk_count:\n",
    ),
    Mutant(
        "offset-per-chunk",
        "every published record takes the next offset",
        "replica/entry_drafts.py",
        "    count = operation.records\n",
        "    count = len(rows) // CHUNK_BYTES\n",
    ),
    Mutant(
        "published-at-one-offset",
        "the chunks of a publish are read at consecutive offsets",
        "replica/publish_index.py",
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
        "for a published batch no chunk is staged",
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
        "a staged chunk outlives its leader",
        "state/state.py",
        "        other.producers, other.staging = self.producers.copy(), self.staging.copy()\n",
        "        other.producers = self.producers.copy()\n",
    ),
    Mutant(
        "checkpoint-without-staging",
        "a checkpoint holds the staged chunks",
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
        "gone = self.attempts.up_to_batch(app, batch_id)\n",
        "gone = [*self.attempts.up_to_batch(app, batch_id - 1), *found]\n",
    ),
    Mutant(
        "staging-expires-by-the-own-clock",
        "staged chunks expire by an entry, not by a node's clock",
        "replica/applying.py",
        "            state.apply(entry)\n            raft.applied",
        "            state.apply(entry)\n"
        "            staging, timing = state.staging, raft.config.timing\n"
        "            expiry_us = 1000 * timing.staged_expiry_ms\n"
        "            expired = staging.attempts.expired(raft.wall_time, expiry_us)\n"
        "            for app, gone in staging.attempts.by_app(expired).items():\n"
        "                staging._remove(app, gone)\n"
        "            raft.applied",
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
        "a log without new records ages all the same",
        "replica/entry_drafts.py",
        "    if ahead.remembers and now_us - ahead.append_time >= AGE_STEP_US:\n",
        "    if not ahead.remembers and now_us - ahead.append_time >= AGE_STEP_US:\n",
    ),
    Mutant(
        "app-forgotten-like-a-job",
        "only an app that published once and for all is forgotten soon",
        "state/staging.py",
        "(once_expiry_us if app.once else expiry_us)",
        "once_expiry_us",
    ),
    Mutant(
        "job-kept-like-an-app",
        "an app that published once and for all is forgotten soon",
        "state/staging.py",
        "(once_expiry_us if app.once else expiry_us)",
        "expiry_us",
    ),
    Mutant(
        "abort-undoes-a-publish",
        "an abort never undoes a publish",
        "replica/entry_drafts.py",
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
        "state/staged_attempts.py",
        "and attempt in (None, one.id)",
        "and (attempt is None or one.id)",
    ),
    Mutant(
        "abort-of-the-first-thousands",
        "an abort drops every chunk that it names, with however many entries",
        "replica/proposals.py",
        "made.answer.attempts == DROPPED_AT_ONCE:\n",
        "made.answer.attempts > DROPPED_AT_ONCE:\n",
    ),
    Mutant(
        "abort-in-part-denied",
        "an abort that was logged in part is not reported as not logged",
        "replica/proposals.py",
        "        if self._dropped:\n",
        "        if self._dropped < 0:\n",
    ),
    Mutant(
        "abort-without-a-rest-denied",
        "an abort whose last drop left no chunk is logged all the same",
        "replica/proposals.py",
        "if isinstance(made, Aborted) and self._dropped:",
        "if isinstance(made, Aborted) and self._dropped < 0:",
    ),
    Mutant(
        "drops-outlive-a-leadership",
        "the drops of an abort are forgotten with the leadership",
        "replica/proposals.py",
        "self._logged_bytes = self._alone = self._dropped = 0",
        "self._logged_bytes = self._alone = 0",
    ),
    Mutant(
        "walk-over-all-that-is-staged",
        "a search that finds no attempt to drop looks at one attempt",
        "state/staged_attempts.py",
        "                return  # all attempts that follow got a chunk later\n",
        "                continue\n",
    ),
    Mutant(
        "garbage-collector-walks-over-attempts",
        "a full collection does not look at the staged chunks",
        "state/staged_attempts.py",
        "UntrackedDict(tuple, Attempt._make)",
        "UntrackedDict(Attempt._make, Attempt._make)",
    ),
    Mutant(
        "idle-order-lost-with-a-checkpoint",
        "the attempt idle for the longest time goes first, after a restart as well",
        "state/checkpoint.py",
        "        self.contents.staging.settle()\n",
        "",
    ),
    Mutant(
        "idle-abort-not-confirmed",
        "the answer that no chunk is staged is confirmed like a read",
        "replica/proposals.py",
        "            if isinstance(verdict, Aborted) or is_final(verdict):\n",
        "            if isinstance(verdict, QuorateError) and is_final(verdict):\n",
    ),
    Mutant(
        "full-with-older-runs-staged",
        "at the cap the older runs of an app go before it is told STAGE_FULL",
        "replica/entry_drafts.py",
        "        yield _drop(DropReason.REPLACED, older)\n",
        "        if len(older) > 99:\n            yield _drop(DropReason.REPLACED, older)\n",
    ),
    Mutant(
        "full-of-what-is-idle",
        "at the cap idle attempts of others go before an answer is STAGE_FULL",
        "replica/entry_drafts.py",
        "        if idle:\n",
        "        if len(idle) > 99:\n",
    ),
    Mutant(
        "busy-attempt-makes-room",
        "at the cap only attempts that were idle for long go",
        "state/staged_attempts.py",
        "for one in self._idle(age, idle_us):",
        "for one in self._idle(age, 0):",
    ),
    Mutant(
        "own-partition-makes-room",
        "at the cap no run drops its own chunks",
        "state/staged_attempts.py",
        "if (one.app, one.run) != (app, run):",
        "if one:",
    ),
    Mutant(
        "own-attempts-walked-over-for-each-chunk",
        "a run at the cap walks over its own attempts once, not for each chunk",
        "state/staged_attempts.py",
        "            self._none_idle = (app, run, since + idle_us)\n",
        "",
    ),
    Mutant(
        "idle-attempt-of-another-run-overlooked",
        "an attempt that becomes idle after a walk is found",
        "state/staged_attempts.py",
        "            self._none_idle = (app, run, since + idle_us)\n",
        "            self._none_idle = (app, run, since + 2 * idle_us)\n",
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
        "a run that began earlier is older, also if no chunk of it is staged any more",
        "state/staging.py",
        "        return self.attempts.of_runs(app, self.succession.before(app, run))\n",
        "        asks = run if run in self.attempts.runs(app) else bytes(16)\n"
        "        return self.attempts.of_runs(app, self.succession.before(app, asks))\n",
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
        "chunks that an older run stages late make room like the rest of it",
        "state/staging.py",
        "        return self.attempts.of_runs(app, self.succession.before(app, run))\n",
        "        found = self.attempts.of_runs(app, self.succession.before(app, run))\n"
        "        late = min(self.attempts.of_runs(app, [run]), default=2**64)\n"
        "        return tuple(first for first in found if first < late)\n",
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
        "of the runs without staged chunks the newest are known",
        "state/succession.py",
        "        if spare > 0:\n",
        "        if spare > 999:\n",
    ),
    Mutant(
        "digest-without-the-succession",
        "replicas compare which runs are older",
        "state/staging.py",
        "        return self.attempts.digest + self._apps_digest + self.succession.digest\n",
        "        return self.attempts.digest + self._apps_digest\n",
    ),
    Mutant(
        "checkpoint-with-the-runs-of-attempts-only",
        "a checkpoint holds which runs are older",
        "state/state.py",
        "        return encode_sections(self._contents(), self.digest)\n",
        "        bare = self.copy()\n"
        "        staged = {(one.app, one.run) for one in bare.staging.attempts}\n"
        "        for _, (app, run, _) in [*bare.staging.succession]:\n"
        "            if (app, run) not in staged:\n"
        "                bare.staging.succession._forget(app, [run])\n"
        "        return encode_sections(bare._contents(), bare.digest)\n",
    ),
)
