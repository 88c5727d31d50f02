"""Chunks and publishes at a leader: what is logged, what is answered when, and what a new leader
knows of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count as counting
from typing import TYPE_CHECKING

import pytest

from cluster_rig import envelope, led, run_until
from core_rig import ELECTION_TICKS, config, heartbeat_reply
from proposal_rig import stuck, unstick
from quorate.commands import Abort, Aborted, ChunkLabel, ChunkStaged, Part, Publish, Receipt
from quorate.entry_body import Chunk, decode_label, unpack_chunks
from quorate.errors import (
    Busy,
    DiskFull,
    Duplicate,
    EmptyBatch,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    ReplayMismatch,
    StageExpired,
    StageFull,
    TooLarge,
)
from quorate.replica.disk_space import DROP_BYTES, ENTRY_OVERHEAD, NAMES_BYTES
from quorate.replica.engine_io import Deliver, Operate, Room, Stage
from quorate.state.operations import DropReason, DropStaged, ForgetApps, decode_operation
from quorate.types import EntryKind, Index

if TYPE_CHECKING:
    from quorate.entry import Entry
    from verification.hand import HandCluster

APP = "query"
_tokens = counting(2_000_000)


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def stage(
    cluster: HandCluster,
    batch_id: int = 0,
    partition: int = 0,
    attempt: int = 1,
    number: int = 0,
    *,
    run: int = 1,
    count: int = 1,
    batch: bytes = b"batch...",
    name: str = "n1",
    app: str = APP,
) -> int:
    token = next(_tokens)
    label = ChunkLabel(app, uuid(run), batch_id, partition, uuid(attempt), number)
    cluster.turn(name, [Stage(token, label, batch, count)])
    return token


def publishing(batch_id: int, *parts: tuple[int, int, int, int], of: int = 0) -> Publish:
    named = tuple(Part(part[0], uuid(part[1]), *part[2:]) for part in parts)
    return Publish(APP, batch_id, named, of.to_bytes(32, "little"))


def operate(cluster: HandCluster, operation: Publish | Abort, name: str = "n1") -> int:
    token = next(_tokens)
    cluster.turn(name, [Operate(token, operation)])
    return token


def problem(cluster: HandCluster, token: int, kind: type[QuorateError]) -> QuorateError:
    answer = cluster.answers[token]
    assert isinstance(answer, kind), answer
    return answer


def entries(cluster: HandCluster, kind: EntryKind, name: str = "n1") -> list[Entry]:
    log = cluster.engine(name).core.raft.log
    return [one for one in log.entries(Index(1), Index(log.last_index + 1)) if one.kind is kind]


# -- what is logged and answered -----------------------------------------------------------------


def test_a_chunk_is_answered_when_it_is_committed_and_nobody_sees_it() -> None:
    cluster = stuck()
    token = stage(cluster, count=3)
    assert token not in cluster.answers
    unstick(cluster)
    assert cluster.answers[token] == ChunkStaged(2, published=False)
    assert cluster.engine("n1").state.end == 0


def test_a_publish_is_one_entry_that_names_the_chunks_with_consecutive_offsets() -> None:
    cluster = led(1)
    stage(cluster, partition=1, count=2)
    stage(cluster, partition=0, count=3)
    stage(cluster, partition=0, number=1, count=4)
    token = operate(cluster, publishing(0, (0, 1, 2, 7), (1, 1, 1, 2)))
    receipt = cluster.answers[token]
    assert isinstance(receipt, Receipt)
    assert receipt[:3] == (0, 9, 5)
    staged = entries(cluster, EntryKind.STAGE)
    (publish,) = entries(cluster, EntryKind.PUBLISH)
    assert unpack_chunks(publish)[0] == [
        Chunk(staged[1].index, 3, staged[1].size),
        Chunk(staged[2].index, 4, staged[2].size),
        Chunk(staged[0].index, 2, staged[0].size),
    ]
    assert cluster.engine("n1").state.end == 9


def test_a_chunk_may_be_published_in_the_turn_in_which_it_came() -> None:
    cluster = stuck()
    first = Stage(next(_tokens), ChunkLabel(APP, uuid(1), 0, 0, uuid(1), 0), b"batch...", 2)
    second = Operate(next(_tokens), publishing(0, (0, 1, 1, 2)))
    cluster.turn("n1", [first, second])
    unstick(cluster)
    assert isinstance(cluster.answers[second.token], Receipt)


def test_repeats_join_what_is_pending_and_log_nothing() -> None:
    cluster = stuck()
    tokens = [stage(cluster), stage(cluster)]
    published = [operate(cluster, publishing(0, (0, 1, 1, 1))) for _ in range(2)]
    assert not {*tokens, *published} & cluster.answers.keys()
    late = stage(cluster, attempt=9)
    unstick(cluster)
    assert [cluster.answers[token] for token in tokens] == [ChunkStaged(2, published=False)] * 2
    assert cluster.answers[late] == ChunkStaged(3, published=True)
    receipts = [cluster.answers[token] for token in published]
    assert receipts[0] == receipts[1]
    assert len(entries(cluster, EntryKind.STAGE)) == len(entries(cluster, EntryKind.PUBLISH)) == 1


def test_a_gap_is_refused_at_once_and_leaves_no_trace() -> None:
    cluster = led(1)
    problem(cluster, stage(cluster, number=1), OutOfSequence)
    assert entries(cluster, EntryKind.STAGE) == []


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (publishing(3, (0, 1, 1, 1), of=8), ReplayMismatch),
        (publishing(3, (0, 1, 1, 2), of=7), ReplayMismatch),
        (publishing(2, (0, 1, 1, 1), of=7), Duplicate),
        (publishing(4, (0, 1, 1, 1), of=7), StageExpired),
    ],
    ids=["digest", "records", "lower", "missing"],
)
def test_a_publish_that_cannot_be_is_refused_like_a_read(
    asked: Publish, kind: type[QuorateError]
) -> None:
    cluster = led(3)
    stage(cluster, 3)
    operate(cluster, publishing(3, (0, 1, 1, 1), of=7))
    cluster.run(2)
    token = operate(cluster, asked)
    assert token not in cluster.answers
    cluster.run(2)
    problem(cluster, token, kind)
    assert len(entries(cluster, EntryKind.PUBLISH)) == 1


def test_what_rests_on_a_pending_publish_waits_for_it() -> None:
    cluster = stuck()
    stage(cluster, 3)
    operate(cluster, publishing(3, (0, 1, 1, 1)))
    token = operate(cluster, publishing(2))
    assert token not in cluster.answers
    unstick(cluster)
    problem(cluster, token, Duplicate)


# -- dropping ------------------------------------------------------------------------------------


def test_an_abort_drops_an_attempt_or_a_batch() -> None:
    cluster = led(1)
    for attempt in (1, 2, 3):
        stage(cluster, attempt=attempt)
    one = operate(cluster, Abort(APP, 0, uuid(2)))
    assert cluster.answers[one] == Aborted(Index(5), 1)
    every = operate(cluster, Abort(APP, 0))
    assert cluster.answers[every] == Aborted(Index(6), 2)
    assert cluster.engine("n1").state.staging.attempts.bytes == 0


def test_an_abort_of_nothing_is_answered_like_a_read() -> None:
    cluster = led(3)
    last = cluster.engine("n1").core.raft.log.last_index
    token = operate(cluster, Abort(APP, 0))
    assert token not in cluster.answers
    cluster.run(2)
    assert cluster.answers[token] == Aborted(last, 0)


def test_an_abort_never_undoes_a_publish() -> None:
    cluster = led(1)
    stage(cluster)
    first = operate(cluster, publishing(0, (0, 1, 1, 1)))
    operate(cluster, Abort(APP, 0))
    again = operate(cluster, publishing(0, (0, 1, 1, 1)))
    assert cluster.answers[again] == cluster.answers[first]
    assert cluster.engine("n1").state.end == 1


def test_at_the_cap_older_runs_of_the_same_app_go_first() -> None:
    cluster = led(1, config(staged_chunks=2))
    stage(cluster, attempt=1, run=1)
    stage(cluster, attempt=2, run=2)
    token = stage(cluster, attempt=2, run=2, number=1)
    assert isinstance(cluster.answers[token], ChunkStaged)
    (drop,) = [one for one in entries(cluster, EntryKind.STAGE) if not one.runs]
    assert decode_operation(drop.kind, drop.body) == DropStaged(DropReason.REPLACED, (2,))
    full = stage(cluster, attempt=2, run=2, number=2)
    problem(cluster, full, StageFull)
    zombie = stage(cluster, attempt=1, run=1, number=1)
    problem(cluster, zombie, OutOfSequence)


def drops(cluster: HandCluster) -> list[object]:
    found = [one for one in entries(cluster, EntryKind.STAGE) if not one.runs]
    return [decode_operation(one.kind, one.body) for one in found]


def test_at_the_cap_a_run_that_was_replaced_drops_nothing() -> None:
    """A task of a driver that is gone tries again and again, each time with another attempt."""
    cluster = led(1, config(staged_chunks=2))
    for run, attempts in ((1, (1, 2)), (2, (3, 4))):
        for partition, attempt in enumerate(attempts):
            stage(cluster, partition=partition, attempt=attempt, run=run)
    assert drops(cluster) == [DropStaged(DropReason.REPLACED, (2, 3))]
    for attempt in (5, 6):
        problem(cluster, stage(cluster, attempt=attempt, run=1), StageFull)
    assert len(drops(cluster)) == 1
    published = operate(cluster, publishing(0, (0, 3, 1, 1), (1, 4, 1, 1)))
    assert isinstance(cluster.answers[published], Receipt)


def test_at_the_cap_what_a_replaced_run_staged_since_makes_room() -> None:
    cluster = led(1, config(staged_chunks=2))
    stage(cluster, attempt=1, run=1)
    stage(cluster, attempt=2, run=2)
    stage(cluster, attempt=3, run=2, partition=1)
    operate(cluster, Abort(APP, 0, uuid(3)))
    late = stage(cluster, attempt=4, run=1)
    assert isinstance(cluster.answers[late], ChunkStaged)
    again = stage(cluster, attempt=5, run=2, partition=1)
    assert isinstance(cluster.answers[again], ChunkStaged)
    published = operate(cluster, publishing(0, (0, 2, 1, 1), (1, 5, 1, 1)))
    assert isinstance(cluster.answers[published], Receipt)


def test_at_the_cap_a_late_first_chunk_counts_as_a_new_start() -> None:
    """The log hears of a run by its first chunk: it cannot know that the driver of the late task
    was started, and died, before the live run. Only a new start gets the room back at once."""
    cluster = led(1, config(staged_chunks=2, staged_idle_ms=1000))
    dead, live, anew = 1, 2, 3
    stage(cluster, partition=0, attempt=1, run=live)
    stage(cluster, partition=1, attempt=2, run=live)
    late = stage(cluster, partition=0, attempt=3, run=dead)
    assert isinstance(cluster.answers[late], ChunkStaged)
    assert drops(cluster) == [DropStaged(DropReason.REPLACED, (2, 3))]
    lost = operate(cluster, publishing(0, (0, 1, 1, 1), (1, 2, 1, 1)))
    problem(cluster, lost, StageExpired)

    # The live run gets the room beside the late chunks. It is dropped again for more of them.
    assert isinstance(cluster.answers[stage(cluster, attempt=4, run=live)], ChunkStaged)
    late = stage(cluster, partition=1, attempt=5, run=dead)
    assert isinstance(cluster.answers[late], ChunkStaged)
    problem(cluster, stage(cluster, attempt=6, run=live), StageFull)
    assert len(drops(cluster)) == 2

    for partition in (0, 1):
        stage(cluster, partition=partition, attempt=7 + partition, run=anew)
    problem(cluster, stage(cluster, attempt=9, run=dead), StageFull)
    published = operate(cluster, publishing(0, (0, 7, 1, 1), (1, 8, 1, 1)))
    assert isinstance(cluster.answers[published], Receipt)


def test_at_the_cap_a_late_first_chunk_makes_room_for_the_live_run_once_it_is_idle() -> None:
    cluster = led(1, config(staged_chunks=1, staged_idle_ms=1000))
    stage(cluster, attempt=1, run=2)
    stage(cluster, attempt=2, run=1)
    problem(cluster, stage(cluster, attempt=3, run=2), StageFull)
    cluster.run(ticks=110)
    assert isinstance(cluster.answers[stage(cluster, attempt=4, run=2)], ChunkStaged)
    assert isinstance(cluster.answers[operate(cluster, publishing(0, (0, 4, 1, 1)))], Receipt)


def test_at_the_cap_what_others_left_idle_makes_room() -> None:
    cluster = led(1, config(staged_chunks=2, staged_idle_ms=1000))
    stage(cluster, attempt=1)
    stage(cluster, attempt=2)
    problem(cluster, stage(cluster, app="other"), StageFull)
    cluster.run(ticks=110)
    assert isinstance(cluster.answers[stage(cluster, app="other")], ChunkStaged)
    assert drops(cluster) == [DropStaged(DropReason.IDLE, (2, 3))]
    problem(cluster, operate(cluster, publishing(0, (0, 1, 1, 1))), StageExpired)


def test_at_the_cap_what_is_not_idle_stays() -> None:
    cluster = led(1, config(staged_chunks=2, staged_idle_ms=1000))
    stage(cluster, attempt=1, app="dead")
    cluster.run(ticks=110)
    stage(cluster, attempt=2)
    assert isinstance(cluster.answers[stage(cluster, app="other")], ChunkStaged)
    assert drops(cluster) == [DropStaged(DropReason.IDLE, (2,))]
    receipt = cluster.answers[operate(cluster, publishing(0, (0, 2, 1, 1)))]
    assert isinstance(receipt, Receipt)


def test_at_the_cap_no_run_drops_what_it_staged_itself() -> None:
    cluster = led(1, config(staged_chunks=2, staged_idle_ms=1000))
    stage(cluster, partition=0)
    stage(cluster, partition=1)
    cluster.run(ticks=110)
    problem(cluster, stage(cluster, partition=2), StageFull)
    assert drops(cluster) == []


def test_staged_bytes_are_capped() -> None:
    cluster = led(1, config(staged_bytes=500))
    stage(cluster, batch=bytes(200))
    problem(cluster, stage(cluster, number=1, batch=bytes(400)), StageFull)


def test_what_is_staged_expires_by_an_entry_and_a_later_publish_fails_whole() -> None:
    cluster = led(1, config(staged_expiry_ms=1000, app_expiry_ms=5000))
    stage(cluster, 1, partition=0)
    stage(cluster, 1, partition=1)
    cluster.run(ticks=1100)
    (drop,) = [one for one in entries(cluster, EntryKind.STAGE) if not one.runs]
    assert decode_operation(drop.kind, drop.body) == DropStaged(DropReason.EXPIRED, (2, 3))
    problem(cluster, operate(cluster, publishing(1, (0, 1, 1, 1), (1, 1, 1, 1))), StageExpired)
    operate(cluster, publishing(1))
    cluster.run(ticks=1100)
    forget = entries(cluster, EntryKind.STAGE)[-1]
    assert isinstance(decode_operation(forget.kind, forget.body), ForgetApps)
    assert cluster.engine("n1").state.staging.app(APP) is None


# -- limits --------------------------------------------------------------------------------------


def test_a_chunk_obeys_the_limits_of_a_batch() -> None:
    cluster = led(1, config(batch_bytes=100, pending_bytes=100))
    problem(cluster, stage(cluster, batch=bytes(101)), TooLarge)
    problem(cluster, stage(cluster, count=0), EmptyBatch)
    cluster.auto_flush = False
    stage(cluster, batch=bytes(60))
    problem(cluster, stage(cluster, number=1, batch=bytes(60)), Busy)
    assert cluster.engine("n1").pending_bytes == 60
    cluster.auto_flush = True
    cluster.settle()
    assert cluster.engine("n1").pending_bytes == 0


def test_the_rows_of_a_publish_count_among_what_waits() -> None:
    cluster = led(1, config(batch_bytes=100, pending_bytes=100, uncommitted_bytes=100_000))
    problem(cluster, operate(cluster, publishing(0, (0, 1, 7, 7))), Busy)


def test_a_follower_refuses() -> None:
    cluster = led(3)
    problem(cluster, stage(cluster, name="n2"), NotLeader)
    problem(cluster, operate(cluster, publishing(0), "n2"), NotLeader)


# -- leaders that change ---------------------------------------------------------------------------


def test_what_was_staged_under_one_leader_is_published_by_the_next() -> None:
    cluster = led(3)
    stage(cluster, count=2)
    cluster.run(5)
    cluster.crash("n1")
    run_until(cluster, lambda: cluster.leader() is not None, 10 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    cluster.run(5)
    token = operate(cluster, publishing(0, (0, 1, 1, 2)), leader)
    cluster.run(5)
    receipt = cluster.answers[token]
    assert isinstance(receipt, Receipt)
    assert receipt.count == 2
    (staged,) = entries(cluster, EntryKind.STAGE, leader)
    assert decode_label(staged).attempt == uuid(1)


def test_a_publish_whose_leader_is_lost_has_an_unknown_outcome() -> None:
    cluster = led(3)
    stage(cluster)
    cluster.run(5)
    cluster.isolate("n1")
    token = operate(cluster, publishing(0, (0, 1, 1, 1)))
    cluster.turn("n1", [Deliver(envelope(cluster, "n2", "n1", heartbeat_reply(9)))])
    problem(cluster, token, OutcomeUnknown)


def test_limits_are_the_leaders_own_and_applying_asks_none() -> None:
    wide, tight = config(), config(staged_chunks=1)
    cluster = led(3, wide)
    stage(cluster)
    stage(cluster, number=1)
    follower = cluster.engine("n2")
    follower.config = replace(follower.config, limits=tight.limits)
    cluster.run(5)
    assert follower.state.staging.attempts.chunks == 2


def test_there_must_be_room_for_the_entry_that_drops_what_is_staged() -> None:
    cluster = led(1)
    for number in range(50):
        stage(cluster, number=number)
    least = cluster.config.storage.reserve_bytes + ENTRY_OVERHEAD + NAMES_BYTES + 50 * DROP_BYTES
    cluster.turn("n1", [Room(least - 1, "no space")])
    problem(cluster, operate(cluster, Abort(APP, 0)), DiskFull)
    cluster.turn("n1", [Room(least)])
    assert isinstance(cluster.answers[operate(cluster, Abort(APP, 0))], Aborted)


def test_names_count_among_what_an_entry_takes_of_the_disk() -> None:
    cluster = led(1)
    least = cluster.config.storage.reserve_bytes + ENTRY_OVERHEAD + NAMES_BYTES + 8
    cluster.turn("n1", [Room(least - 1, "no space")])
    problem(cluster, stage(cluster), DiskFull)
    cluster.turn("n1", [Room(least)])
    token = next(_tokens)
    label = ChunkLabel("a" * 255, uuid(1), 0, 0, uuid(1), 0)
    cluster.turn("n1", [Stage(token, label, b"batch...", 1)])
    assert isinstance(cluster.answers[token], ChunkStaged)
    (entry,) = entries(cluster, EntryKind.STAGE)
    assert entry.size <= ENTRY_OVERHEAD + NAMES_BYTES + 8
