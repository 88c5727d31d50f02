"""What one turn of a leader may cost: counted, with a state at its limits."""

from __future__ import annotations

from itertools import count as counting
from typing import TYPE_CHECKING

import pytest

from cluster_rig import led
from core_rig import config, heartbeat
from engine_rig import BOOT
from quorate.commands import Abort, Aborted, ChunkLabel, ChunkStaged, Receipt
from quorate.entry_body import Chunk
from quorate.errors import NotLeader, OutcomeUnknown, StageFull
from quorate.raft.messages import Envelope
from quorate.replica.engine_io import (
    Deliver,
    Flushed,
    Operate,
    Propose,
    Read,
    Stage,
    TransferLeadership,
)
from quorate.replica.proposals import TURN_REQUESTS, TURN_WORK
from quorate.state.attempts import attempt_of
from quorate.state.judge import UNCONDITIONAL
from quorate.state.operations import DROPPED_AT_ONCE, DropStaged, decode_operation
from quorate.types import EntryKind, Index, NodeId

if TYPE_CHECKING:
    from quorate.replica.engine import Engine
    from quorate.replica.engine_io import Answer, Effects, Input, Result
    from verification.hand import HandCluster

APP = "query"
MANY = 14_000
# Chunks that may be staged, in tests about that.
CAP = 6000
_tokens = counting(1)


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def crowded(attempts: int = MANY, size: int = 1) -> tuple[HandCluster, Engine]:
    """A leader with so many attempts at batch 7 staged, in its state and in the one ahead of it."""
    cluster = led(size, config(staged_chunks=max(CAP, attempts)))
    cluster.turn("n1", [Operate(0, Abort("nobody", 0))])  # makes the one ahead
    cluster.run(2)
    engine = cluster.engine("n1")
    ahead = engine._proposals._ahead
    assert ahead is not None
    for number in range(1, attempts + 1):
        chunks = (Chunk(Index(number), 1, 100),)
        attempt = attempt_of(APP, (7, number, uuid(number)), uuid(1), chunks, ahead.age)
        ahead.staging.add(attempt)
        engine.state.staging.add(attempt)
    ahead.take_work()
    engine.state.take_work()
    return cluster, engine


def turns(engine: Engine, *inputs: Input) -> list[Effects]:
    """Turns until nothing is left over, as a replica takes them; each flush is done at once."""
    found = [engine.turn(inputs, 0)]
    while found[-1].more or found[-1].flush is not None:
        flush = found[-1].flush
        done = [Flushed(flush.number)] if flush is not None else []
        found.append(engine.turn(done, 0))
    return found


def answers(effects: list[Effects]) -> list[Answer]:
    return [answer for one in effects for answer in one.answers]


def chunk(number: int, app: str = APP, run: int = 1) -> Stage:
    label = ChunkLabel(app, uuid(run), 8, number, uuid(number), 0)
    return Stage(next(_tokens), label, b"x", 1)


def test_an_abort_of_many_attempts_takes_several_turns_and_one_answer() -> None:
    cluster, engine = crowded()
    effects = turns(engine, Operate(5, Abort(APP, 7)))
    assert max(one.work for one in effects) <= 2 * TURN_WORK + 4 * DROPPED_AT_ONCE
    assert sum(one.more for one in effects) >= 1
    log = engine.core.raft.log
    drops = [
        decode_operation(entry.kind, entry.body)
        for entry in log.entries(Index(2), Index(log.last_index + 1))
        if entry.kind is EntryKind.STAGE
    ]
    named = [one.attempts for one in drops if isinstance(one, DropStaged)]
    assert [number for part in named for number in part] == [*range(1, MANY + 1)]
    assert max(map(len, named)) == DROPPED_AT_ONCE
    (answer,) = answers(effects)
    assert answer.result == Aborted(log.last_index, MANY)
    assert len(engine.state.staging.attempts) == 0
    assert (engine.pending_appends, engine.pending_bytes) == (0, 0)
    assert cluster.leader() == "n1"


def test_an_abort_of_exactly_what_one_entry_drops_says_so() -> None:
    cluster, engine = crowded(DROPPED_AT_ONCE)
    cluster.turn("n1", [Operate(5, Abort(APP, 7))])
    cluster.run(3)
    assert cluster.answers[5] == Aborted(engine.core.raft.log.last_index, DROPPED_AT_ONCE)


def test_what_arrives_behind_a_large_request_is_judged_in_its_order() -> None:
    """What an abort left for the next turn is not seen by those behind it."""
    cluster, engine = crowded()
    cluster.turn("n1", [Operate(5, Abort(APP, 7)), Operate(6, Abort(APP, 7))])
    cluster.run(3)
    last = engine.core.raft.log.last_index
    assert (cluster.answers[5], cluster.answers[6]) == (Aborted(last, MANY), Aborted(last, 0))


