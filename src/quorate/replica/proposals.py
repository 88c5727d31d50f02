"""Clients' requests that are to be logged, from their arrival to their answer.

The leader judges each proposal, in order, against the state that is *ahead*: the applied state and
on top of it all entries that the leader has logged itself. Each logged proposal was accepted; so
followers never refuse an entry, and offsets stay dense. Three kinds of answers have to wait:

- a receipt, until its entry is applied;
- the answer to a retry of a request that is logged already, until that entry is applied;
- a final refusal, which is a read: until the entries it rests on are applied and a majority, asked
  after the proposal came, still followed this leader.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import Aborted, ChunkStaged, Receipt
from quorate.entry import COUNT_MAX, RUNS_MAX
from quorate.entry_body import RUN_BYTES, Stamp, join_body, pack_runs
from quorate.errors import Busy, NotLeader, OutcomeUnknown, QuorateError, StateDiverged, check
from quorate.membership import encode_membership
from quorate.replica.disk_space import DROP_BYTES, NAMES_BYTES
from quorate.replica.engine_io import Answer, Propose, Stage
from quorate.replica.entry_drafts import Draft, draft, draft_expiries, draft_room
from quorate.replica.state_check import COMPARED_EVERY
from quorate.state.judge import is_final, judge_append
from quorate.state.operations import DROPPED_AT_ONCE, EPOCHS_MAX, FORGOTTEN_MAX
from quorate.state.runs import Run
from quorate.types import EntryKind, Index, Term

if TYPE_CHECKING:
    from quorate.config import Config
    from quorate.raft.core import Core
    from quorate.raft.leader import Leader
    from quorate.replica.engine_io import Operate, Request, Result
    from quorate.replica.entry_drafts import Prepared
    from quorate.state.state import State

__all__ = ["Proposals"]

# The first token of the reads that confirm refusals; clients' tokens are not negative, and -1 is
# the core's own.
FIRST_CONFIRMATION = -2
# Producers and attempts that are looked at or changed in one turn before the other requests are
# left to the next: some ten milliseconds. The cost of a single request comes on top of it.
TURN_WORK = 16_384
# Requests that one turn judges: some ten milliseconds as well.
TURN_REQUESTS = 4_096


class _Logged(NamedTuple):
    """A request in the log that waits for its entry to be applied."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    token: int
    # Bytes of the request that count for the limits.
    size: int
    # The receipt without the facts that only the commit tells, or the whole answer.
    answer: Prepared


class _Refused(NamedTuple):
    """An answer without an entry that is not certain yet: a final refusal, or the answer to an
    abort that finds no attempt to drop."""

    token: int
    answer: QuorateError | Aborted
    # The newest entry that the answer rests on.
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called


