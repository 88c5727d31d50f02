"""Raft § 8 and thesis § 6.4: a leader's first entry, and reads that see every finished write."""

from __future__ import annotations

import pytest

from cluster_rig import elect, led, read_answer, receipt, run_until
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    READ_TICKS,
    CoreRig,
    append,
    chain,
    config,
    end,
    heartbeat,
    heartbeat_reply,
    leading,
    only,
    pick,
    read_index,
    read_index_reply,
    vote_reply,
)
from quorate.errors import NoQuorum
from quorate.raft.messages import Heartbeat, ReadIndex, ReadIndexReply
from quorate.raft.output import Refusal
from quorate.types import EntryKind, Index, Role

# -- the noop ----------------------------------------------------------------------------------


def test_a_leader_begins_its_term_with_a_noop() -> None:
    """§ 8: only an entry of its own term tells a new leader what is committed."""
    rig = leading(log=chain(1, 1), term=1, settled=False)
    (entry,) = rig.raft.log.entries(Index(3), Index(4))
    assert (entry.kind, entry.term, entry.count) == (EntryKind.NOOP, 2, 0)


def test_reads_wait_for_the_noop() -> None:
    """§ 8: before it a leader may not know the newest commit, so it begins no round."""
    rig = leading(log=chain(1, 1), term=1, settled=False)
    rig.read(1)
    for peer in rig.peers:
        rig.hear(peer, heartbeat_reply(2))
    assert rig.confirmed == []
    rig.settle()
    for peer in rig.peers:
        rig.hear(peer, heartbeat_reply(2, round=1))
    assert rig.confirmed == [(1, 3)]


# -- ReadIndex on the leader -------------------------------------------------------------------


