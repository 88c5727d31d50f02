"""The bugs and complaints of SOFAJRaft: what went wrong there must come out right here.

Fixed there:

=================  =================================================================
#1241 #1243 #1245  test_jraft_1243_a_vote_leaves_after_its_flush,
                   test_jraft_1245_a_candidate_asks_after_its_flush,
                   test_jraft_1241_the_own_vote_counts_after_its_flush
#34                test_jraft_34_no_stale_read_after_the_partition_flips
#1246              test_jraft_1246_an_entry_that_cannot_be_applied_stops_the_replica
#317               cannot occur here: there is no rollback of what was applied
#1049              test_jraft_1049_a_group_of_one_knows_its_commits_after_a_restart
#838 #842 #847     test_jraft_838_appends_flow_after_any_pause
#460               test_jraft_460_one_lost_message_costs_one_question
#754 #830 #969     test_jraft_969_heartbeats_are_answered_while_the_disk_hangs
#548 #79 #80       come with filling: there is no snapshot yet
#461 #528          test_jraft_461_what_a_peer_said_in_an_earlier_boot_is_forgotten
#1188 #806 #649    come with storage: there are no segment files yet
#1249              test_jraft_1249_a_read_fails_only_without_a_majority
#385               test_jraft_385_a_voter_that_starts_late_is_fed; learners come with membership
=================  =================================================================

Open there, or by design:

=================  =================================================================
#1271              test_jraft_1271_replication_goes_on_over_links_of_any_length,
                   test_jraft_1271_reads_on_followers_succeed_over_links_of_any_length,
                   test_jraft_1271_replication_that_stands_still_while_heartbeats_succeed_is_noticed
#952               test_jraft_952_a_wiped_node_is_not_its_old_self; replacing it comes with
                   membership
#868 #735          come with filling: there is no snapshot yet
#1232 #1103        test_jraft_1232_reads_do_not_hold_up_appends
#135 #412 #464     test_jraft_135_an_idle_group_only_beats, for #576 too; merged beats come with
                   the network
#940 #1117         test_jraft_940_questions_are_not_judged_by_membership
#560 #598 #989     come with learners
#1040, witness     not planned: a majority is a majority
#1053              comes with producers
#507 #483          test_jraft_507_a_restart_replays_into_the_same_state
#310 #453 #577     cannot occur here: no native store; the same for #646 #914 #1167
#1265              cannot occur here: no object serialisation
#716 #1059         test_jraft_716_a_paused_follower_hears_its_leader_before_it_judges,
                   test_jraft_716_a_paused_leader_is_not_deposed_by_its_own_pause
#802               timing.election_ms reaches ten minutes:
                   test_a_field_takes_its_bounds_and_nothing_beyond
#103 #133          come with the server
joint consensus    comes with membership
back-off by one    test_dledger_5_1_2_comparing_takes_one_question_per_term
meta checksum      test_dledger_5_2_3_a_vote_is_on_disk_before_it_is_given
=================  =================================================================
"""

from __future__ import annotations

import pytest

from cluster_rig import (
    append_many,
    assert_same,
    elect,
    envelope,
    led,
    log_of,
    progress,
    raft_state,
    read_answer,
    receipt,
    run_until,
    settle_losing,
)
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    READ_TICKS,
    RESEND_TICKS,
    CoreRig,
    ack,
    append,
    config,
    heartbeat_reply,
    leading,
    only,
    pre_vote,
    vote,
)
from quorate.entry import make_entry
from quorate.errors import InvariantBroken, NoQuorum
from quorate.raft.messages import (
    Append,
    Compare,
    HeartbeatReply,
    PreVoteReply,
    Vote,
    VoteReply,
)
from quorate.raft.output import Refusal
from quorate.replica.engine_io import Deliver
from quorate.types import EntryKind, Index, NodeId, Role, Term
from verification.disk.inode import LOST
from verification.disk.store import Store
from verification.hand import HandCluster

# -- votes -------------------------------------------------------------------------------------


def test_jraft_1243_a_vote_leaves_after_its_flush() -> None:
    """JRaft granted votes before they were on disk. Here the answer is not there to be sent."""
    cluster = HandCluster(3, auto_flush=False)
    cluster.turn("n2", [Deliver(envelope(cluster, "n3", "n2", vote(1)))])
    assert raft_state(cluster, "n2").vote == "n3"
    assert cluster.table == []
    cluster.flush("n2")
    (answer,) = cluster.table
    assert isinstance(answer.message, VoteReply)
    record = cluster.nodes[NodeId("n2")].store.durable.vote
    assert record is not None
    assert (record.term, record.vote) == (1, "n3")


def candidate_without_a_disk() -> HandCluster:
    """n1 has won the pre-vote; its term and vote are not on disk yet."""
    cluster = HandCluster(3, auto_flush=False)
    cluster.tick("n1")
    cluster.deliver_all()
    cluster.deliver_all()
    assert cluster.engine("n1").role is Role.CANDIDATE
    return cluster


