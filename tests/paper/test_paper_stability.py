"""Raft thesis § 4.2.3, § 6.2 and § 9.6: what keeps a working leader in its place.

Pre-vote keeps a node that cannot win from raising terms, stickiness keeps nodes that hear a leader
from helping to replace it, and check-quorum ends a leadership that reaches nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import happened, led, raft_state, run_until
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    CoreRig,
    ack,
    chain,
    end,
    heartbeat,
    heartbeat_reply,
    leading,
    only,
    pick,
    pre_vote,
    pre_vote_reply,
    vote,
    vote_reply,
)
from quorate.raft.messages import PreVote, PreVoteReply, Vote, VoteReply
from quorate.raft.output import EventKind, Refusal
from quorate.types import Role

if TYPE_CHECKING:
    from quorate.raft.messages import Message

# -- pre-vote ----------------------------------------------------------------------------------


def test_asking_for_pre_votes_changes_nobodys_term() -> None:
    """Thesis § 9.6: neither who asks nor who answers takes a new term or spends a vote."""
    asker, voter = CoreRig(term=3), CoreRig(term=3)
    (ask, _) = pick(asker.time_out(), PreVote)
    reply = only(voter.hear("n2", ask), PreVoteReply)
    assert reply.granted
    for rig in (asker, voter):
        assert (rig.raft.term, rig.raft.vote) == (3, None)


def test_pre_votes_of_a_majority_come_before_the_campaign() -> None:
    """Thesis § 9.6: the term rises only after a majority said that it would vote."""
    rig = CoreRig(5)
    rig.time_out()
    assert rig.hear("n2", pre_vote_reply(0)) == []
    assert (rig.role(), rig.raft.term) == (Role.PRE_CANDIDATE, 0)
    sent = rig.hear("n3", pre_vote_reply(0))
    assert (rig.role(), rig.raft.term) == (Role.CANDIDATE, 1)
    assert len(pick(sent, Vote)) == 4


def test_refused_pre_votes_do_not_count() -> None:
    """Thesis § 9.6: nor does the same voter twice."""
    rig = CoreRig(5)
    rig.time_out()
    rig.hear("n2", pre_vote_reply(0))
    rig.hear("n2", pre_vote_reply(0))
    rig.hear("n3", pre_vote_reply(0, granted=False))
    assert rig.role() is Role.PRE_CANDIDATE


@pytest.mark.parametrize(
    "reply", [pre_vote_reply(0, number=1), pre_vote_reply(0, number=2, boot=7)]
)
def test_answers_to_another_round_do_not_count(reply: Message) -> None:
    """Thesis § 9.6: a late answer to an earlier round, or to an earlier boot, says nothing."""
    rig = CoreRig()
    rig.time_out()
    rig.tick(2 * ELECTION_TICKS)
    rig.hear("n2", reply)
    assert rig.role() is Role.PRE_CANDIDATE
    assert rig.refused(Refusal.NOT_ASKED) == 1


def test_pre_votes_are_not_exclusive() -> None:
    """Thesis § 9.6: a pre-vote promises nothing, so two candidates may get the same one."""
    rig = CoreRig()
    assert only(rig.hear("n2", pre_vote(0)), PreVoteReply).granted
    assert only(rig.hear("n3", pre_vote(0)), PreVoteReply).granted


def test_a_pre_vote_for_a_term_that_is_over_is_refused() -> None:
    """Thesis § 9.6: the answer names the newer term, which the asker takes over."""
    voter, asker = CoreRig(term=5), CoreRig(term=3)
    asker.time_out()
    reply = only(voter.hear("n2", pre_vote(3)), PreVoteReply)
    assert (reply.granted, reply.term) == (False, 5)
    asker.hear("n2", reply)
    assert (asker.role(), asker.raft.term) == (Role.FOLLOWER, 5)


def test_a_node_that_was_cut_off_disturbs_nobody_when_it_returns() -> None:
    """Thesis § 9.6: however long it tried in vain, its term has not risen."""
    cluster = led(3)
    cluster.isolate("n3")
    cluster.run(20 * ELECTION_TICKS)
    assert raft_state(cluster, "n3").term == 1
    assert cluster.engine("n3").role is Role.PRE_CANDIDATE
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n1").term == 1
    assert happened(cluster, "n1", EventKind.STEPS_DOWN) == []


def test_a_node_that_hears_the_leader_only_by_others_disturbs_nobody() -> None:
    """Thesis § 9.6, § 4.2.3: with one link cut the rest keep their leader."""
    cluster = led(3)
    cluster.cut("n1", "n3")
    cluster.run(10 * ELECTION_TICKS)
    assert (cluster.leader(), raft_state(cluster, "n1").term) == ("n1", 1)


# -- stickiness --------------------------------------------------------------------------------


def following(log_terms: tuple[int, ...] = ()) -> CoreRig:
    """A follower of n2 in term 1 that heard it just now."""
    rig = CoreRig(log=chain(*log_terms), term=1)
    rig.hear("n2", heartbeat(1))
    return rig


def test_a_vote_is_ignored_while_the_leader_is_heard() -> None:
    """Thesis § 4.2.3: neither granted nor answered, and its term is not taken over."""
    rig = following()
    rig.tick(ELECTION_TICKS - 1)
    assert rig.hear("n3", vote(9)) == []
    assert (rig.raft.term, rig.raft.leader) == (1, "n2")
    assert rig.refused(Refusal.LEADER_ALIVE) == 1


def test_a_vote_is_heard_once_the_leader_was_silent_for_the_least_timeout() -> None:
    """Thesis § 4.2.3: stickiness ends with the shortest election timeout."""
    rig = following()
    rig.tick(ELECTION_TICKS)
    assert only(rig.hear("n3", vote(9)), VoteReply) == vote_reply(9)


def test_pre_votes_obey_stickiness_too() -> None:
    """Thesis § 4.2.3, § 9.6: refused while the leader is heard, granted when it is not."""
    rig = following()
    rig.tick(ELECTION_TICKS - 1)
    assert not only(rig.hear("n3", pre_vote(1)), PreVoteReply).granted
    rig.tick()
    assert only(rig.hear("n3", pre_vote(1)), PreVoteReply).granted


@pytest.mark.parametrize("message", [vote(9), pre_vote(9)], ids=["vote", "pre-vote"])
def test_a_leader_does_not_vote_itself_out(message: Message) -> None:
    """Thesis § 4.2.3: a leader hears itself; check-quorum ends what deserves to end."""
    rig = leading()
    sent = rig.hear("n2", message)
    assert not any(reply.granted for reply in pick(sent, PreVoteReply))
    assert pick(sent, VoteReply) == []
    assert (rig.role(), rig.raft.term) == (Role.LEADER, 1)


def test_a_restarted_node_has_heard_no_leader() -> None:
    """Thesis § 4.2.3: stickiness is about a leader that was heard, which a new boot has not."""
    rig = CoreRig(term=1, vote="n2", log=chain(1), boot=2)
    assert only(rig.hear("n3", vote(2, end(chain(1)))), VoteReply).granted


# -- check-quorum ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(2, 8))
def test_a_leader_that_hears_no_majority_steps_down(size: int) -> None:
    """Thesis § 6.2: after an election timeout without a majority the leader leads nobody."""
    rig = leading(size)
    missing = rig.peers[: size - rig.raft.electorate.fewest + 1]
    for _ in range(ELECTION_TICKS + HEARTBEAT_TICKS + 1):
        rig.tick()
        if rig.role() is not Role.LEADER:
            break
        for peer in rig.peers[len(missing) :]:
            rig.hear(peer, heartbeat_reply(1))
    assert (rig.role(), rig.raft.leader) == (Role.FOLLOWER, None)
    assert rig.raft.clock > ELECTION_TICKS
    # It keeps its term and its vote: stepping down is not an election.
    assert (rig.raft.term, rig.raft.vote) == (1, "n1")


@pytest.mark.parametrize("size", range(1, 8))
def test_a_leader_that_hears_a_bare_majority_stays(size: int) -> None:
    """Thesis § 6.2: the minority may be silent for ever."""
    rig = leading(size)
    for _ in range(5 * ELECTION_TICKS):
        rig.tick()
        for peer in rig.peers[: rig.raft.electorate.fewest - 1]:
            rig.hear(peer, heartbeat_reply(1))
    assert rig.role() is Role.LEADER


@pytest.mark.parametrize("message", [heartbeat_reply(1), ack(1, 1)], ids=["beat", "ack"])
def test_any_answer_of_a_follower_counts_as_heard(message: Message) -> None:
    """Thesis § 6.2: what matters is that a majority still follows, not in which words."""
    rig = leading()
    for _ in range(3 * ELECTION_TICKS):
        rig.tick()
        rig.hear("n2", message)
    assert rig.role() is Role.LEADER


def test_a_leader_that_only_speaks_is_replaced() -> None:
    """Thesis § 6.2: a leader that nobody can answer steps down, and the others find another."""
    cluster = led(3)
    cluster.cut("n2", "n1")
    cluster.cut("n3", "n1")
    run_until(cluster, lambda: cluster.leader() in ("n2", "n3"), 5 * ELECTION_TICKS)
    assert len(happened(cluster, "n1", EventKind.STEPS_DOWN)) == 1


def test_a_deposed_leader_waits_before_it_stands_again() -> None:
    """§ 5.2, thesis § 6.2: it draws a whole new timeout, like everybody else."""
    rig = leading()
    for _ in range(5 * ELECTION_TICKS):
        rig.tick()
        rig.hear("n2", heartbeat_reply(1))
    rig.hear("n2", heartbeat_reply(2))
    assert rig.role() is Role.FOLLOWER
    assert pick(rig.tick(ELECTION_TICKS - 1), PreVote) == []
