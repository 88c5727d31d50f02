"""Proposals: what is refused and why, what shares an entry, and when an outcome is unknown."""

from __future__ import annotations

import pytest

from cluster_rig import append_at_once, elect, envelope, led, log_of, raft_state, receipt, refused
from core_rig import ELECTION_TICKS, config, heartbeat_reply
from quorate.commands import Receipt
from quorate.entry import RUNS_MAX
from quorate.entry_body import pack_runs, unpack_batches
from quorate.errors import (
    Busy,
    EmptyBatch,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    TooLarge,
)
from quorate.replica.engine_io import Deliver, Flushed, Propose
from quorate.state.judge import UNCONDITIONAL
from quorate.types import EntryKind, NodeId, Role
from verification.hand import HandCluster


def stuck(**limits: int) -> HandCluster:
    """A group of one that leads and whose disk does nothing from now on: nothing commits."""
    cluster = led(1, config(**limits))
    cluster.auto_flush = False
    return cluster


def unstick(cluster: HandCluster) -> None:
    cluster.auto_flush = True
    cluster.settle()
    cluster.auto_flush = False


# -- limits ------------------------------------------------------------------------------------


def test_pending_appends_are_bounded() -> None:
    cluster = stuck(pending_appends=3)
    waiting = [cluster.propose("n1", b"x") for _ in range(3)]
    message = refused(cluster, cluster.propose("n1", b"x"), Busy)
    assert message == "3 appends wait already (limits.pending_appends)"
    assert cluster.engine("n1").pending_appends == 3
    unstick(cluster)
    assert all(token in cluster.answers for token in waiting)
    assert cluster.engine("n1").pending_appends == 0
    assert cluster.propose("n1", b"x") not in cluster.answers


def test_pending_bytes_are_bounded() -> None:
    cluster = stuck(pending_bytes=100, batch_bytes=100)
    cluster.propose("n1", b"x" * 60)
    cluster.propose("n1", b"x" * 40)
    assert cluster.engine("n1").pending_bytes == 100
    message = refused(cluster, cluster.propose("n1", b"x"), Busy)
    assert message == "100 bytes wait already (limits.pending_bytes)"
    unstick(cluster)
    assert cluster.engine("n1").pending_bytes == 0
    assert cluster.propose("n1", b"x" * 100) not in cluster.answers


def test_bytes_above_the_commit_are_bounded() -> None:
    """They count as they stand in the log: a frame is larger than its batch."""
    cluster = stuck(uncommitted_bytes=1000, batch_bytes=1000)
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    accepted = 0
    while (token := cluster.propose("n1", b"x" * 50)) not in cluster.answers:
        accepted += 1
    assert "(limits.uncommitted_bytes)" in refused(cluster, token, Busy)
    assert 1000 - 50 < leader.uncommitted_bytes <= 1000 + 64 + 8
    assert accepted == 8
    unstick(cluster)
    assert leader.uncommitted_bytes == 0
    assert cluster.propose("n1", b"x" * 50) not in cluster.answers


def test_what_arrives_in_one_turn_is_bounded_too() -> None:
    cluster = stuck(uncommitted_bytes=100, batch_bytes=100)
    tokens = append_at_once(cluster, "n1", [b"x" * 60, b"x" * 60])
    assert tokens[0] not in cluster.answers
    refused(cluster, tokens[1], Busy)


@pytest.mark.parametrize("limit", ["pending_appends", "pending_bytes", "uncommitted_bytes"])
def test_a_refused_append_leaves_no_trace(limit: str) -> None:
    cluster = stuck(**{"batch_bytes": 1, limit: 1})
    before = raft_state(cluster, "n1").log.last_index
    tokens = append_at_once(cluster, "n1", [b"a", b"b"])
    assert limit in refused(cluster, tokens[-1], Busy)
    assert raft_state(cluster, "n1").log.last_index == before + 1
    assert cluster.engine("n1").pending_appends == 1


