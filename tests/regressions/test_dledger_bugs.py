"""The traps and unsafe corners of DLedger: what went wrong there must come out right here.

Traps of the version that the project began from:

==========  ==========================================================================
5.1.1       test_dledger_5_1_1_entries_of_an_earlier_term_are_not_committed_by_counting
5.1.2       test_dledger_5_1_2_comparing_takes_one_question_per_term,
            test_dledger_5_1_2_logs_without_a_common_entry_wipe_nothing_committed
5.1.3       test_dledger_5_1_3_a_repeated_push_is_answered_every_time
5.1.4       test_dledger_5_1_4_a_batch_that_is_half_there_is_completed;
            the stalled rolling upgrade cannot occur here: there is one release
5.1.5       test_dledger_5_1_5_indexes_beyond_31_bits_are_ordinary,
            test_dledger_5_1_5_a_lost_ack_delays_an_append_by_one_resend
5.1.6       test_dledger_5_1_6_the_append_at_the_very_commit_index_is_answered,
            test_dledger_5_1_6_truncating_leaves_no_commit_above_the_end,
            test_dledger_5_1_6_a_follower_that_is_behind_is_fed_without_a_new_append;
            the blocking control queue cannot occur here: no input of a turn waits
==========  ==========================================================================

Unsafe with respect to Raft:

==========  ==========================================================================
fsync       test_dledger_5_2_1_an_ack_waits_for_the_disk_and_survives_a_power_cut
errors      test_dledger_5_2_2_a_failed_flush_stops_the_replica
votes       test_dledger_5_2_3_a_vote_is_on_disk_before_it_is_given,
            test_dledger_5_2_3_without_a_readable_vote_record_nobody_starts
same term   test_dledger_5_2_4_a_restarted_leader_does_not_lead_its_term_again
old leader  test_dledger_5_2_5_every_message_of_an_old_leader_is_refused
truncation  test_dledger_5_2_6_committed_entries_are_never_truncated
vote data   test_dledger_5_2_7_votes_are_judged_by_the_log_as_it_is_now;
            the part about snapshots comes with filling
stale GET   test_dledger_5_2_8_a_leader_without_a_majority_answers_no_read
checksums   test_dledger_5_2_9_an_entry_that_breaks_the_chain_is_refused,
            test_dledger_5_2_9_a_torn_tail_is_cut_before_it_is_believed
retries     comes with producers: without one an ambiguous append is never resent
==========  ==========================================================================
"""

from __future__ import annotations

import pytest

from cluster_rig import (
    append_at_once,
    append_many,
    assert_same,
    elect,
    envelope,
    led,
    log_of,
    raft_state,
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
    append,
    chain,
    compare,
    config,
    converse,
    end,
    heartbeat,
    only,
    pick,
    vote,
)
from quorate.entry import decode_entry, make_entry
from quorate.errors import Damaged, DiskFailed, NoQuorum
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Envelope,
    Message,
    Mismatch,
    VoteReply,
)
from quorate.raft.output import Refusal
from quorate.raft.progress import Progress
from quorate.replica.engine_io import Deliver, FlushFailed
from quorate.storage.layout import VOTE_BYTES, VOTE_COPIES
from quorate.types import EntryKind, Index, NodeId, Position, Role, Term
from verification.disk.inode import KEPT, LOST, TORN
from verification.hand import HandCluster

# -- 5.1 ---------------------------------------------------------------------------------------


def of_own_term(item: Envelope) -> bool:
    message = item.message
    return isinstance(message, Append) and message.entries[-1].term == message.term


def test_dledger_5_1_1_entries_of_an_earlier_term_are_not_committed_by_counting() -> None:
    """DLedger's old watermark was the leader's term's, so an old entry on a majority counted as
    committed and could still be lost. Here it waits for an entry of the leader's own term."""
    cluster = led(3, config(append_entries=1))
    cluster.isolate("n1")
    cluster.propose("n1", b"old")
    cluster.crash("n1")
    cluster.heal()
    cluster.restart("n1")
    elect(cluster, "n1", lose=of_own_term)
    assert [len(log_of(cluster, name)) for name in cluster.voters] == [3, 2, 2]
    assert all(raft_state(cluster, name).committed <= 1 for name in cluster.voters)
    cluster.run(2 * RESEND_TICKS)
    assert_same(cluster)
    assert raft_state(cluster, "n1").committed == 3


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_dledger_5_1_2_comparing_takes_one_question_per_term(terms: int) -> None:
    """DLedger stepped back one entry a round trip and sent the whole entry each time. Here a
    question carries no entry, and a whole term is skipped with each answer."""
    wrong = [2 + run for run in range(terms) for _ in range(100)]
    leader = CoreRig(log=chain(1, *[9] * len(wrong)), term=9)
    follower = CoreRig(name="n2", log=chain(1, *wrong), term=9)
    said = converse(leader, follower, leader.lead())
    assert leader.terms == follower.terms
    assert len(pick(said, Compare)) <= terms + 3