class Proposals:
    """The requests of one replica that have no answer yet. Only a leader has any."""

    __slots__ = (
        "_ahead", "_alone", "_arrived", "_arrived_bytes", "_config", "_confirmation", "_confirmed",
        "_core", "_digests", "_dropped", "_logged", "_logged_bytes", "_repeated", "_term",
        "_unconfirmed", "behind",
    )  # fmt: skip

    def __init__(self, core: Core, config: Config) -> None:
        self._core = core
        self._config = config
        # Requests that are not in the log yet: a failure of these is final.
        self._arrived: deque[Request] = deque()
        self._arrived_bytes = 0
        # Number of these that have an entry to themselves.
        self._alone = 0
        # Requests in the log, in its order: without a commit their outcome is unknown.
        self._logged: deque[_Logged] = deque()
        self._logged_bytes = 0
        # Retries of requests that are logged and not applied, in the order of their arrival.
        self._repeated: list[_Logged] = []
        # Refusals by the token of the read that is to confirm each; and confirmed refusals that
        # still wait for an entry.
        self._unconfirmed: dict[int, _Refused] = {}
        self._confirmed: list[_Refused] = []
        self._confirmation = FIRST_CONFIRMATION
        # The state with all entries that this leader logged; None until its noop is applied.
        self._ahead: State | None = None
        # Digests that the state must have after some of the entries that were logged here.
        self._digests: deque[tuple[Index, int]] = deque()
        # Number of attempts dropped for the abort that arrived first and is not done yet.
        self._dropped = 0
        # Whether the last turn left requests for another turn, which is to come at once.
        self.behind = False
        # The term in which this node led at the last check; None if it did not lead.
        self._term: Term | None = None

    @property
    def waiting(self) -> int:
        """Number of requests that have no answer yet."""
        refused = len(self._unconfirmed) + len(self._confirmed)
        return len(self._arrived) + len(self._logged) + len(self._repeated) + refused

    @property
    def waiting_bytes(self) -> int:
        return self._arrived_bytes + self._logged_bytes

    @property
    def arrived(self) -> tuple[int, int]:
        """Number of requests that are not in the log yet, and their bytes."""
        return len(self._arrived), self._arrived_bytes

    @property
    def room(self) -> int:
        """Bytes on disk that those requests may take besides their own: for names, and for the drop
        of all staged chunks."""
        staged = self._ahead.staging.attempts.chunks if self._ahead is not None else 0
        return NAMES_BYTES * self._alone + DROP_BYTES * staged

    @property
    def expiry_room(self) -> int:
        """Bytes on disk that one call of :meth:`expire` may take. They are bounded: however many
        items are idle, expiry must not wait for more room than a segment has."""
        if self._ahead is None:
            return 0
        staging = self._ahead.staging
        producers = min(len(self._ahead.producers), EPOCHS_MAX)
        staged = min(staging.attempts.chunks, FORGOTTEN_MAX) + min(staging.crowd, FORGOTTEN_MAX)
        return self._arrived_bytes + NAMES_BYTES + DROP_BYTES * (producers + staged)

    def take_work(self) -> int:
        """The work done in the state that is ahead since the last call: items looked at or
        changed."""
        return self._ahead.take_work() if self._ahead is not None else 0

    def take(self, item: Request) -> None:
        """Queue ``item``, which passed every limit: it is judged after those before it."""
        self._arrived.append(item)
        self._arrived_bytes += item.size
        self._alone += not isinstance(item, Propose)

    # -- leading and not -----------------------------------------------------------------------

    def end_lost_leadership(self, answers: list[Answer]) -> None:
        """Answer all requests of a term that ended. Logged ones may still commit under another
        leader; the others cannot."""
        leader = self._core.leader
        term = leader.term if leader is not None else None
        if term == self._term:
            return
        lost, self._term = self._term, term
        for logged in (*self._logged, *self._repeated):
            problem = OutcomeUnknown(
                f"index {logged.index} was logged in term {lost}, which ended before its commit "
                f"was known"
            )
            answers.append(Answer(logged.token, problem))
        if self._dropped:
            problem = OutcomeUnknown(f"the abort was logged in part in term {lost}, which ended")
            answers.append(Answer(self._arrived.popleft().token, problem))
        successor = self._core.transfers.successor
        ended = NotLeader("leadership ended before logging", leader=successor)
        unlogged = (*self._arrived, *self._unconfirmed.values(), *self._confirmed)
        answers.extend(Answer(item.token, ended) for item in unlogged)
        for waiting in (
            self._arrived, self._logged, self._repeated, self._unconfirmed, self._confirmed,
            self._digests,
        ):  # fmt: skip
            waiting.clear()
        self._arrived_bytes = self._logged_bytes = self._alone = self._dropped = 0
        self._ahead = None

    # -- logging -------------------------------------------------------------------------------

    def log_arrived(self, state: State, applied: Index, now_ms: int, answers: list[Answer]) -> None:
        """Judge the requests that arrived, and pack the accepted ones into as few entries as fit.
        Appends past their deadline are refused: their clients wait no more.

        This begins once the noop of the term is applied: only then does this leader know the state
        that it must not contradict.
        """
        leader = self._core.leader
        self.behind = False
        if leader is None or applied < leader.start:
            return
        if self._ahead is None:
            check(applied == self._core.raft.log.last_index, "nothing is logged before")
            self._ahead = state.copy()
        membership = self._core.membership_due
        if membership is not None:
            self._append(EntryKind.MEMBERSHIP, encode_membership(membership))
            self._core.changes.logged()
        later = max(0, len(self._arrived) - TURN_REQUESTS)
        while len(self._arrived) > later and self._ahead.work < TURN_WORK and not self._waits:
            self._log_some(leader, self._ahead, applied, now_ms, answers, later)
        self.behind = bool(self._arrived) and not self._waits

    @property
    def _waits(self) -> bool:
        """Whether requests must wait for the end of a transfer of the leadership (R17). An abort
        that is logged in part must not: it is the first in the queue."""
        return self._core.transfers.holds and not self._dropped

    def _log_some(
        self,
        leader: Leader,
        ahead: State,
        applied: Index,
        now_ms: int,
        answers: list[Answer],
        later: int,
    ) -> None:
        """Log one entry: as many of the first batches as fit, or a request that has an entry to
        itself. The last ``later`` requests stay for another turn."""
        limit = self._config.limits.entry_bytes
        batches: list[bytes] = []
        rows: list[bytes] = []
        stamps: list[Stamp] = []
        index = Index(self._core.raft.log.last_index + 1)
        time = leader.append_time
        size = count = runs = 0
        while len(self._arrived) > later:
            item = self._arrived[0]
            if not isinstance(item, Propose):
                if not runs:
                    self._arrived.popleft()
                    self._arrived_bytes -= item.size
                    self._alone -= 1
                    self._log_alone(item, leader, ahead, applied, answers)
                break
            more = len(item.rows) // RUN_BYTES or 1
            if runs and (
                size + item.size > limit or count + item.count > COUNT_MAX or runs + more > RUNS_MAX
            ):
                break
            self._arrived.popleft()
            self._arrived_bytes -= item.size
            verdict = item.too_late(now_ms) or judge_append(ahead, item.count, item.conditions)
            if verdict is not None:
                # The batches that are accepted already become the entry at this index.
                newest = index if runs else Index(index - 1)
                self._settle(item.token, verdict, newest, applied, answers)
                continue
            producer = item.conditions.producer
            stamp = None
            if producer is not None:
                stamp = Stamp(runs, producer.epoch, producer.sequence)
                stamps.append(stamp)
            run = ahead.accept(item.count, stamp, index, leader.term, time)
            self._logged.append(_Logged(index, item.token, item.size, run))
            self._logged_bytes += item.size
            batches.append(item.batch)
            rows.append(item.rows or pack_runs([(len(item.batch), item.count)]))
            size += item.size
            count += item.count
            runs += more
        if runs:
            body = join_body(rows, stamps, batches)
            self._append(EntryKind.DATA, body, count, runs, len(stamps))

    def _append(
        self, kind: EntryKind, body: bytes, count: int = 0, runs: int = 0, stamps: int = 0
    ) -> Index:
        assert self._core.leader is not None and self._ahead is not None  # for the type checker
        entry = self._core.leader.append(kind, body, count, runs, stamps)
        if kind is not EntryKind.DATA:
            self._ahead.apply(entry)
        if entry.index % COMPARED_EVERY == 0:
            self._digests.append((entry.index, self._ahead.digest()))
        return entry.index

    def _log_alone(
        self,
        item: Stage | Operate,
        leader: Leader,
        ahead: State,
        applied: Index,
        answers: list[Answer],
    ) -> None:
        limits, log = self._config.limits, self._core.raft.log
        if isinstance(item, Stage):
            for dropped in draft_room(item, ahead, leader.append_time, self._config):
                self._append(*dropped)
        made = draft(item, ahead, limits, log.last_index, self._core.raft.term)
        if isinstance(made, Aborted) and self._dropped:
            # No attempts were left. Those dropped before are in the log, like any other abort.
            self._note_logged(item, log.last_index, made)
            return
        if not isinstance(made, Draft):
            self._settle(item.token, made, log.last_index, applied, answers)
            return
        index = self._append(*made.entry)
        if isinstance(made.answer, Aborted) and made.answer.attempts == DROPPED_AT_ONCE:
            # There may be more attempts: the abort is drafted once more, in this turn or the next.
            self._dropped += DROPPED_AT_ONCE
            self._arrived.appendleft(item)
            self._arrived_bytes += item.size
            self._alone += 1
            return
        self._note_logged(item, index, made.answer)

    def _note_logged(self, item: Stage | Operate, index: Index, answer: Prepared) -> None:
        """Note a request that is logged at ``index``. The answer to an abort counts the attempts
        that all of its entries dropped."""
        if isinstance(answer, Aborted):
            answer = Aborted(index=answer.index, attempts=answer.attempts + self._dropped)
            self._dropped = 0
        self._logged.append(_Logged(index, item.token, item.size, answer))
        self._logged_bytes += item.size

    def expire(self) -> bool:
        """Forget producers, attempts and apps that were idle for too long: by entries, so that all
        replicas agree. Returns whether any were forgotten: there may be more."""
        forgotten = False
        if self._ahead is not None and self._core.leader is not None:
            now_us = self._core.leader.append_time
            for entry in draft_expiries(self._ahead, now_us, self._config.timing):
                self._append(*entry)
                forgotten = forgotten or entry.kind is not EntryKind.NOOP
        return forgotten

    def _settle(
        self,
        token: int,
        verdict: Prepared | QuorateError,
        newest: Index,
        applied: Index,
        answers: list[Answer],
    ) -> None:
        """Answer a request that is not logged: because it is in the log already, or refused.

        The verdict rests on all entries up to ``newest``.
        """
        if isinstance(verdict, QuorateError | Aborted):
            if isinstance(verdict, Aborted) or is_final(verdict):
                self._confirm(_Refused(token, verdict, newest), answers)
            else:
                answers.append(Answer(token, verdict))
            return
        index = verdict.index if isinstance(verdict, Run | ChunkStaged) else newest
        logged = _Logged(Index(index), token, 0, verdict)
        if index <= applied:
            answers.append(Answer(token, self._result(logged)))
        else:
            self._repeated.append(logged)

    def _confirm(self, refused: _Refused, answers: list[Answer]) -> None:
        limit = self._config.limits.pending_reads
        if self._core.reads_waiting >= limit:
            problem = Busy(f"{limit} reads wait already (limits.pending_reads)")
            answers.append(Answer(refused.token, problem))
            return
        self._confirmation -= 1
        self._unconfirmed[self._confirmation] = refused
        self._core.read(self._confirmation)

    # -- answering -----------------------------------------------------------------------------

    def confirmed(self, token: int) -> bool:
        """Note that a majority still follows this leader. False if ``token`` is not of this
        object."""
        refused = self._unconfirmed.pop(token, None)
        if refused is not None:
            self._confirmed.append(refused)
        return token <= FIRST_CONFIRMATION

    def unconfirmed(self, token: int, answers: list[Answer]) -> bool:
        """Answer a refusal that no majority confirmed in time. False if ``token`` is not of this
        object."""
        refused = self._unconfirmed.pop(token, None)
        if refused is not None:
            problem = NotLeader("no majority confirmed this leader in time")
            answers.append(Answer(refused.token, problem))
        return token <= FIRST_CONFIRMATION

    def check_applied(self, index: Index, digest: int) -> None:
        """Raise StateDiverged if the state after entry ``index`` is not the state that was foreseen
        when the entry was logged."""
        if self._digests and self._digests[0][0] == index:
            _, foreseen = self._digests.popleft()
            if foreseen != digest:
                raise StateDiverged(f"entry {index} led to another state than the leader foresaw")

    def answer(self, applied: Index, answers: list[Answer]) -> None:
        """Answer all requests that waited for entries up to ``applied``."""
        while self._logged and self._logged[0].index <= applied:
            logged = self._logged.popleft()
            self._logged_bytes -= logged.size
            answers.append(Answer(logged.token, self._result(logged)))
        if self._repeated:
            due = [logged for logged in self._repeated if logged.index <= applied]
            self._repeated = [logged for logged in self._repeated if logged.index > applied]
            answers.extend(Answer(logged.token, self._result(logged)) for logged in due)
        if self._confirmed:
            ready = [item for item in self._confirmed if item.index <= applied]
            self._confirmed = [item for item in self._confirmed if item.index > applied]
            answers.extend(Answer(item.token, item.answer) for item in ready)

    def _result(self, logged: _Logged) -> Result:
        answer = logged.answer
        if not isinstance(answer, Run):
            return answer
        leader = self._core.leader
        index = Index(answer.index)
        # A leader that stepped down in this very turn, after the commit, knows of a majority only.
        synced = self._core.raft.electorate.fewest if leader is None else leader.synced(index)
        return Receipt(answer.offset, answer.count, index, answer.term, synced)
