"""Raft § 5.3 and § 5.5: how logs are brought to agree, and what a repeated message does."""

from __future__ import annotations

import pytest

from cluster_rig import assert_same, led, log_of, progress, raft_state, run_until
from core_rig import (
    ELECTION_TICKS,
    RESEND_TICKS,
    CoreRig,
    ack,
    append,
    chain,
    compare,
    converse,
    end,
    heartbeat,
    leading,
    mismatch,
    only,
    pick,
)
from quorate.raft.messages import Ack, Append, Compare, HeartbeatReply, Mismatch
from quorate.raft.output import EventKind
from quorate.raft.progress import ProgressState
from quorate.types import Role
from verification.disk.inode import LOST


def following(*terms: int, term: int = 5) -> CoreRig:
    """A follower of n2 whose log has these terms."""
    return CoreRig(log=chain(*terms), term=term)


# -- the leader's side -------------------------------------------------------------------------


def test_the_leader_appends_and_sends_to_all_at_once() -> None:
    """§ 5.3: an entry goes to every follower in parallel, and to the own disk meanwhile."""
    rig = leading(5)
    sent = rig.propose()
    assert [target for target, _ in sent] == list(rig.peers)
    for message in pick(sent, Append):
        assert (message.prev.index, message.last_index) == (1, 2)
    assert rig.raft.persisted == 1


def test_the_leader_never_changes_its_own_log() -> None:
    """§ 5.3: a leader only appends; no answer of a follower makes it drop an entry."""
    rig = leading(log=chain(1, 1, 2), term=3)
    before = rig.terms
    rig.hear("n2", mismatch(4, 3, 1, 2, number=rig.progress("n2").number))
    rig.hear("n3", ack(4, 0))
    assert rig.terms == before
    assert rig.happened(EventKind.TRUNCATES) == []


def test_entries_stream_ahead_of_their_acks() -> None:
    """§ 10.2.1 of the thesis: the next append follows the last one sent, not the last acked."""
    rig = leading()
    appends = [message for _ in range(3) for message in pick(rig.propose(), Append, "n2")]
    assert [message.prev.index for message in appends] == [1, 2, 3]


# -- the follower's side -----------------------------------------------------------------------


def test_an_append_is_taken_where_the_logs_agree() -> None:
    """§ 5.3: the entry before the new ones must be there with index and term."""
    rig = following(1, 1)
    entries = chain(2, 2, after=end(chain(1, 1)))
    reply = only(rig.hear("n2", append(5, entries, end(chain(1, 1)))), Ack)
    assert (reply.match, rig.terms) == (4, [1, 1, 2, 2])


def test_an_append_over_a_gap_is_refused() -> None:
    """§ 5.3: the answer says where the log ends, so that the leader need not guess."""
    rig = following(1, 1)
    far = chain(1, 1, 1, 1)
    reply = only(rig.hear("n2", append(5, chain(2, after=end(far)), end(far))), Mismatch)
    assert (reply.prev, reply.hint_index, reply.hint_term) == (4, 3, 0)
    assert rig.terms == [1, 1]


def test_an_append_after_a_different_entry_is_refused() -> None:
    """§ 5.3: the answer names the conflicting term and where it begins here."""
    rig = following(1, 2, 2, 2)
    prev = end(chain(1, 3, 3))
    reply = only(rig.hear("n2", append(5, chain(3, after=prev), prev)), Mismatch)
    assert (reply.prev, reply.hint_index, reply.hint_term) == (3, 2, 2)
    assert rig.terms == [1, 2, 2, 2]


def test_a_conflict_at_the_very_end_names_its_term_too() -> None:
    """§ 5.3: else the leader would go back an entry at a time."""
    rig = following(1, 2, 2, 2)
    reply = only(rig.hear("n2", compare(5, end(chain(1, 3, 3, 3)))), Mismatch)
    assert (reply.prev, reply.hint_index, reply.hint_term) == (4, 2, 2)


def test_a_conflict_is_never_sought_among_what_is_committed() -> None:
    """§ 5.3, § 5.4.3: the leader has all of that, so the hint stays above it."""
    rig = following(1, 2, 2, 2)
    rig.hear("n2", heartbeat(5, end(chain(1, 2))))
    reply = only(rig.hear("n2", compare(5, end(chain(1, 2, 3, 3)))), Mismatch)
    assert (reply.hint_index, reply.hint_term) == (3, 2)