def test_dledger_5_1_2_logs_without_a_common_entry_wipe_nothing_committed() -> None:
    """DLedger truncated a follower at the leader's first index, whatever was committed there.
    Here the follower stops and says that one of the two is damaged."""
    follower = CoreRig(name="n2", log=chain(1, 1, 1), term=1)
    follower.hear("n3", heartbeat(1, end(chain(1, 1))))
    leader = CoreRig(log=chain(2, 2, 2), term=2)
    with pytest.raises(Damaged):
        converse(leader, follower, leader.lead())
    assert follower.terms == [1, 1, 1]


def test_dledger_5_1_3_a_repeated_push_is_answered_every_time() -> None:
    """DLedger kept a request that it had given up and answered every repeat with REPEATED_PUSH.
    Here nothing is kept: each copy is judged by the log as it is then."""
    rig = CoreRig(term=1)
    entries = chain(1, 1, 1)
    early = append(1, entries[2:], end(entries[:2]))
    for _ in range(5):
        assert only(rig.hear("n2", early), Mismatch).hint_index == 1
    rig.hear("n2", append(1, entries[:2]))
    for _ in range(5):
        assert only(rig.hear("n2", early), Ack).match == 3


@pytest.mark.parametrize("there", range(6))
def test_dledger_5_1_4_a_batch_that_is_half_there_is_completed(there: int) -> None:
    """DLedger retried a batch from an index that the follower already had and looped. Here the
    follower takes what it lacks and acks the whole."""
    entries = chain(1, 1, 1, 1, 1)
    rig = CoreRig(log=entries[:there], term=1)
    assert only(rig.hear("n2", append(1, entries)), Ack).match == 5
    assert rig.terms == [1] * 5


def test_dledger_5_1_5_indexes_beyond_31_bits_are_ordinary() -> None:
    """DLedger swept time-outs up to Integer.MAX_VALUE; production logs are at 1.4e11. Here no
    index is special, in an entry or in a window."""
    before = Position(Index(140_000_000_000), Term(7), 1)
    entry = make_entry(before, Term(7), EntryKind.DATA, b"x", base_offset=1 << 40, count=1)
    assert decode_entry(entry.header + entry.body) == entry
    peer = Progress(NodeId("n2"), entry.index, clock=0)
    peer.stream()
    peer.sent(entry.index, entry.size, clock=0)
    assert peer.acked(entry.index, clock=1)
    assert (peer.inflight_bytes, peer.sent_at, peer.next) == (0, None, entry.index + 1)


def test_dledger_5_1_5_a_lost_ack_delays_an_append_by_one_resend() -> None:
    """DLedger's appends hung for up to 38 s when an ack went missing. Here the leader asks after
    one resend time-out, and the answer commits."""
    cluster = led(3)
    token = cluster.propose("n1", b"x")
    settle_losing(cluster, lambda item: isinstance(item.message, Ack))
    assert token not in cluster.answers
    assert run_until(cluster, lambda: token in cluster.answers, 1000) <= RESEND_TICKS
    receipt(cluster, token)


def test_dledger_5_1_6_the_append_at_the_very_commit_index_is_answered() -> None:
    """DLedger's sweep used "below the quorum index" and missed the one at it. Here every append
    is answered in the turn that applies it, the last one included."""
    cluster = led(3)
    for number in range(20):
        token = cluster.propose("n1", b"%d" % number)
        cluster.settle()
        assert receipt(cluster, token).index == raft_state(cluster, "n1").committed
    assert cluster.engine("n1").pending_appends == 0


def test_dledger_5_1_6_truncating_leaves_no_commit_above_the_end() -> None:
    """DLedger truncated and left its commit index above the end (#316). Here committed is never
    above the log: what would make it so stops the replica first."""
    rig = CoreRig(log=chain(1, 1, 2, 2), term=2)
    rig.hear("n2", heartbeat(2, end(chain(1, 1))))
    rig.hear("n3", append(3, chain(3, after=end(chain(1, 1))), end(chain(1, 1))))
    assert (rig.raft.committed, rig.raft.log.last_index) == (2, 3)
    with pytest.raises(Damaged):
        rig.hear("n2", append(4, chain(4, after=end(chain(1))), end(chain(1))))
    assert rig.raft.committed <= rig.raft.log.last_index