def test_jraft_1245_a_candidate_asks_after_its_flush() -> None:
    """JRaft asked for votes in a term that a crash could make it forget. Here it asks later."""
    cluster = candidate_without_a_disk()
    assert cluster.table == []
    cluster.flush("n1")
    assert [type(item.message) for item in cluster.table] == [Vote, Vote]


def test_jraft_1241_the_own_vote_counts_after_its_flush() -> None:
    """The same for the vote that a candidate gives itself, in a group of any size."""
    for size in (1, 3):
        rig = CoreRig(size)
        rig.campaign()
        for peer in rig.peers[:1]:
            rig.hear(peer, VoteReply(Term(1), granted=True))
        rig.core.persisted(Index(0), Term(0))  # a flush that began before the campaign
        assert rig.role() is Role.CANDIDATE
        rig.persist()
        assert rig.role() is Role.LEADER


# -- reads -------------------------------------------------------------------------------------


def test_jraft_34_no_stale_read_after_the_partition_flips() -> None:
    """JRaft's lease let an old leader answer reads after another had been elected and the network
    flipped back. Here a read needs a majority's word that is younger than the read."""
    cluster = led(3)
    cluster.isolate("n1")
    elect(cluster, "n2")
    newer = cluster.propose("n2", b"newer")
    cluster.settle()
    done = receipt(cluster, newer)
    cluster.heal()
    cluster.isolate("n2")  # and now the other way round
    token = cluster.read("n1")
    run_until(cluster, lambda: token in cluster.answers, READ_TICKS + 1)
    answer = cluster.answers[token]
    assert isinstance(answer, NoQuorum) or read_answer(cluster, token).index >= done.index


@pytest.mark.parametrize("size", range(2, 8))
def test_jraft_1249_a_read_fails_only_without_a_majority(size: int) -> None:
    """JRaft gave a read up after too few failures. Here any minority may be silent."""
    cluster = led(size)
    minority = (size - 1) // 2
    for name in cluster.voters[size - minority :]:
        cluster.crash(name)
    token = cluster.read("n1")
    cluster.settle()
    read_answer(cluster, token)
    if minority < size - 1:
        cluster.crash(cluster.voters[size - minority - 1])
        late = cluster.read("n1")
        cluster.run(READ_TICKS)
        assert type(cluster.answers[late]) is NoQuorum


def test_jraft_1232_reads_do_not_hold_up_appends() -> None:
    """JRaft's reads and its catching-up followers contended for one lock. Here an append is
    answered without a tick, whatever is read and whoever catches up."""
    cluster = led(3, config(append_entries=1, window_messages=1))
    cluster.isolate("n3")
    append_many(cluster, "n1", 50)
    cluster.heal()
    cluster.tick()
    for _ in range(20):
        reads = [cluster.read(name) for name in cluster.voters]
        token = cluster.propose("n1", b"x")
        settle_losing(cluster, lambda item: item.target == "n3")
        receipt(cluster, token)
        read_answer(cluster, reads[0])


# -- applying and restarting -------------------------------------------------------------------


def test_jraft_1246_an_entry_that_cannot_be_applied_stops_the_replica() -> None:
    """JRaft's apply thread stopped for good while the node went on. Here the replica halts where
    everybody sees it, with its reason."""
    cluster = led(3)
    before = log_of(cluster, "n2")[-1].position
    bad = make_entry(before, Term(1), EntryKind.DATA, b"x", base_offset=99, count=1)
    message = append(1, [bad], before, committed=2)
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", message))])
    node = cluster.nodes[NodeId("n2")]
    assert isinstance(node.halted, InvariantBroken)
    assert node.engine is None


def test_jraft_1049_a_group_of_one_knows_its_commits_after_a_restart() -> None:
    """JRaft started a group of one with commit index 0 and stayed there. Here the noop of the new
    term commits everything before it, without a new append."""
    cluster = led(1)
    append_many(cluster, "n1", 5)
    cluster.crash("n1", lambda: LOST)
    cluster.restart("n1")
    assert raft_state(cluster, "n1").committed < 6  # what the disk happens to prove
    run_until(cluster, lambda: cluster.leader() == "n1", 2 * ELECTION_TICKS)
    assert (raft_state(cluster, "n1").committed, cluster.engine("n1").state.end) == (7, 5)


def test_jraft_507_a_restart_replays_into_the_same_state() -> None:
    """JRaft left it to users to clear their state before the replay. Here the state is made anew
    from the log, and is the same."""
    cluster = led(3)
    append_many(cluster, "n1", 5)
    cluster.run(1)
    before = cluster.engine("n3").state.digest()
    cluster.crash("n3")
    cluster.restart("n3")
    cluster.run(2 * HEARTBEAT_TICKS)
    assert cluster.engine("n3").state.digest() == before
    assert_same(cluster)


# -- replication -------------------------------------------------------------------------------