def test_a_conflicting_entry_goes_with_all_that_follow_it() -> None:
    """§ 5.3: same index, other term: the entry and everything after it are dropped."""
    rig = following(1, 1, 2, 2, 2)
    entries = chain(3, after=end(chain(1, 1)))
    rig.hear("n2", append(5, entries, end(chain(1, 1))))
    assert rig.terms == [1, 1, 3]
    assert [event.index for event in rig.happened(EventKind.TRUNCATES)] == [3]


def test_only_what_really_conflicts_is_dropped() -> None:
    """§ 5.3: the part of a message that is already here stays, the cut is at the first conflict."""
    rig = following(1, 1, 2, 2)
    entries = chain(1, 1, 2, 3, 3)
    rig.hear("n2", append(5, entries))
    assert rig.terms == [1, 1, 2, 3, 3]
    assert [event.index for event in rig.happened(EventKind.TRUNCATES)] == [4]


def test_a_compare_asks_and_changes_nothing() -> None:
    """§ 5.3: the consistency check alone, before entries are sent."""
    rig = following(1, 1, 2)
    assert only(rig.hear("n2", compare(5, end(chain(1, 1)))), Ack).match == 2
    reply = only(rig.hear("n2", compare(5, end(chain(1, 3)))), Mismatch)
    assert (reply.hint_index, reply.hint_term) == (1, 1)
    assert rig.terms == [1, 1, 2]


# -- § 5.5: repeated, late and lost messages ---------------------------------------------------


def test_a_repeated_append_changes_nothing_and_gets_the_same_answer() -> None:
    """§ 5.5: requests are idempotent; a repeated one is acked again."""
    rig = following()
    message = append(5, chain(1, 1, 2))
    first = rig.hear("n2", message)
    assert rig.hear("n2", message) == first
    assert (rig.terms, rig.happened(EventKind.TRUNCATES)) == ([1, 1, 2], [])


def test_a_late_append_does_not_shorten_the_log() -> None:
    """§ 5.3, § 5.5: a message that ends before the log does says nothing about the rest."""
    rig = following()
    entries = chain(1, 1, 2, 2)
    rig.hear("n2", append(5, entries))
    assert only(rig.hear("n2", append(5, entries[:2])), Ack).match == 2
    assert rig.terms == [1, 1, 2, 2]


def test_appends_out_of_order_are_made_up_for() -> None:
    """§ 5.3: the early one is refused, and after the missing one it is taken."""
    rig = following()
    entries = chain(1, 1, 1)
    late = append(5, entries[2:], end(entries[:2]))
    assert isinstance(rig.hear("n2", late)[0][1], Mismatch)
    rig.hear("n2", append(5, entries[:2]))
    assert only(rig.hear("n2", late), Ack).match == 3


def test_a_lost_append_is_sent_again_until_it_is_acked() -> None:
    """§ 5.3: the leader retries for ever, also after it answered its client."""
    cluster = led(3)
    cluster.cut("n1", "n3")
    token = cluster.propose("n1", b"x")
    cluster.settle()
    assert token in cluster.answers
    cluster.run(3 * RESEND_TICKS)
    assert raft_state(cluster, "n3").log.last_index == 1
    cluster.heal()
    cluster.run(2 * RESEND_TICKS)
    assert_same(cluster)


def test_a_lost_ack_costs_no_entry_twice() -> None:
    """§ 5.5: the leader asks how far the follower is before it sends anything again."""
    cluster = led(3)
    cluster.cut("n3", "n1")
    cluster.propose("n1", b"x")
    cluster.settle()
    cluster.heal()
    sent = []
    for _ in range(2 * RESEND_TICKS):
        cluster.tick()
        sent += [item.message for item in cluster.table if item.target == "n3"]
        cluster.settle()
    assert [message for message in sent if isinstance(message, Append)] == []
    assert progress(cluster, "n3").match == 2


def test_a_crashed_follower_is_brought_up_to_date() -> None:
    """§ 5.5: requests to a node that is down are repeated until it is back."""
    cluster = led(3)
    cluster.crash("n3", lambda: LOST)
    for number in range(20):
        cluster.propose("n1", b"%d" % number)
        cluster.settle()
    cluster.restart("n3")
    cluster.run(2 * RESEND_TICKS)
    assert_same(cluster)
    assert len(log_of(cluster, "n3")) == 21


