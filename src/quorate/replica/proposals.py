"""What clients want logged, from its arrival to its answer.

The leader judges each proposal, in order, against the state that is *ahead*: what is applied, and
on top of it everything that it has logged itself. Whatever is logged was accepted; so followers
never refuse anything, and offsets stay dense. Three kinds of answers have to wait:

- a receipt, until its entry is applied;
- a second try of something that is logged already, until that entry is applied;
- a final refusal, which is a read: until the entries it rests on are applied and a majority, asked
  after the proposal came, still followed this leader.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import COUNT_MAX, RUN_BYTES, RUNS_MAX, Stamp, join_body, pack_runs
from quorate.errors import Busy, NotLeader, OutcomeUnknown, QuorateError, StateDiverged, check
from quorate.replica.agreement import COMPARED_EVERY
from quorate.replica.exchange import Answer, FenceChanged, Operate, Propose, Receipt
from quorate.state.judge import Opened, is_final, judge_append, judge_fence, judge_open
from quorate.state.operations import ExpireProducers, OpenProducer, encode_operation
from quorate.state.producers import Run
from quorate.types import EntryKind, Index, Term

if TYPE_CHECKING:
    from quorate.config import Config
    from quorate.raft.core import Core
    from quorate.raft.leader import Leader
    from quorate.replica.exchange import Result
    from quorate.state.state import State

__all__ = ["Proposals"]

# Tokens of reads that are asked here to confirm a refusal; clients' tokens are not negative, and
# -1 is the core's own.
FIRST_CONFIRMATION = -2


class _Logged(NamedTuple):
    """Something in the log that waits for its entry to be applied."""

    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    token: int
    # Bytes that it holds of the limits.
    size: int
    # The receipt but for what only the commit tells, or the whole answer.
    answer: Run | Opened | FenceChanged


class _Refused(NamedTuple):
    """A final refusal that is not certain yet."""

    token: int
    problem: QuorateError
    # The newest entry that it rests on.
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own


class Proposals:
    """Of one replica. Only a leader has any."""

    __slots__ = (
        "_ahead", "_arrived", "_arrived_bytes", "_config", "_confirmation", "_confirmed", "_core",
        "_digests", "_logged", "_logged_bytes", "_repeated", "_term", "_unconfirmed",
    )  # fmt: skip

    def __init__(self, core: Core, config: Config) -> None:
        self._core = core
        self._config = config
        # Not in the log yet: a failure of these is final.
        self._arrived: deque[Propose | Operate] = deque()
        self._arrived_bytes = 0
        # In the log, in its order: without a commit their fate is unknown.
        self._logged: deque[_Logged] = deque()
        self._logged_bytes = 0
        # Second tries of what is logged and not applied, in the order of their coming.
        self._repeated: list[_Logged] = []
        # Refusals by the token of the read that is to confirm each; and those confirmed that wait
        # for an entry still.
        self._unconfirmed: dict[int, _Refused] = {}
        self._confirmed: list[_Refused] = []
        self._confirmation = FIRST_CONFIRMATION
        # The state with everything that this leader logged; None until its noop is applied.
        self._ahead: State | None = None
        # What the state must be after some of the entries that were logged here.
        self._digests: deque[tuple[Index, int]] = deque()
        # The term in which this node led when it was last looked at; None while it does not.
        self._term: Term | None = None

    @property
    def waiting(self) -> int:
        """How many have no answer yet."""
        refused = len(self._unconfirmed) + len(self._confirmed)
        return len(self._arrived) + len(self._logged) + len(self._repeated) + refused

    @property
    def waiting_bytes(self) -> int:
        return self._arrived_bytes + self._logged_bytes

    @property
    def arrived(self) -> tuple[int, int]:
        """How many are not in the log yet, and their bytes."""
        return len(self._arrived), self._arrived_bytes

    def take(self, item: Propose | Operate) -> None:
        """``item`` passed every limit: it will be judged in its turn."""
        self._arrived.append(item)
        self._arrived_bytes += _size(item)

    # -- leading and not -----------------------------------------------------------------------

    def end_lost_leadership(self, answers: list[Answer]) -> None:
        """What was logged may still commit under another leader; what was not, cannot."""
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
        ended = NotLeader("leadership ended before logging; leader: none")
        unlogged = (*self._arrived, *self._unconfirmed.values(), *self._confirmed)
        answers.extend(Answer(item.token, ended) for item in unlogged)
        for waiting in (
            self._arrived, self._logged, self._repeated, self._unconfirmed, self._confirmed,
            self._digests,
        ):  # fmt: skip
            waiting.clear()
        self._arrived_bytes = self._logged_bytes = 0
        self._ahead = None

    # -- logging -------------------------------------------------------------------------------

    def log_arrived(self, state: State, applied: Index, answers: list[Answer]) -> None:
        """Judge what arrived, and wrap what is accepted into as few entries as fit.

        Once the noop of the term is applied: only then does this leader know the state that it must
        not contradict.
        """
        leader = self._core.leader
        if leader is None or applied < leader.start:
            return
        if self._ahead is None:
            check(applied == self._core.standing.log.last_index, "nothing is logged before")
            self._ahead = state.copy()
        while self._arrived:
            self._log_some(leader, self._ahead, applied, answers)

    def _log_some(
        self, leader: Leader, ahead: State, applied: Index, answers: list[Answer]
    ) -> None:
        """One entry: as many of the batches at hand as share it, or one operation."""
        limit = self._config.limits.entry_bytes
        batches: list[bytes] = []
        rows: list[bytes] = []
        stamps: list[Stamp] = []
        index = Index(self._core.standing.log.last_index + 1)
        time = leader.append_time
        size = count = runs = 0
        while self._arrived:
            item = self._arrived[0]
            if isinstance(item, Operate):
                if not runs:
                    self._arrived.popleft()
                    self._operate(item, ahead, applied, answers)
                break
            more = len(item.rows) // RUN_BYTES or 1
            if runs and (
                size + len(item.batch) > limit
                or count + item.count > COUNT_MAX
                or runs + more > RUNS_MAX
            ):
                break
            self._arrived.popleft()
            self._arrived_bytes -= len(item.batch)
            verdict = judge_append(ahead, item.count, item.terms)
            if verdict is not None:
                # What is chosen already becomes the entry at this index.
                newest = index if runs else Index(index - 1)
                self._settle(item.token, verdict, newest, applied, answers)
                continue
            producer = item.terms.producer
            stamp = None
            if producer is not None:
                stamp = Stamp(runs, producer.epoch, producer.sequence)
                stamps.append(stamp)
            run = ahead.accept(item.count, stamp, index, leader.term, time)
            self._logged.append(_Logged(index, item.token, len(item.batch), run))
            self._logged_bytes += len(item.batch)
            batches.append(item.batch)
            rows.append(item.rows or pack_runs([(len(item.batch), item.count)]))
            size += len(item.batch)
            count += item.count
            runs += more
        if runs:
            body = join_body(rows, stamps, batches)
            self._append(EntryKind.DATA, body, count, runs, len(stamps))

    def _append(
        self, kind: EntryKind, body: bytes, count: int = 0, runs: int = 0, stamps: int = 0
    ) -> None:
        entry = self._core.append(kind, body, count, runs, stamps)
        assert self._ahead is not None  # for the type checker
        if kind is not EntryKind.DATA:
            self._ahead.apply(entry)
        if entry.index % COMPARED_EVERY == 0:
            self._digests.append((entry.index, self._ahead.digest()))

    def _operate(self, item: Operate, ahead: State, applied: Index, answers: list[Answer]) -> None:
        operation = item.operation
        answer: Opened | FenceChanged
        index = Index(self._core.standing.log.last_index + 1)
        if isinstance(operation, OpenProducer):
            verdict = judge_open(ahead, operation, self._config.limits.producers)
            known = ahead.producers.get(operation.name)
            answer = Opened(index, known.last_sequence if known is not None else 0)
        else:
            verdict = judge_fence(ahead, operation)
            answer = FenceChanged(index)
        if verdict is not None:
            self._settle(item.token, verdict, Index(index - 1), applied, answers)
            return
        self._append(*encode_operation(operation))
        self._logged.append(_Logged(index, item.token, 0, answer))

    def expire(self) -> None:
        """Drop the producers that were idle for too long: by an entry, so that all agree."""
        if self._ahead is not None and self._core.leader is not None:
            expired = self._ahead.expired(self._core.leader.append_time)
            if expired:
                self._append(*encode_operation(ExpireProducers(expired)))

    def _settle(
        self,
        token: int,
        verdict: Run | Opened | QuorateError,
        newest: Index,
        applied: Index,
        answers: list[Answer],
    ) -> None:
        """It is not logged: because it is in the log already, or refused.

        The verdict rests on everything up to the entry ``newest``.
        """
        if isinstance(verdict, QuorateError):
            if is_final(verdict):
                self._confirm(_Refused(token, verdict, newest), answers)
            else:
                answers.append(Answer(token, verdict))
            return
        index = verdict.index if isinstance(verdict, Run) else newest
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
        """A majority still follows this leader. False if ``token`` is not of this object."""
        refused = self._unconfirmed.pop(token, None)
        if refused is not None:
            self._confirmed.append(refused)
        return token <= FIRST_CONFIRMATION

    def unconfirmed(self, token: int, answers: list[Answer]) -> bool:
        """Nobody vouched for this leader in time. False if ``token`` is not of this object."""
        refused = self._unconfirmed.pop(token, None)
        if refused is not None:
            problem = NotLeader("no majority confirmed this leader in time; leader: none")
            answers.append(Answer(refused.token, problem))
        return token <= FIRST_CONFIRMATION

    def check_applied(self, index: Index, digest: int) -> None:
        """What was applied must be what was foreseen when it was logged."""
        if self._digests and self._digests[0][0] == index:
            _, foreseen = self._digests.popleft()
            if foreseen != digest:
                raise StateDiverged(
                    f"entry {index} left another state than the one it was accepted with"
                )

    def answer(self, applied: Index, answers: list[Answer]) -> None:
        """Answer everything that waited for entries up to ``applied``."""
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
            answers.extend(Answer(item.token, item.problem) for item in ready)

    def _result(self, logged: _Logged) -> Result:
        answer = logged.answer
        if not isinstance(answer, Run):
            return answer
        leader = self._core.leader
        assert leader is not None  # for the type checker: only a leader has proposals
        index = Index(answer.index)
        return Receipt(answer.offset, answer.count, index, Term(answer.term), leader.synced(index))


def _size(item: Propose | Operate) -> int:
    return len(item.batch) if isinstance(item, Propose) else 0