def test_dledger_5_1_6_a_follower_that_is_behind_is_fed_without_a_new_append() -> None:
    """DLedger fed an emptied follower only with the next write (#61). Here whoever comes back
    behind is brought up to date on an idle cluster."""
    cluster = led(3)
    cluster.crash("n3")
    append_many(cluster, "n1", 10)
    cluster.restart("n3")
    cluster.run(2 * HEARTBEAT_TICKS)
    assert_same(cluster)


# -- 5.2 ---------------------------------------------------------------------------------------


def test_dledger_5_2_1_an_ack_waits_for_the_disk_and_survives_a_power_cut() -> None:
    """DLedger acked from mapped memory, so two nodes losing power lost what was acknowledged.
    Here no ack leaves before its flush, and what was acknowledged is there after any power cut."""
    cluster = led(3)
    cluster.auto_flush = False
    token = cluster.propose("n1", b"x")
    cluster.deliver_all()
    assert [item for item in cluster.table if isinstance(item.message, Ack)] == []
    cluster.flush("n2")
    assert [item.source for item in cluster.table if isinstance(item.message, Ack)] == ["n2"]
    cluster.deliver_all()
    assert token not in cluster.answers  # the leader's own copy is not on its disk yet
    cluster.flush("n1")
    done = receipt(cluster, token)
    assert done.synced == 2
    for name in cluster.voters:
        cluster.crash(name, lambda: LOST)
        cluster.restart(name)
    held = [name for name in cluster.voters if len(log_of(cluster, name)) >= done.index]
    assert held == ["n1", "n2"]


def test_dledger_5_2_2_a_failed_flush_stops_the_replica() -> None:
    """DLedger swallowed fsync errors and moved on. Here the replica stops: a second sync of pages
    that only look clean would prove nothing."""
    cluster = led(3)
    cluster.auto_flush = False
    cluster.propose("n1", b"x")
    flush = cluster.nodes[NodeId("n1")].flush
    assert flush is not None
    cluster.turn("n1", [FlushFailed(flush.number, "input/output error")])
    halted = cluster.nodes[NodeId("n1")].halted
    assert isinstance(halted, DiskFailed)
    assert "input/output error" in str(halted)


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("fate", [KEPT, LOST, TORN])
def test_dledger_5_2_3_a_vote_is_on_disk_before_it_is_given(steps: int, fate: int) -> None:
    """DLedger did not sync its vote file and could start at term 0 after a crash in the middle of
    replacing it. Here a crash at any step of the write leaves the old or the new record, and the
    vote is answered only after the last step."""
    cluster = HandCluster(3, auto_flush=False)
    ask = envelope(cluster, "n3", "n2", vote(1))
    cluster.turn("n2", [Deliver(ask)])
    assert cluster.table == []
    cluster.flush("n2", steps)
    cluster.crash("n2", lambda: fate)
    cluster.restart("n2")
    assert (raft_state(cluster, "n2").term, raft_state(cluster, "n2").vote) in (
        (0, None),
        (1, "n3"),
    )
    if steps == 4:
        assert raft_state(cluster, "n2").vote == "n3"
    assert cluster.table == []


def test_dledger_5_2_3_without_a_readable_vote_record_nobody_starts() -> None:
    """DLedger began anew when its file was gone. Here a node that voted and cannot read how does
    not start: it could vote twice in one term."""
    cluster = led(3)
    cluster.auto_flush = False
    elect_again = vote(9, end(log_of(cluster, "n2")))
    cluster.tick("n2", ELECTION_TICKS)
    cluster.turn("n2", [Deliver(envelope(cluster, "n3", "n2", elect_again))])
    node = cluster.nodes[NodeId("n2")]
    assert node.flush is not None
    for name in VOTE_COPIES:  # both copies written, neither synced: what no plan of ours does
        node.store.disk.open(name).write(0, [bytes(VOTE_BYTES)])
    cluster.crash("n2", lambda: TORN)
    with pytest.raises(Damaged, match="no copy"):
        cluster.restart("n2")


