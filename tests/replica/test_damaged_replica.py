"""A replica whose disk lost something: what it may still say, and how it gets well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import append_many, envelope, led, raft_state, settle_losing
from core_rig import ELECTION_TICKS, READ_TICKS, config, only, pick, vote
from quorate.errors import Corrupt, Damaged, NotLeader
from quorate.raft.messages import PreVote, PreVoteReply, ReadIndexReply, keeps_order
from quorate.raft.output import EventKind, Refusal
from quorate.storage.layout import PAGE, segment_name
from quorate.types import Index, NodeId, Role

if TYPE_CHECKING:
    from verification.disk.simulated import SimulatedDisk
    from verification.hand import HandCluster

NEWEST = segment_name(1)


def with_entries(count: int = 5) -> HandCluster:
    """n1 leads; everybody has its noop and ``count`` entries more."""
    cluster = led(3)
    append_many(cluster, "n1", count)
    cluster.run(2)
    return cluster


def disk_of(cluster: HandCluster, name: str) -> SimulatedDisk:
    return cluster.nodes[NodeId(name)].store.disk


def lose_the_tail(cluster: HandCluster, name: str) -> None:
    """The node comes back with a segment that ends after its first entries."""
    cluster.crash(name)
    disk_of(cluster, name).shorten(NEWEST, 3 * PAGE)
    cluster.restart(name)


def spoil_a_body(cluster: HandCluster, name: str, index: int) -> None:
    node = cluster.nodes[NodeId(name)]
    assert node.store.log is not None
    _, end = node.store.log.segments[0].rows.frame(Index(index))
    cluster.crash(name)
    node.store.disk.spoil(NEWEST, end - 1, b"\xff")
    cluster.restart(name)


# -- a lost tail -------------------------------------------------------------------------------


def test_a_node_that_lost_its_tail_is_unsure_and_says_so() -> None:
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    assert not raft_state(cluster, "n2").sure
    assert raft_state(cluster, "n2").log.last_index < 6
    cluster.tick("n2")
    assert EventKind.UNSURE in {event.kind for event in cluster.nodes[NodeId("n2")].events}


@pytest.mark.parametrize("size", [1, 2])
def test_without_a_third_voter_a_lost_end_is_a_safe_halt_and_says_what_to_do(size: int) -> None:
    """Nobody can say what is committed: no leader, no answer, no new entry, over restarts."""
    cluster = led(size)
    append_many(cluster, "n1", 5)
    lose_the_tail(cluster, "n1")
    last = raft_state(cluster, "n1").log.last
    for _ in range(3):
        cluster.run(10 * ELECTION_TICKS)
        assert cluster.leader() is None
        assert not raft_state(cluster, "n1").sure
        assert raft_state(cluster, "n1").log.last == last
        token = cluster.propose("n1", b"more")
        cluster.run(2)
        assert isinstance(cluster.answers[token], NotLeader)
        unsure = [
            event for event in cluster.nodes[NodeId("n1")].events if event.kind is EventKind.UNSURE
        ]
        assert unsure[-1].index == last.index
        assert "entries after this index were durable here and are lost" in unsure[-1].detail
        assert "no leader until then: keep the data directory" in unsure[-1].detail
        cluster.crash("n1")
        cluster.restart("n1")


def test_with_three_voters_a_lost_end_is_no_reason_to_act() -> None:
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    cluster.tick("n2")
    (detail,) = {
        event.detail
        for event in cluster.nodes[NodeId("n2")].events
        if event.kind is EventKind.UNSURE
    }
    assert "keep the data directory" not in detail


def test_an_unsure_node_gives_no_vote_and_wants_none() -> None:
    """n1 and n2 had committed what n3 never got. n1 dies and n2 lost it: n3 must not lead."""
    cluster = led(3)
    cluster.isolate("n3")
    append_many(cluster, "n1", 5)
    cluster.crash("n1")
    lose_the_tail(cluster, "n2")
    cluster.heal()
    cluster.run(10 * ELECTION_TICKS)
    assert cluster.leader() is None
    assert not raft_state(cluster, "n2").sure
    assert raft_state(cluster, "n2").role is Role.FOLLOWER
    cluster.restart("n1")
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n2").sure


def test_an_unsure_node_answers_a_pre_vote_with_no_and_a_vote_with_nothing() -> None:
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    cluster.isolate("n1")
    cluster.tick("n3", 3 * ELECTION_TICKS)
    asked = cluster.take(lambda item: isinstance(item.message, PreVote))
    cluster.tick("n2", 3 * ELECTION_TICKS)
    assert not pick([(item.target, item.message) for item in cluster.table], PreVote)
    cluster.table.clear()
    for request in asked:
        cluster.deliver(request)
    said = [(item.target, item.message) for item in cluster.table if item.source == "n2"]
    assert not only(said[:1], PreVoteReply).granted
    ask = vote(9, raft_state(cluster, "n3").log.last)
    cluster.table.clear()
    cluster.deliver(envelope(cluster, "n3", "n2", ask))
    assert (cluster.table, raft_state(cluster, "n2").term) == ([], 1)
    assert raft_state(cluster, "n2").refused[Refusal.UNSURE] == 1


def test_a_node_is_sure_again_once_it_has_what_was_committed_after_it_came_back() -> None:
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n2").sure
    assert raft_state(cluster, "n2").log.last_index == 6
    record = cluster.nodes[NodeId("n2")].store.durable.vote
    assert record is not None
    assert not record.unsure


def test_a_node_is_sure_again_only_when_its_disk_has_what_was_committed() -> None:
    """What it has in memory it may lose again, and would have voted without it."""
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    cluster.auto_flush = False
    for _ in range(ELECTION_TICKS):
        cluster.tick()
        settle_losing(cluster, lambda _: False, hung=("n2",))
    assert raft_state(cluster, "n2").log.last_index == 6
    assert raft_state(cluster, "n2").committed == 6
    assert not raft_state(cluster, "n2").sure
    cluster.run(2)
    assert raft_state(cluster, "n2").sure


def test_the_answer_to_an_unsure_node_counts_however_late_its_entries_arrive() -> None:
    """On a slow line the entries up to the answer take longer than a client's read may take, and
    under load the next answer would name later ones."""
    cluster = with_entries()
    lose_the_tail(cluster, "n3")
    answers, late = [], []
    for now in range(4 * READ_TICKS):
        cluster.tick()
        if now % 10 == 0:
            cluster.propose("n1", b"load")
        while True:
            for name in cluster.voters:
                cluster.flush(name)
            slow = cluster.take(lambda one: one.target == "n3" and keeps_order(one.message))
            late += [(now + READ_TICKS + 50, one) for one in slow]
            answers += [one for one in cluster.table if isinstance(one.message, ReadIndexReply)]
            cluster.table += [one for due, one in late if due <= now]
            late = [(due, one) for due, one in late if due > now]
            if not cluster.table:
                break
            cluster.deliver_all()
    assert raft_state(cluster, "n3").sure
    assert len(answers) == 1


def test_an_unsure_node_is_not_sure_for_entries_that_may_not_be_the_committed_ones() -> None:
    """Its disk has an entry at the index of the answer, and not yet the one that was committed."""
    cluster = with_entries()
    lose_the_tail(cluster, "n3")
    node = raft_state(cluster, "n3")
    cluster.engine("n3").core._reads.unsure_until = node.log.last_index
    node.committed = Index(node.log.last_index - 1)
    cluster.turn("n3")
    assert not node.sure
    node.commit(node.log.last_index)
    cluster.turn("n3")
    assert node.sure


def test_an_unsure_node_stays_unsure_over_a_restart() -> None:
    """The bad tail was cut at the first open: only the vote record still knows of the loss."""
    cluster = with_entries()
    lose_the_tail(cluster, "n2")
    cluster.crash("n2")
    cluster.restart("n2")
    assert not raft_state(cluster, "n2").sure
    log = cluster.nodes[NodeId("n2")].store.log
    assert log is not None
    assert log.damage == []


def test_a_missing_newest_segment_makes_unsure_too() -> None:
    cluster = with_entries()
    cluster.crash("n2")
    disk_of(cluster, "n2").lose(NEWEST)
    cluster.restart("n2")
    assert not raft_state(cluster, "n2").sure
    log = cluster.nodes[NodeId("n2")].store.log
    assert log is not None
    assert [damage.file for damage in log.damage] == [NEWEST]
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n2").sure
    assert raft_state(cluster, "n2").log.last_index == 6


# -- a bad body --------------------------------------------------------------------------------


def test_an_entry_without_its_body_is_followed_and_acked_with() -> None:
    cluster = with_entries()
    spoil_a_body(cluster, "n2", 3)
    assert raft_state(cluster, "n2").without_body == {3}
    cluster.isolate("n3")  # every commit needs n2 now
    append_many(cluster, "n1", 2)
    cluster.run(2)
    assert raft_state(cluster, "n2").committed == 8


def test_it_is_neither_applied_nor_served() -> None:
    cluster = with_entries()
    spoil_a_body(cluster, "n2", 3)
    cluster.run(ELECTION_TICKS)
    assert cluster.engine("n2").applied == 2
    token = cluster.read("n2")
    assert isinstance(cluster.answers[token], Corrupt)
    assert "entry 3" in str(cluster.answers[token])


def test_a_state_that_a_loss_stops_is_kept_once_and_the_entries_behind_it_not_in_memory() -> None:
    cluster = led(3, config(log_memory_bytes=0))
    append_many(cluster, "n1", 5)
    cluster.run(2)
    spoil_a_body(cluster, "n2", 3)
    append_many(cluster, "n1", 5)
    cluster.run(ELECTION_TICKS)
    kept = cluster.engine("n2").checkpoint(Index(6))
    assert kept is not None
    assert kept.position.index == 2
    assert cluster.engine("n2").checkpoint(Index(6)) is None
    assert raft_state(cluster, "n2").log.window_bytes == raft_state(cluster, "n1").log.window_bytes


def test_a_node_that_cannot_apply_every_entry_does_not_lead_and_still_votes() -> None:
    cluster = with_entries()
    spoil_a_body(cluster, "n2", 3)
    cluster.run(2)
    cluster.crash("n1")
    cluster.isolate("n3")
    # Longer than any wait for a campaign, and shorter than that of a last resort.
    cluster.run(3 * ELECTION_TICKS)
    kinds = {event.kind for event in cluster.nodes[NodeId("n2")].events}
    assert EventKind.PRE_CAMPAIGNS not in kinds
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert cluster.leader() == "n3"
    assert raft_state(cluster, "n2").vote == "n3"


def test_a_truncation_takes_the_damage_with_it() -> None:
    cluster = led(3)
    cluster.isolate("n1")
    append_many(cluster, "n1", 3)
    spoil_a_body(cluster, "n1", 3)
    assert raft_state(cluster, "n1").without_body == {3}
    cluster.run(4 * ELECTION_TICKS)
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert raft_state(cluster, "n1").without_body == set()
    assert cluster.engine("n1").applied == raft_state(cluster, "n1").committed > 1


# -- a hole ------------------------------------------------------------------------------------


def lose(cluster: HandCluster, name: str, index: int) -> None:
    """The node goes down, and the page under an entry is lost."""
    node = cluster.nodes[NodeId(name)]
    assert node.store.log is not None
    start, _ = node.store.log.segments[0].rows.frame(Index(index))
    cluster.crash(name)
    node.store.disk.spoil(NEWEST, start - start % PAGE, bytes(PAGE))


@pytest.mark.parametrize("index", [6, 7], ids=["the last one that is", "one that may not be"])
def test_a_replica_with_a_hole_halts_and_names_it_unless_what_follows_is_committed(
    index: int,
) -> None:
    """No block says that more than entry 6 is committed. Where a log begins in memory must be
    known, and all that follows."""
    cluster = with_entries()
    for _ in range(3):
        cluster.propose("n1", b"not committed yet")
        cluster.deliver_all()
        cluster.table.clear()
    lose(cluster, "n2", index)
    with pytest.raises(Damaged, match=f"{NEWEST}, bytes .*entry {index}"):
        cluster.restart("n2")


def test_a_replica_with_a_hole_before_that_follows_and_serves_what_is_before_it() -> None:
    cluster = with_entries()
    lose(cluster, "n2", 3)
    cluster.restart("n2")
    # The block of entry 3 was to say that entry 2 is committed.
    assert (raft_state(cluster, "n2").without_body, cluster.engine("n2").applied) == ({2, 3}, 1)
    cluster.isolate("n3")  # every commit needs n2 now
    append_many(cluster, "n1", 2)
    cluster.run(2)
    assert raft_state(cluster, "n2").committed == 8
    token = cluster.read("n2")
    assert isinstance(cluster.answers[token], Corrupt)
    assert "entry 2" in str(cluster.answers[token])
    for _ in range(2):
        cluster.crash("n2")
        cluster.restart("n2")
    assert (raft_state(cluster, "n2").without_body, raft_state(cluster, "n2").log.last_index) == (
        {2, 3},
        8,
    )


def test_a_lost_entry_does_not_hide_the_records_before_it() -> None:
    """Nothing tells how many records it had: they begin behind those that are there."""
    cluster = with_entries()
    lose(cluster, "n2", 4)
    cluster.restart("n2")
    log = cluster.nodes[NodeId("n2")].store.log
    assert log is not None
    assert log.segments[0].holes == {3, 4}
    assert [log.index_at_offset(offset) for offset in range(4)] == [2, 4, 4, 5]