@pytest.mark.parametrize("size", range(2, 8))
def test_a_read_needs_a_majority_that_still_follows(size: int) -> None:
    """Thesis § 6.4: exactly the answer that completes a majority confirms the read."""
    rig = leading(size)
    rig.read(1)
    for heard, peer in enumerate(rig.peers, start=1):
        assert bool(rig.confirmed) == (heard > size // 2)
        rig.hear(peer, heartbeat_reply(1, round=1))
    assert rig.confirmed == [(1, 1)]


def test_a_leader_of_one_confirms_at_once() -> None:
    """Thesis § 6.4: it is its own majority."""
    rig = leading(1)
    rig.read(1)
    assert rig.confirmed == [(1, 1)]


def test_a_read_joins_only_a_round_that_begins_after_it() -> None:
    """Thesis § 6.4: an answer to an earlier beat proves nothing about now."""
    rig = leading()
    rig.read(1)
    rig.read(2)
    rig.hear("n2", heartbeat_reply(1, round=1))
    assert rig.confirmed == [(1, 1)]
    rig.hear("n2", heartbeat_reply(1, round=2))
    assert rig.confirmed == [(1, 1), (2, 1)]


def test_a_later_round_vouches_for_earlier_reads() -> None:
    """Thesis § 6.4: who follows now followed then, too."""
    rig = leading()
    rig.read(1)
    rig.read(2)
    rig.hear("n3", heartbeat_reply(1, round=2))
    assert rig.confirmed == [(1, 1), (2, 1)]


def test_reads_of_one_turn_share_a_round() -> None:
    """Thesis § 6.4: the cost of a round is shared by all that wait for it."""
    rig = leading()
    for token in range(1, 6):
        rig.core.read(token)
    sent = pick(rig.finish(), Heartbeat)
    assert [message.round for message in sent] == [1, 1]
    rig.hear("n2", heartbeat_reply(1, round=1))
    assert [token for token, _ in rig.confirmed] == [1, 2, 3, 4, 5]


def test_a_round_begins_at_once() -> None:
    """Thesis § 6.4: a read does not wait for the next heartbeat to be due."""
    rig = leading()
    assert len(pick(rig.read(1), Heartbeat)) == 2


def test_a_read_sees_what_was_committed_when_its_round_began() -> None:
    """Thesis § 6.4: the index is taken before the round, and everything acked by then is in it."""
    rig = leading()
    rig.propose()
    rig.settle()
    rig.read(1)
    rig.hear("n2", heartbeat_reply(1, round=1))
    assert rig.confirmed == [(1, 2)]


def test_answers_of_another_term_confirm_nothing() -> None:
    """Thesis § 6.4: rounds are counted within a term."""
    rig = leading(term=1)
    rig.read(1)
    rig.hear("n2", heartbeat_reply(1, round=1))
    assert (rig.confirmed, rig.refused(Refusal.STALE_TERM)) == ([], 1)


def test_a_deposed_leader_answers_no_read() -> None:
    """Thesis § 6.4: a leader cut off from the majority cannot know of newer writes."""
    cluster = led(3)
    cluster.isolate("n1")
    elect(cluster, "n2")
    token = cluster.propose("n2", b"newer")
    cluster.settle()
    assert token in cluster.answers
    stale = cluster.read("n1")
    cluster.run(READ_TICKS + 1)
    assert type(cluster.answers[stale]) is NoQuorum


def test_a_read_is_answered_when_its_index_is_applied() -> None:
    """Thesis § 6.4: and it then shows every append that was acknowledged before it."""
    cluster = led(3)
    done = cluster.propose("n1", b"x", count=3)
    cluster.settle()
    token = cluster.read("n1")
    assert token not in cluster.answers
    cluster.settle()
    answer = read_answer(cluster, token)
    assert answer.index >= receipt(cluster, done).index
    assert answer.end_offset == 3


# -- reads on followers ------------------------------------------------------------------------


def test_a_follower_asks_the_leader_and_answers_from_its_own_copy() -> None:
    """Thesis § 6.4: the leader gives the index, the follower waits until it has applied it."""
    cluster = led(3)
    done = cluster.propose("n1", b"x")
    cluster.settle()
    assert cluster.engine("n3").applied == 1  # committed by the leader, not yet heard of here
    token = cluster.read("n3")
    cluster.settle()
    answer = read_answer(cluster, token)
    assert answer.index >= receipt(cluster, done).index


def test_the_leader_answers_a_followers_read_after_a_round() -> None:
    """Thesis § 6.4: a follower's question needs the same proof as the leader's own read."""
    rig = leading()
    sent = rig.hear("n3", read_index(1, number=7))
    assert pick(sent, ReadIndexReply) == []
    (reply,) = pick(rig.hear("n2", heartbeat_reply(1, round=1)), ReadIndexReply)
    assert reply == read_index_reply(1, 1, number=7)


def test_who_does_not_lead_says_so() -> None:
    """Thesis § 6.4: the asker need not wait for an answer that cannot come."""
    rig = CoreRig(term=1)
    reply = only(rig.hear("n3", read_index(1, number=7)), ReadIndexReply)
    assert reply == read_index_reply(1, None, number=7)
    assert rig.refused(Refusal.NOT_LEADING) == 1


def follower_that_asked() -> CoreRig:
    rig = CoreRig(term=1)
    rig.hear("n2", append(1, chain(1, 1), committed=1))
    assert only(rig.read(5), ReadIndex).request == (1, 1)
    return rig


def test_an_answer_counts_for_the_very_question_that_is_out() -> None:
    """Thesis § 6.4: an answer to an earlier question, or to an earlier boot, is too old."""
    rig = follower_that_asked()
    rig.hear("n2", read_index_reply(1, 1, number=1, boot=7))
    rig.hear("n2", read_index_reply(1, 1, number=2))
    assert (rig.confirmed, rig.refused(Refusal.NOT_ASKED)) == ([], 2)
    rig.hear("n2", read_index_reply(1, 1))
    rig.hear("n2", read_index_reply(1, 1))
    assert (rig.confirmed, rig.refused(Refusal.NOT_ASKED)) == ([(5, 1)], 3)


def test_reads_that_arrive_while_a_question_is_out_get_their_own() -> None:
    """Thesis § 6.4: the answer on its way may be older than they are."""
    rig = follower_that_asked()
    assert rig.read(6) == []
    (ask,) = pick(rig.hear("n2", read_index_reply(1, 1)), ReadIndex)
    assert (rig.confirmed, ask.request) == ([(5, 1)], (1, 2))


def test_a_confirmed_read_waits_until_its_index_is_committed_here() -> None:
    """Thesis § 6.4: the follower answers from its own copy, so its copy must have come so far."""
    rig = follower_that_asked()
    rig.hear("n2", read_index_reply(1, 2))
    assert rig.confirmed == []
    rig.hear("n2", heartbeat(1, end(chain(1, 1))))
    assert rig.confirmed == [(5, 2)]


def test_a_question_without_an_answer_is_asked_again() -> None:
    """Thesis § 6.4: messages get lost; the read need not."""
    rig = follower_that_asked()
    assert pick(rig.tick(HEARTBEAT_TICKS - 1), ReadIndex) == []
    assert len(pick(rig.tick(), ReadIndex)) == 1


def test_a_refused_question_is_asked_again_later_not_at_once() -> None:
    """Thesis § 6.4: an answer that says "not I" must not start a ping-pong without end: nothing
    has changed since, so the next question waits for time to pass or for another leader."""
    rig = follower_that_asked()
    assert pick(rig.hear("n2", read_index_reply(1, None)), ReadIndex) == []
    assert len(pick(rig.tick(HEARTBEAT_TICKS), ReadIndex)) == 1


def test_a_read_follows_the_leader_that_took_over() -> None:
    """Thesis § 6.4: what no leader confirmed yet is put to the next one."""
    rig = follower_that_asked()
    rig.hear("n3", heartbeat(2, end(chain(1, 1))))
    (again,) = pick(rig.tick(HEARTBEAT_TICKS), ReadIndex)
    rig.hear("n3", read_index_reply(2, 2, number=again.request.number))
    assert rig.confirmed == [(5, 2)]


def test_reads_of_a_deposed_leader_start_over() -> None:
    """Thesis § 6.4: its rounds are void, and its reads are asked of its successor."""
    rig = leading()
    rig.read(5)
    rig.hear("n3", read_index(1))
    rig.hear("n2", heartbeat(2))
    (ask,) = pick(rig.tick(HEARTBEAT_TICKS), ReadIndex)
    assert (rig.confirmed, rig.core.reads_waiting, ask.term) == ([], 1, 2)


def test_reads_of_a_new_leader_need_its_own_round() -> None:
    """Thesis § 6.4: what was asked of the old leader is confirmed here or not at all."""
    rig = follower_that_asked()
    rig.campaign()
    rig.persist()
    rig.hear("n2", vote_reply(2))
    assert rig.role() is Role.LEADER
    rig.hear("n2", read_index_reply(1, 1))
    assert rig.confirmed == []
    rig.settle()
    rig.hear("n3", heartbeat_reply(2, round=1))
    assert rig.confirmed == [(5, 3)]


def test_rounds_of_an_earlier_leadership_are_void() -> None:
    """Thesis § 6.4: a node that leads again begins anew, for its own reads and its followers'."""
    rig = leading(config=config(read_ms=60_000))
    rig.read(5)
    rig.hear("n3", read_index(1, number=4))
    rig.hear("n2", heartbeat(2))
    rig.tick(ELECTION_TICKS)
    rig.lead()
    rig.settle()
    sent = rig.hear("n2", heartbeat_reply(3, round=1))
    assert (rig.confirmed, pick(sent, ReadIndexReply)) == ([(5, 2)], [])
    rig.hear("n3", read_index(3, number=4))
    sent = rig.hear("n2", heartbeat_reply(3, round=2))
    assert pick(sent, ReadIndexReply) == [read_index_reply(3, 2, number=4)]


def test_a_read_without_a_leader_is_given_up_in_time() -> None:
    """Thesis § 6.4: a caller is told that nothing can be known, not left waiting."""
    rig = CoreRig(term=1)
    rig.read(5)
    rig.tick(READ_TICKS - 1)
    assert rig.reads_refused == []
    rig.tick()
    assert (rig.reads_refused, rig.core.reads_waiting) == ([5], 0)
    assert pick(rig.hear("n2", heartbeat(2)), ReadIndex) == []  # and nobody is asked any more


def test_a_read_survives_an_election() -> None:
    """Thesis § 6.4: the leader dies; the follower's read is answered by the next one."""
    cluster = led(3, config(read_ms=5000))
    cluster.crash("n1")
    token = cluster.read("n2")
    run_until(cluster, lambda: token in cluster.answers, 3 * ELECTION_TICKS)
    assert read_answer(cluster, token).index == 2