def test_a_batch_is_as_large_as_its_limit_and_no_larger() -> None:
    cluster = led(1, config(batch_bytes=100))
    receipt(cluster, cluster.propose("n1", b"x" * 100))
    message = refused(cluster, cluster.propose("n1", b"x" * 101), TooLarge)
    assert message == "batch of 101 bytes, limit 100 (limits.batch_bytes)"


@pytest.mark.parametrize("count", [0, -1])
def test_a_batch_without_records_is_refused(count: int) -> None:
    cluster = led(1)
    assert "at least one record" in refused(
        cluster, cluster.propose("n1", b"x", count=count), EmptyBatch
    )
    assert cluster.engine("n1").state.end == 0


@pytest.mark.parametrize("counts", [[1 << 32], [1 << 31, 1 << 31], [1 << 80]])
def test_more_records_than_an_entry_can_count_are_no_reason_to_crash(counts: list[int]) -> None:
    """The header has 32 bits for them: refused, or spread over entries, but answered."""
    cluster = led(1)
    proposals = [Propose(-token, b"x", count) for token, count in enumerate(counts, start=1)]
    cluster.turn("n1", proposals)
    cluster.settle()
    for item in proposals:
        answer = cluster.answers[item.token]
        assert isinstance(answer, Receipt | TooLarge | InvalidArgument)
    assert cluster.leader() == "n1"


# -- who may, and when -------------------------------------------------------------------------


def named(cluster: HandCluster, token: int) -> NodeId | None:
    """The leader that the refusal of a request names."""
    answer = cluster.answers[token]
    assert isinstance(answer, NotLeader)
    return answer.leader


def test_a_follower_refuses_and_names_the_leader() -> None:
    cluster = led(3)
    token = cluster.propose("n2", b"x")
    assert refused(cluster, token, NotLeader) == "n2 does not lead; leader: n1"
    assert named(cluster, token) == "n1"


def test_who_knows_no_leader_says_so() -> None:
    cluster = HandCluster(3)
    token = cluster.propose("n2", b"x")
    assert refused(cluster, token, NotLeader) == "n2 does not lead; leader: none"
    assert named(cluster, token) is None


def test_an_expected_term_is_that_term_or_nothing() -> None:
    cluster = led(1)
    receipt(cluster, cluster.propose("n1", b"x", term=1))
    for term in (0, 2):
        token = cluster.propose("n1", b"x", term=term)
        message = refused(cluster, token, NotLeader)
        assert message == f"term is 1, expected {term}; leader: n1"
        assert named(cluster, token) == "n1"


def new_leader() -> HandCluster:
    """n1 just won; its noop is not committed yet, and its followers' acks lie on the table."""
    cluster = HandCluster(3)
    cluster.tick("n1")
    while cluster.engine("n1").role is not Role.LEADER:
        cluster.deliver_all()
    return cluster


def test_nothing_is_logged_before_the_noop_is_applied() -> None:
    cluster = new_leader()
    token = cluster.propose("n1", b"x")
    assert [entry.kind for entry in log_of(cluster, "n1")] == [EntryKind.NOOP]
    assert token not in cluster.answers
    assert cluster.engine("n1").pending_appends == 1
    cluster.settle()
    cluster.run(1)
    assert receipt(cluster, token).index == 2


def test_a_proposal_that_comes_with_the_winning_vote_waits_like_any_other() -> None:
    """The leader was elected by an input of the same turn: it leads, so it does not say
    NOT_LEADER."""
    cluster = HandCluster(1, auto_flush=False)
    cluster.tick()
    flush = cluster.nodes[NodeId("n1")].flush
    assert flush is not None
    cluster.nodes[NodeId("n1")].store.write(flush)
    cluster.turn("n1", [Flushed(flush.number), Propose(1, b"x", 1)])
    assert cluster.engine("n1").role is Role.LEADER
    cluster.settle()
    cluster.run(1)
    receipt(cluster, 1)