def test_an_abort_that_was_logged_in_part_is_not_denied() -> None:
    """Its leader is replaced before the rest of it is logged: some of it may be committed."""
    _, engine = crowded(size=3)
    effects = engine.turn([Operate(5, Abort(APP, 7)), Operate(6, Abort(APP, 7))], 0)
    assert effects.more
    found = replaced(engine)
    assert isinstance(found[5], OutcomeUnknown)
    assert isinstance(found[6], NotLeader)


def test_an_abort_that_was_logged_in_part_is_logged_whole_during_a_transfer() -> None:
    """The transfer begins to drain in the turn that logs the first of its entries (R15)."""
    _, engine = crowded(size=3)
    effects = engine.turn([TransferLeadership(4, NodeId("n2")), Operate(5, Abort(APP, 7))], 0)
    assert engine.core.transfers.holds
    log = engine.core.raft.log
    before = log.last_index
    while effects.more:
        effects = engine.turn([Propose(6, b"waits", 1)], 0)
    assert log.last_index > before
    kinds = {entry.kind for entry in log.entries(Index(2), Index(log.last_index + 1))}
    assert kinds == {EntryKind.STAGE}


def test_an_abort_whose_drops_are_all_logged_is_not_denied() -> None:
    """One entry dropped as many as it may, so it was looked whether there are more."""
    _, engine = crowded(DROPPED_AT_ONCE, size=3)
    last = engine.core.raft.log.last_index
    assert not answers([engine.turn([Operate(5, Abort(APP, 7))], 0)])
    assert engine.core.raft.log.last_index == last + 1
    assert isinstance(replaced(engine)[5], OutcomeUnknown)


def test_an_abort_whose_drops_are_all_logged_waits_for_no_read() -> None:
    cluster, engine = crowded(DROPPED_AT_ONCE, size=3)
    cluster.isolate("n1")
    reads = engine.config.limits.pending_reads
    inputs: list[Input] = [
        *(Read(token) for token in range(100, 100 + reads)),
        Operate(5, Abort(APP, 7)),
    ]
    assert not answers([engine.turn(inputs, 0)])
    assert isinstance(replaced(engine)[5], OutcomeUnknown)


def test_what_was_dropped_for_an_abort_is_forgotten_with_the_leadership() -> None:
    _, engine = crowded(size=3)
    assert engine.turn([Operate(5, Abort(APP, 7))], 0).more
    assert isinstance(replaced(engine)[5], OutcomeUnknown)
    proposals = engine._proposals
    assert proposals._dropped == 0
    assert (proposals.waiting, proposals.waiting_bytes) == (0, 0)


def replaced(engine: Engine) -> dict[int, Result]:
    """What callers are told when another leader is heard."""
    later = engine.core.raft.term + 1
    message = heartbeat(later, engine.core.raft.log.position(Index(1)))
    envelope = Envelope(engine._group, NodeId("n2"), NodeId("n1"), BOOT, message)
    return {answer.token: answer.result for answer in engine.turn([Deliver(envelope)], 0).answers}


@pytest.mark.parametrize("app", [APP, "other"])
def test_chunks_that_are_refused_at_the_cap_cost_no_walk(app: str) -> None:
    """STAGE_FULL is retriable: tasks come again, many at once."""
    _, engine = crowded(CAP)
    effects = turns(engine, *(chunk(number, app) for number in range(100)))
    assert all(isinstance(answer.result, StageFull) for answer in answers(effects))
    assert sum(one.work for one in effects) <= 4 * 100


def test_at_the_cap_an_older_run_makes_room_bit_by_bit() -> None:
    _, engine = crowded(CAP)
    effects = turns(engine, chunk(1, run=2))
    assert isinstance(answers(effects)[0].result, ChunkStaged)
    assert len(engine.state.staging.attempts) == CAP - DROPPED_AT_ONCE + 1
    assert max(one.work for one in effects) <= 4 * DROPPED_AT_ONCE


def test_a_turn_judges_so_many_requests_and_the_rest_in_turns_that_come_at_once() -> None:
    """As after a stall of the loop, or while the first entry of a leader was on its way."""
    count = 2 * TURN_REQUESTS + 1
    engine = led(1, config(pending_appends=count)).engine("n1")
    requests = [Propose(next(_tokens), b"x", 1, None, UNCONDITIONAL) for _ in range(count)]
    found = turns(engine, *requests)
    assert [one.more for one in found[:3]] == [True, True, False]
    entries = engine.core.raft.log.entries(Index(2), Index(5))
    assert [entry.count for entry in entries] == [TURN_REQUESTS, TURN_REQUESTS, 1]
    receipts = [answer.result for answer in answers(found)]
    assert [one.offset for one in receipts if isinstance(one, Receipt)] == [*range(count)]