# -- Figure 7 ----------------------------------------------------------------------------------

LEADER_LOG = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7 = {
    "a: lacks one": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b: lacks many": (1, 1, 1, 4),
    "c: one too many": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d: two of a later term": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e: lacks and has others": (1, 1, 1, 4, 4, 4, 4),
    "f: other terms": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("case", FIGURE_7)
def test_every_log_of_figure_7_becomes_the_leaders(case: str) -> None:
    """§ 5.3, Figure 7: whatever a follower lacks or has too much, it ends with the leader's log,
    and finding where they part takes at most one question for each term that differs."""
    leader = CoreRig(log=chain(*LEADER_LOG), term=7)
    follower = CoreRig(name="n2", log=chain(*FIGURE_7[case]), term=7)
    said = converse(leader, follower, leader.lead())
    assert leader.terms == follower.terms == [*LEADER_LOG, 8]
    conflicting = set(FIGURE_7[case]) ^ set(LEADER_LOG)
    assert len(pick(said, Compare)) <= len(conflicting) + 3
    assert leader.progress("n2").match == 11


@pytest.mark.parametrize("length", [1, 10, 500])
def test_a_long_conflict_of_one_term_takes_one_step(length: int) -> None:
    """§ 5.3, "if desired": the leader skips all entries of the conflicting term at once."""
    leader = CoreRig(log=chain(1, *[3] * length), term=3)
    follower = CoreRig(name="n2", log=chain(1, *[2] * length), term=3)
    said = converse(leader, follower, leader.lead())
    assert leader.terms == follower.terms
    assert len(pick(said, Mismatch)) <= 2


def test_a_follower_of_an_idle_leader_gives_up_what_was_never_committed() -> None:
    """§ 5.3: a deposed leader's unfinished entries make way for its successor's."""
    cluster = led(3)
    cluster.isolate("n1")
    for number in range(5):
        cluster.propose("n1", b"%d" % number)
    run_until(cluster, lambda: cluster.leader() in ("n2", "n3"), 4 * ELECTION_TICKS)
    cluster.run(ELECTION_TICKS)
    assert cluster.engine("n1").role is not Role.LEADER
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert_same(cluster)
    assert len(log_of(cluster, "n1")) == 2


# -- what the leader does with answers ---------------------------------------------------------


def test_a_mismatch_moves_the_question_down_and_an_ack_starts_the_stream() -> None:
    """§ 5.3: nextIndex goes back until the logs agree; then everything after it is sent."""
    rig = CoreRig(log=chain(1, 1, 1, 1), term=1)
    (first, _) = pick(rig.lead(), Compare)
    assert first.prev.index == 4
    (second,) = pick(rig.hear("n2", mismatch(2, 4, 2)), Compare)
    assert (second.prev.index, second.number) == (1, 2)
    (entries,) = pick(rig.hear("n2", ack(2, 1, number=2)), Append)
    assert (entries.prev.index, entries.last_index) == (1, 5)
    assert rig.progress("n2").state is ProgressState.APPEND


def test_match_never_goes_back() -> None:
    """§ 5.3, § 5.5: a late ack of less is not news."""
    rig = leading()
    rig.propose()
    rig.confirm("n2", 2)
    rig.confirm("n2", 1)
    assert rig.progress("n2").match == 2


def test_a_mismatch_that_an_ack_overtook_asks_no_lower_than_the_ack() -> None:
    """§ 5.5: answers may come in another order; what was acked is not asked for again."""
    rig = leading()
    number = rig.progress("n2").number
    (question,) = pick(rig.hear("n2", mismatch(1, 1, 1, number=number)), Compare)
    assert question.prev.index == rig.progress("n2").match == 1


def test_two_leaders_of_one_term_both_fall() -> None:
    """§ 5.2 excludes it: if it is seen all the same, neither is followed any longer."""
    rig = CoreRig(term=1)
    rig.hear("n2", heartbeat(1))
    assert only(rig.hear("n3", heartbeat(1)), HeartbeatReply).term == 2
    assert (rig.raft.term, rig.raft.leader) == (2, None)
    assert len(rig.happened(EventKind.SPLIT_LEADERS)) == 1