@pytest.mark.parametrize("ticks", [0, 1, HEARTBEAT_TICKS, ELECTION_TICKS, 10 * ELECTION_TICKS])
def test_jraft_838_appends_flow_after_any_pause(ticks: int) -> None:
    """JRaft's replicator slept until a waiter woke it, and the waiter could get lost. Here there
    is nothing to wake: a turn with a new entry sends it."""
    cluster = led(3)
    for _ in range(3):
        cluster.run(ticks)
        token = cluster.propose("n1", b"x")
        assert [item.target for item in cluster.table] == ["n2", "n3"]
        cluster.settle()
        receipt(cluster, token)


def test_jraft_460_one_lost_message_costs_one_question() -> None:
    """JRaft answered a failure in its pipeline with a storm of probes. Here the first refusal of
    a window starts one question, and those of the rest are put aside."""
    cluster = led(3, config(append_entries=1))
    for number in range(100):
        cluster.propose("n1", b"%d" % number)
    cluster.take(
        lambda item: (
            isinstance(item.message, Append) and (item.target, item.message.prev.index) == ("n3", 1)
        )
    )
    cluster.deliver_all()  # 99 messages over a gap: 99 refusals
    asked = 0
    while cluster.table:
        asked += sum(isinstance(item.message, Compare) for item in cluster.table)
        cluster.deliver_all()
    assert asked == 1
    cluster.run(1)
    assert_same(cluster)


def test_jraft_969_heartbeats_are_answered_while_the_disk_hangs() -> None:
    """JRaft's heartbeats waited behind a full queue and the leader was deposed. Here a follower
    whose disk hangs answers them, so neither side thinks the other dead."""
    cluster = led(3)
    cluster.auto_flush = False
    cluster.cut("n2", "n1")  # n3 is the majority
    cluster.propose("n1", b"x")
    replies = 0
    for _ in range(3 * ELECTION_TICKS):
        cluster.tick()
        cluster.deliver_all()
        replies += sum(
            isinstance(item.message, HeartbeatReply) and item.source == "n3"
            for item in cluster.table
        )
        settle_losing(cluster, lambda _: False, hung=("n3",))
    assert replies >= 3 * ELECTION_TICKS // HEARTBEAT_TICKS
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", 1)


def test_jraft_461_what_a_peer_said_in_an_earlier_boot_is_forgotten() -> None:
    """JRaft kept one context for a peer over several connections. Here what a peer acked belongs
    to its boot: another boot starts at nothing, and a late word of the earlier one is refused."""
    rig = leading(5)
    rig.propose()
    rig.persist()
    rig.hear("n2", ack(1, 2), boot=1)
    assert rig.progress("n2").match == 2
    rig.hear("n2", heartbeat_reply(1), boot=2)
    assert rig.progress("n2").match == 0
    rig.hear("n2", ack(1, 2), boot=1)
    assert (rig.progress("n2").match, rig.refused(Refusal.EARLIER_BOOT)) == (0, 1)
    rig.hear("n3", ack(1, 2))
    assert rig.raft.committed == 1


def test_jraft_385_a_voter_that_starts_late_is_fed() -> None:
    """JRaft fed a learner only if it was there when the leader began. Here whoever comes later is
    found by the next question."""
    cluster = HandCluster(3)
    cluster.crash("n3")
    cluster.run(2)
    append_many(cluster, "n1", 10)
    cluster.run(5 * ELECTION_TICKS)
    cluster.restart("n3")
    cluster.run(RESEND_TICKS + 1)
    assert_same(cluster)


def test_jraft_952_a_wiped_node_is_not_its_old_self() -> None:
    """JRaft could be stuck with a follower whose data had been wiped, and would have counted its
    vote. Here a node that forgot its boots is heard neither as voter nor as copy."""
    cluster = led(3)
    cluster.crash("n3")
    cluster.restart("n3")
    cluster.run(2 * HEARTBEAT_TICKS)
    cluster.crash("n3")
    append_many(cluster, "n1", 3)
    cluster.nodes[NodeId("n3")].store = Store("n3")
    cluster.restart("n3")
    cluster.run(2 * ELECTION_TICKS)
    assert raft_state(cluster, "n1").refused[Refusal.EARLIER_BOOT] > 0
    assert progress(cluster, "n3").match == 1  # what the old self acked
    assert cluster.leader() == "n1"
    token = cluster.propose("n1", b"x")
    cluster.settle()
    assert receipt(cluster, token).synced == 2


# -- membership ----------------------------------------------------------------------------------


def test_jraft_940_questions_are_not_judged_by_membership() -> None:
    """JRaft's member that missed a change ignored the votes of new members, and the group had no
    majority left. Here a question is judged by group, term and log, whoever asks."""
    rig = CoreRig(3)
    assert only(rig.hear("n9", pre_vote(0)), PreVoteReply).granted
    assert only(rig.hear("n9", vote(1)), VoteReply).granted
    assert rig.hear("n9", VoteReply(Term(1), granted=True)) == []
    assert rig.refused(Refusal.UNKNOWN_PEER) == 1