def test_dledger_5_2_4_a_restarted_leader_does_not_lead_its_term_again() -> None:
    """DLedger's leader campaigned in its old term after a restart, got its old votes repeated and
    wrote other entries under the same term and index. Here the next campaign is a new term."""
    cluster = led(3)
    cluster.auto_flush = False
    cluster.propose("n1", b"lost with the power")
    cluster.crash("n1", lambda: LOST)
    cluster.table.clear()
    cluster.auto_flush = True
    cluster.restart("n1")
    assert cluster.engine("n1").role is Role.FOLLOWER
    elect(cluster, "n1")
    assert raft_state(cluster, "n1").term == 2
    assert [entry.term for entry in log_of(cluster, "n1")] == [1, 2]


@pytest.mark.parametrize(
    "message",
    [compare(1), append(1, chain(1)), append(1, chain(1, 1), committed=2), heartbeat(1)],
    ids=["compare", "append", "append and commit", "heartbeat"],
)
def test_dledger_5_2_5_every_message_of_an_old_leader_is_refused(message: Message) -> None:
    """DLedger checked term and leader for appends only: a truncation of term 1 was obeyed in
    term 5. Here no message of a leader gets past that check."""
    rig = CoreRig(log=chain(2, 2), term=5)
    rig.hear("n3", heartbeat(5, end(chain(2))))
    rig.hear("n2", message)
    assert rig.refused(Refusal.STALE_TERM) == 1
    assert (rig.terms, rig.raft.committed, rig.raft.leader) == ([2, 2], 1, "n3")


def test_dledger_5_2_6_committed_entries_are_never_truncated() -> None:
    """DLedger compared with neither commit nor applied index before it truncated. Here the
    replica stops, and what it had stays as it was."""
    cluster = led(3)
    append_many(cluster, "n1", 3)
    cluster.run(1)
    before = log_of(cluster, "n2")
    wrong = append(9, chain(9, after=before[1].position), before[1].position)
    cluster.turn("n2", [Deliver(envelope(cluster, "n3", "n2", wrong))])
    assert isinstance(cluster.nodes[NodeId("n2")].halted, Damaged)
    cluster.restart("n2")
    assert log_of(cluster, "n2") == before


def test_dledger_5_2_7_votes_are_judged_by_the_log_as_it_is_now() -> None:
    """DLedger remembered its end in a second place that was not always refreshed, and let a node
    without entries win. Here the log itself is asked, also right after a truncation."""
    rig = CoreRig(log=chain(1, 1, 1, 1), term=1)
    rig.hear("n2", append(2, chain(2, after=end(chain(1))), end(chain(1))))
    rig.tick(ELECTION_TICKS)
    assert not only(rig.hear("n3", vote(3, end(chain(1, 1, 1, 1)))), VoteReply).granted
    assert only(rig.hear("n3", vote(4, end(chain(1, 2)))), VoteReply).granted


def test_dledger_5_2_8_a_leader_without_a_majority_answers_no_read() -> None:
    """DLedger read from whatever a node had. Here a leader that the majority left says
    NO_QUORUM."""
    cluster = led(3)
    cluster.isolate("n1")
    token = cluster.read("n1")
    cluster.run(READ_TICKS)
    assert type(cluster.answers[token]) is NoQuorum


def test_dledger_5_2_9_an_entry_that_breaks_the_chain_is_refused() -> None:
    """DLedger had no checksums. Here an append whose entries are not what they claim to be
    changes nothing."""
    cluster = led(3)
    entries = chain(1, 1, after=log_of(cluster, "n2")[-1].position)
    entries[1].header = entries[1].header[:20] + b"\x01" + entries[1].header[21:]
    message = append(1, entries, log_of(cluster, "n2")[-1].position)
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", message))])
    assert raft_state(cluster, "n2").refused[Refusal.BROKEN_CHAIN] == 1
    assert len(log_of(cluster, "n2")) == 1


def test_dledger_5_2_9_a_torn_tail_is_cut_before_it_is_believed() -> None:
    """DLedger's recovery could not tell a torn body from a whole one. Here what does not prove
    itself is cut at open, and the rest comes from the leader."""
    cluster = led(3)
    cluster.auto_flush = False
    tokens = append_at_once(cluster, "n1", [b"a", b"b"])
    cluster.deliver_all()
    cluster.flush("n3", steps=1)  # written, not synced
    cluster.crash("n3", lambda: TORN)
    cluster.auto_flush = True
    cluster.restart("n3")
    assert len(log_of(cluster, "n3")) == 1
    cluster.run(2 * RESEND_TICKS)
    assert_same(cluster)
    assert all(token in cluster.answers for token in tokens)