def depose(cluster: HandCluster) -> None:
    cluster.turn("n1", [Deliver(envelope(cluster, "n2", "n1", heartbeat_reply(9)))])
    assert cluster.engine("n1").role is Role.FOLLOWER


def test_what_was_not_logged_failed_and_what_was_logged_is_unknown() -> None:
    cluster = new_leader()
    early = cluster.propose("n1", b"x")
    depose(cluster)
    assert refused(cluster, early, NotLeader) == "leadership ended before logging"
    assert named(cluster, early) is None
    assert (cluster.engine("n1").pending_appends, cluster.engine("n1").pending_bytes) == (0, 0)

    cluster = led(3)
    late = cluster.propose("n1", b"x")
    depose(cluster)
    assert refused(cluster, late, OutcomeUnknown) == (
        "index 2 was logged in term 1, which ended before its commit was known"
    )
    assert (cluster.engine("n1").pending_appends, cluster.engine("n1").pending_bytes) == (0, 0)


def test_a_proposal_of_the_turn_that_ends_the_leadership_is_not_logged() -> None:
    cluster = led(3)
    before = raft_state(cluster, "n1").log.last_index
    ended = Deliver(envelope(cluster, "n2", "n1", heartbeat_reply(9)))
    cluster.turn("n1", [Propose(-1, b"x", 1), ended, Propose(-2, b"x", 1)])
    refused(cluster, -1, NotLeader)
    refused(cluster, -2, NotLeader)
    assert raft_state(cluster, "n1").log.last_index == before


def test_an_unknown_outcome_may_be_a_success() -> None:
    """Why it is not called a failure: the next leader has the entry and commits it."""
    cluster = led(3)
    token = cluster.propose("n1", b"x")
    cluster.deliver_all()  # the followers have it, the leader does not know
    cluster.table.clear()
    depose(cluster)
    refused(cluster, token, OutcomeUnknown)
    cluster.isolate("n1")
    elect(cluster, "n2", 4 * ELECTION_TICKS)
    assert cluster.engine("n2").state.end == 1


# -- what an entry holds -----------------------------------------------------------------------


def test_proposals_of_one_turn_share_an_entry_with_dense_offsets() -> None:
    cluster = led(1)
    proposals = [Propose(-1, b"aa", 2), Propose(-2, b"b", 1), Propose(-3, b"", 4)]
    cluster.turn("n1", proposals)
    cluster.settle()
    assert [receipt(cluster, item.token) for item in proposals] == [
        Receipt(0, 2, 2, 1, 1),
        Receipt(2, 1, 2, 1, 1),
        Receipt(3, 4, 2, 1, 1),
    ]
    entry = log_of(cluster, "n1")[-1]
    assert unpack_batches(entry) == [(b"aa", 2), (b"b", 1), (b"", 4)]
    assert (entry.base_offset, entry.count, entry.runs) == (0, 7, 3)
    assert cluster.engine("n1").state.end == 7


@pytest.mark.parametrize(
    ("sizes", "entries"),
    [
        ([100], [1]),
        ([50, 50], [2]),
        ([50, 51], [1, 1]),
        ([50, 50, 50], [2, 1]),
        ([10, 500, 10, 10], [1, 1, 2]),
        ([0] * 5 + [100], [6]),
    ],
)
def test_an_entry_is_filled_up_to_its_limit(sizes: list[int], entries: list[int]) -> None:
    """A batch that is larger than the limit goes alone; order is kept."""
    cluster = led(1, config(entry_bytes=100))
    tokens = append_at_once(cluster, "n1", [bytes(size) for size in sizes])
    cluster.settle()
    assert [entry.runs for entry in log_of(cluster, "n1")[1:]] == entries
    assert [receipt(cluster, token).offset for token in tokens] == list(range(len(sizes)))


def test_an_entry_has_no_more_runs_than_its_header_can_count() -> None:
    cluster = led(1)
    together = pack_runs([(0, 1)] * 4000)
    whole = RUNS_MAX // 4000
    proposals = [
        Propose(-number, b"", 4000, None, UNCONDITIONAL, together) for number in range(1, 20)
    ]
    cluster.turn("n1", proposals)
    cluster.settle()
    runs = [entry.runs for entry in log_of(cluster, "n1")[1:]]
    assert runs == [whole * 4000, (len(proposals) - whole) * 4000]
    assert cluster.engine("n1").state.end == 4000 * len(proposals)


def test_offsets_go_on_over_elections() -> None:
    """Noops and lost leaderships take none."""
    cluster = led(3)
    offsets = []
    for name in ("n1", "n2", "n3"):
        if cluster.leader() != name:
            cluster.crash(cluster.leader() or "")
            elect(cluster, name)
            for other, node in cluster.nodes.items():
                if node.engine is None:
                    cluster.restart(other)
        token = cluster.propose(name, b"x")
        cluster.run(5)
        offsets.append(receipt(cluster, token).offset)
    assert offsets == [0, 1, 2]


def test_append_times_run_on_when_a_clock_was_ahead() -> None:
    """Else nothing would grow older, and nothing expire, until real time has caught up."""
    cluster = led(1)
    engine, tick_ms = cluster.engine("n1"), cluster.config.timing.tick_ms
    year_us = 365 * 86_400 * 1_000_000
    now_ms = 1_000_000
    effects = engine.turn([Propose(1, b"x", 1)], now_ms, now_ms * 1000 + year_us)
    assert effects.flush is not None
    for _ in range(100):
        now_ms += tick_ms
        engine.turn([], now_ms, now_ms * 1000)
    engine.turn([Propose(2, b"y", 1)], now_ms, now_ms * 1000)
    before, after = log_of(cluster, "n1")[-2:]
    # Whether the last tick was a whole one is not known.
    assert after.append_time - before.append_time == 99 * tick_ms * 1000


def test_a_clock_that_is_right_is_not_overtaken_by_ticks() -> None:
    """Else entries of the same moment, by ticks, would have one time, and could not be told apart
    by it."""
    cluster = led(1)
    engine, tick_ms = cluster.engine("n1"), cluster.config.timing.tick_ms
    moments = range(1_000_000 + tick_ms - 1, 1_000_000 + 20 * tick_ms, 3)
    for now_ms in moments:
        effects = engine.turn([Propose(now_ms, b"x", 1)], now_ms, now_ms * 1000)
        assert effects.flush is not None
        engine.turn([Flushed(effects.flush.number)], now_ms, now_ms * 1000)
    times = [entry.append_time for entry in log_of(cluster, "n1")[1:]]
    assert times == [now_ms * 1000 for now_ms in moments]


def test_append_times_never_go_back() -> None:
    cluster = led(1)
    engine = cluster.engine("n1")
    times = []
    for wall_us in (5_000_000, 3_000_000, 7_000_000):
        effects = engine.turn([Propose(1, b"x", 1)], 0, wall_us)
        assert effects.flush is not None
        engine.turn([Flushed(effects.flush.number)], 0, wall_us)
        times.append(log_of(cluster, "n1")[-1].append_time)
    assert times == [5_000_000, 5_000_000, 7_000_000]


def test_every_refusal_has_a_code() -> None:
    cluster = stuck(batch_bytes=10, pending_appends=1)
    cluster.propose("n1", b"x")
    codes = []
    for batch, count in ((b"x", 0), (b"x" * 11, 1), (b"x", 1)):
        answer = cluster.answers[cluster.propose("n1", batch, count=count)]
        assert isinstance(answer, QuorateError)
        codes.append(answer.code)
    assert codes == ["EMPTY_BATCH", "TOO_LARGE", "BUSY"]
