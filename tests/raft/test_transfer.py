"""The transfer of the leadership: no request is lost or unknown, and a failure costs little.

The rules R15 to R17 are those of docs/rules.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_many,
    assert_same,
    envelope,
    happened,
    led,
    raft_state,
    receipt,
    settle_losing,
)
from core_rig import ELECTION_TICKS, HEARTBEAT_TICKS, config
from proposal_rig import open_producer
from quorate.commands import Receipt
from quorate.errors import (
    Busy,
    CatchingUp,
    InvalidArgument,
    NotLeader,
    QuorateError,
    Timeout,
    Transferring,
)
from quorate.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatReply,
    Message,
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.raft.output import EventKind, Transferred
from quorate.replica.engine_io import Deliver
from quorate.types import NodeId, Position, Role, Term

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from verification.hand import HandCluster


def is_transfer(one: Envelope) -> bool:
    return isinstance(one.message, Transfer)


def run_with_hung_disk(cluster: HandCluster, name: str, ticks: int) -> None:
    """Let time pass for all; the disk of one node does nothing."""
    for _ in range(ticks):
        cluster.tick()
        settle_losing(cluster, lambda _: False, hung=(name,))


def refused(cluster: HandCluster, token: int, kind: type[QuorateError]) -> str:
    answer = cluster.answers[token]
    assert type(answer) is kind, answer
    return str(answer)


def test_the_target_leads_at_once_and_the_old_leader_follows() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 5)
    token = cluster.transfer("n1", "n2")
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    assert cluster.leader() == "n2"
    assert raft_state(cluster, "n2").term == 2
    assert not happened(cluster, "n2", EventKind.PRE_CAMPAIGNS)
    assert [event.peer for event in happened(cluster, "n1", EventKind.TRANSFERRED)] == ["n2"]
    cluster.run(3)
    assert_same(cluster)


def test_without_a_target_the_peer_with_the_most_entries_leads() -> None:
    cluster = led(3)
    cluster.isolate("n3")
    append_many(cluster, "n1", 3)
    cluster.heal()
    token = cluster.transfer("n1")
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))


def test_a_transfer_to_the_leader_itself_is_done_at_once() -> None:
    cluster = led(3)
    token = cluster.transfer("n1", "n1")
    assert cluster.answers[token] == Transferred(NodeId("n1"))
    assert raft_state(cluster, "n1").term == 1


def test_requests_that_cannot_be_carried_out_are_refused_and_change_nothing() -> None:
    cluster = led(3)
    unknown, elsewhere = cluster.transfer("n1", "n9"), cluster.transfer("n2", "n3")
    assert refused(cluster, unknown, InvalidArgument) == (
        "n9 is no voter of this log; its voters are n1, n2, n3"
    )
    assert refused(cluster, elsewhere, NotLeader) == "n2 does not lead"
    answer = cluster.answers[elsewhere]
    assert isinstance(answer, NotLeader)
    assert answer.leader == "n1"
    cluster.settle()
    assert raft_state(cluster, "n1").role is Role.LEADER


def test_a_target_that_does_not_answer_is_refused_at_once() -> None:
    cluster = led(3)
    cluster.isolate("n3")
    cluster.run(ELECTION_TICKS)
    assert refused(cluster, cluster.transfer("n1", "n3"), CatchingUp) == "n3 does not answer"
    cluster.isolate("n2")
    cluster.run(ELECTION_TICKS // 2)
    problem = refused(cluster, cluster.transfer("n1"), CatchingUp)
    assert problem == "n2 does not answer; n3 does not answer"


def test_a_single_voter_keeps_the_leadership() -> None:
    cluster = led(1)
    assert refused(cluster, cluster.transfer("n1"), CatchingUp) == "n1 is the only voter"


def test_nothing_is_asked_before_all_entries_are_committed_applied_and_answered() -> None:
    """R15: the flush of n2 is held, so its ack comes late, and n3 is cut off."""
    cluster = led(3)
    cluster.isolate("n3")
    cluster.auto_flush = False
    append = cluster.propose("n1", b"held")
    cluster.flush("n1")
    token = cluster.transfer("n1", "n2")
    cluster.deliver_all()
    assert not any(is_transfer(one) for one in cluster.table)
    assert append not in cluster.answers
    cluster.flush("n2")
    while not any(is_transfer(one) for one in cluster.table):
        cluster.deliver_all()
    assert isinstance(cluster.answers[append], Receipt)
    cluster.heal()
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))


def test_the_target_is_not_asked_while_a_request_waits_for_the_leaders_own_disk() -> None:
    """R15: the target has every entry, and none is committed without n1's disk."""
    cluster = led(3)
    cluster.isolate("n3")
    cluster.auto_flush = False
    append = cluster.propose("n1", b"held")
    token = cluster.transfer("n1", "n2")
    for _ in range(4):
        cluster.deliver_all()
        cluster.flush("n2")
    assert append not in cluster.answers
    assert not happened(cluster, "n2", EventKind.TAKES_OVER)
    cluster.heal()
    cluster.settle()
    assert isinstance(cluster.answers[append], Receipt)
    assert cluster.answers[token] == Transferred(NodeId("n2"))


def test_the_target_is_asked_as_soon_as_the_last_request_is_answered() -> None:
    """No time passes, and no input comes after the ack that commits the last entry."""
    cluster = led(3)
    cluster.isolate("n3")
    append = cluster.propose("n1", b"last")
    token = cluster.transfer("n1", "n2")
    cluster.deliver_all()
    cluster.deliver_all()
    assert isinstance(cluster.answers[append], Receipt)
    assert any(is_transfer(one) for one in cluster.table)
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))


def test_a_transfer_is_done_when_the_target_leads_not_when_the_leader_steps_down() -> None:
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    settle_losing(cluster, lambda one: isinstance(one.message, VoteReply))
    assert raft_state(cluster, "n1").role is Role.FOLLOWER
    assert token not in cluster.answers
    cluster.run(ELECTION_TICKS)
    assert isinstance(cluster.answers[token], Timeout | NotLeader | Transferred)


def test_appends_that_arrive_meanwhile_are_not_logged_and_name_the_next_leader() -> None:
    cluster = led(3)
    cluster.transfer("n1", "n2")
    cluster.take(lambda one: isinstance(one.message, Transfer))
    last = raft_state(cluster, "n1").log.last_index
    append = cluster.propose("n1", b"waits")
    assert raft_state(cluster, "n1").log.last_index == last
    assert append not in cluster.answers
    ask = Transfer(Term(1), raft_state(cluster, "n1").log.last, 1)
    cluster.deliver(envelope(cluster, "n1", "n2", ask))
    cluster.settle()
    answer = cluster.answers[append]
    assert isinstance(answer, NotLeader)
    assert answer.leader == "n2"


def test_a_transfer_whose_message_is_lost_ends_and_what_waited_is_logged_in_order() -> None:
    """R17: an election timeout at most, with heartbeats all the time."""
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    waiting = [cluster.propose("n1", bytes([byte])) for byte in b"abc"]
    cluster.run(ELECTION_TICKS)
    assert refused(cluster, token, Timeout) == "n2 did not take over in 1000 ms"
    assert raft_state(cluster, "n1").role is Role.LEADER
    cluster.settle()
    offsets = [receipt(cluster, one).offset for one in waiting]
    assert offsets == sorted(offsets)
    cluster.run(3)
    assert_same(cluster)


def test_a_target_that_falls_silent_before_it_is_asked_ends_the_transfer_early() -> None:
    cluster = led(3)
    cluster.isolate("n2")
    cluster.propose("n1", b"n2 lacks it")
    token = cluster.transfer("n1", "n2")
    append = cluster.propose("n1", b"goes on")
    assert token not in cluster.answers
    cluster.run(ELECTION_TICKS // 2)
    assert refused(cluster, token, CatchingUp) == "n2 does not answer"
    receipt(cluster, append)


def test_a_target_whose_disk_is_slow_has_an_election_timeout_to_take_over() -> None:
    """Its answers wait for its vote record: a leader that took the silence for a failure would log
    entries, and lose them to the target."""
    cluster = led(3)
    cluster.auto_flush = False
    token = cluster.transfer("n1", "n2")
    cluster.deliver_all()
    assert happened(cluster, "n2", EventKind.TAKES_OVER)
    append = cluster.propose("n1", b"waits")
    run_with_hung_disk(cluster, "n2", ELECTION_TICKS - 2)
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    assert isinstance(cluster.answers[append], NotLeader)


def test_the_time_to_take_over_begins_when_the_target_is_asked() -> None:
    """The drain took nearly all of its own time, as the disk of the target is slow."""
    cluster = led(3)
    cluster.auto_flush = False
    cluster.propose("n1", b"slow")
    token = cluster.transfer("n1", "n2")
    run_with_hung_disk(cluster, "n2", ELECTION_TICKS - 2)
    cluster.flush("n2")
    cluster.deliver_all()
    cluster.deliver_all()
    assert happened(cluster, "n2", EventKind.TAKES_OVER)
    append = cluster.propose("n1", b"waits")
    run_with_hung_disk(cluster, "n2", ELECTION_TICKS // 2)
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    assert isinstance(cluster.answers[append], NotLeader)


def test_reads_go_on_while_a_transfer_waits() -> None:
    cluster = led(3)
    cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    read = cluster.read("n1")
    cluster.settle()
    assert not isinstance(cluster.answers[read], QuorateError)


def test_a_second_target_is_refused_and_the_same_one_waits_for_the_same_end() -> None:
    cluster = led(3)
    first = cluster.transfer("n1", "n2")
    kept = cluster.take(is_transfer)
    same, any_target, other = (cluster.transfer("n1", one) for one in ("n2", None, "n3"))
    assert refused(cluster, other, Busy) == "a transfer to n2 is under way"
    cluster.table += kept
    cluster.settle()
    done = Transferred(NodeId("n2"))
    assert [cluster.answers[token] for token in (first, same, any_target)] == [done] * 3


@pytest.mark.parametrize("way", ["it refuses", "its link closes", "it takes too long"])
def test_a_request_without_a_target_goes_on_when_the_named_target_fails(way: str) -> None:
    """A node is told to stop while it gives the leadership to a node that an operator named."""
    cluster = led(3)
    named = cluster.transfer("n1", "n2")
    kept = cluster.take(is_transfer)
    cluster.run(2)
    any_target = cluster.transfer("n1")
    if way == "it refuses":
        cluster.engine("n2").core.raft.stopping = True
        cluster.table += kept
        cluster.settle()
    elif way == "its link closes":
        cluster.engine("n1").core.link_closed(NodeId("n2"))
        cluster.turn("n1")
    else:
        cluster.run(ELECTION_TICKS)
    cluster.settle()
    assert cluster.answers[any_target] == Transferred(NodeId("n3"))
    kind = Timeout if way == "it takes too long" else CatchingUp
    assert refused(cluster, named, kind).startswith(("n2 ", "the connection to n2"))
    assert [event.peer for event in happened(cluster, "n1", EventKind.TRANSFER_FAILED)] == ["n2"]


def test_a_request_for_the_chosen_target_fails_when_the_leader_chooses_another() -> None:
    cluster = led(3)
    any_target = cluster.transfer("n1")
    (ask,) = cluster.take(is_transfer)
    named = cluster.transfer("n1", ask.target)
    cluster.engine(ask.target).core.raft.stopping = True
    cluster.deliver(ask)
    cluster.settle()
    assert refused(cluster, named, CatchingUp) == f"{ask.target} cannot take over now"
    answer = cluster.answers[any_target]
    assert isinstance(answer, Transferred)
    assert answer.leader not in ("n1", ask.target)


def test_a_late_transfer_deposes_no_leader_that_went_on() -> None:
    """R16: n1 logged an entry since it asked."""
    cluster = led(3)
    cluster.transfer("n1", "n2")
    late = cluster.take(is_transfer)
    cluster.run(ELECTION_TICKS)
    append_many(cluster, "n1", 1)
    cluster.settle()
    cluster.table += late
    cluster.settle()
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n1").term == 1


@pytest.mark.parametrize("kind", [Append, Heartbeat])
def test_a_node_that_was_paused_does_not_depose_a_leader_that_went_on(kind: type[Message]) -> None:
    """R16: the request waited for it, and behind the request an entry that n1 logged since, or a
    heartbeat that says how far n1 has committed. Entries may arrive later, as they have a line of
    their own."""
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    waited = cluster.take(is_transfer)
    cluster.run(ELECTION_TICKS)
    assert isinstance(cluster.answers[token], Timeout)
    cluster.isolate("n2")
    append = cluster.propose("n1", b"goes on")
    entry = cluster.take(lambda one: one.target == "n2")
    settle_losing(cluster, lambda one: one.target == "n2")
    receipt(cluster, append)
    cluster.heal()
    cluster.tick("n1", HEARTBEAT_TICKS)
    waited += [one for one in (*entry, *cluster.table) if type(one.message) is kind][:1]
    assert len(waited) == 2
    cluster.table = []
    cluster.turn("n2", [Deliver(one) for one in waited])
    cluster.run(ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n2").term == 1


def test_a_transfer_of_an_old_term_does_nothing() -> None:
    cluster = led(3)
    cluster.transfer("n1", "n2")
    (late,) = cluster.take(is_transfer)
    cluster.run(ELECTION_TICKS)
    cluster.transfer("n1", "n3")
    cluster.settle()
    assert cluster.leader() == "n3"
    term = raft_state(cluster, "n3").term
    cluster.deliver(late)
    cluster.settle()
    assert cluster.leader() == "n3"
    assert raft_state(cluster, "n2").term == term


@pytest.mark.parametrize("ahead", [0, 2], ids=["the same term", "a later term"])
def test_a_vote_for_a_transfer_of_another_term_does_not_pass_a_live_leader(ahead: int) -> None:
    """R16: the mark counts only for the term that follows the voter's own."""
    cluster = led(3)
    raft = raft_state(cluster, "n3")
    ask = Vote(Term(raft.term + ahead), raft.log.last, transfer=True)
    cluster.deliver(envelope(cluster, "n2", "n3", ask))
    assert raft.term == 1
    assert not any(isinstance(one.message, VoteReply) for one in cluster.table)


def test_a_vote_for_a_transfer_without_all_entries_does_not_pass_a_live_leader() -> None:
    cluster = led(3)
    before = raft_state(cluster, "n3").log.last
    append_many(cluster, "n1", 1)
    cluster.settle()
    cluster.deliver(envelope(cluster, "n2", "n3", Vote(Term(2), before, transfer=True)))
    assert raft_state(cluster, "n3").term == 1
    cluster.deliver(envelope(cluster, "n2", "n1", Vote(Term(2), before, transfer=True)))
    assert cluster.leader() == "n1"


def test_a_target_that_cannot_lead_says_so_at_once_and_the_leader_goes_on() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 2)
    cluster.settle()
    token = cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    last = raft_state(cluster, "n1").log.last
    ask = Transfer(Term(1), Position(last.index, last.term, last.chain ^ 1), 1)
    cluster.deliver(envelope(cluster, "n1", "n2", ask))
    answers = [one.message for one in cluster.table if isinstance(one.message, TransferRefused)]
    assert answers == [TransferRefused(Term(1), 1)]
    cluster.settle()
    assert refused(cluster, token, CatchingUp) == "n2 cannot take over now"
    append = cluster.propose("n1", b"goes on")
    cluster.settle()
    receipt(cluster, append)


def test_a_leader_that_chose_a_target_which_refuses_chooses_another() -> None:
    """A new leader does not know yet which of its peers stop."""
    cluster = led(3)
    token = cluster.transfer("n1")
    (ask,) = cluster.take(is_transfer)
    cluster.engine(ask.target).core.raft.stopping = True
    cluster.deliver(ask)
    cluster.settle()
    answer = cluster.answers[token]
    assert isinstance(answer, Transferred)
    assert answer.leader not in ("n1", ask.target)


@pytest.mark.parametrize("way", ["its link closes", "it falls silent"])
def test_a_leader_that_chose_a_target_which_dies_chooses_another(way: str) -> None:
    cluster = led(3)
    cluster.isolate("n3")
    cluster.auto_flush = False
    append = cluster.propose("n1", b"n3 lacks it")
    token = cluster.transfer("n1")
    assert cluster.engine("n1").core.transfers.target == "n3"
    if way == "its link closes":
        cluster.engine("n1").core.link_closed(NodeId("n3"))
        cluster.turn("n1")
    else:
        cluster.run(ELECTION_TICKS // 2)
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    receipt(cluster, append)


def test_a_peer_whose_link_closed_is_not_asked_before_it_is_heard_again() -> None:
    """It may have died a moment ago: a leader that asks it loses an election timeout."""
    cluster = led(3)
    cluster.engine("n1").core.link_closed(NodeId("n3"))
    assert refused(cluster, cluster.transfer("n1", "n3"), CatchingUp) == (
        "n3 was not heard since the connection to it ended"
    )
    token = cluster.transfer("n1")
    assert cluster.engine("n1").core.transfers.target == "n2"
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    cluster.run(2)
    cluster.engine("n2").core.link_closed(NodeId("n3"))
    cluster.run(2 * HEARTBEAT_TICKS)
    token = cluster.transfer("n2", "n3")
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n3"))


def test_a_leader_chooses_each_target_once() -> None:
    """n3 refused and answers heartbeats as before: it is not asked again and again, while appends
    wait."""
    cluster = led(3)
    for name in ("n2", "n3"):
        cluster.engine(name).core._election.bar(100)
    token = cluster.transfer("n1")
    (ask,) = cluster.take(is_transfer)
    assert ask.target == "n3"
    cluster.deliver(ask)
    cluster.deliver_all()
    cluster.deliver(envelope(cluster, "n3", "n1", HeartbeatReply(Term(1), 0)))
    cluster.settle()
    assert refused(cluster, token, CatchingUp) == "n2 cannot take over now"


def test_a_leader_that_tried_for_long_chooses_no_other_target() -> None:
    cluster = led(3)
    cluster.auto_flush = False
    cluster.propose("n1", b"slow")
    token = cluster.transfer("n1")
    run_with_hung_disk(cluster, "n3", ELECTION_TICKS - 2)
    cluster.flush("n3")
    cluster.deliver_all()
    (ask,) = cluster.take(is_transfer)
    assert ask.target == "n3"
    run_with_hung_disk(cluster, "n3", 4)
    cluster.deliver(envelope(cluster, "n3", "n1", TransferRefused(Term(1), 1)))
    assert refused(cluster, token, CatchingUp) == "n3 cannot take over now"


def test_a_refusal_that_was_not_asked_for_is_counted_and_changes_nothing() -> None:
    cluster = led(3)
    refusals = raft_state(cluster, "n1").refused
    before = refusals.total()
    cluster.deliver(envelope(cluster, "n2", "n1", TransferRefused(Term(1), 1)))
    token = cluster.transfer("n1", "n3")
    kept = cluster.take(is_transfer)
    cluster.deliver(envelope(cluster, "n2", "n1", TransferRefused(Term(1), 1)))
    assert token not in cluster.answers
    assert refusals.total() == before + 2
    cluster.table += kept
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n3"))


def test_a_stopping_node_tells_its_leader_at_once_and_no_leadership_goes_there() -> None:
    cluster = led(3)
    cluster.stop("n2")
    told = [one.message for one in cluster.table]
    assert told == [HeartbeatReply(Term(1), 0, unfit=True)]
    cluster.settle()
    assert refused(cluster, cluster.transfer("n1", "n2"), CatchingUp) == (
        "n2 stops, or cannot serve"
    )
    token = cluster.transfer("n1")
    cluster.settle()
    assert cluster.answers[token] == Transferred(NodeId("n3"))


def test_a_node_that_stops_does_not_campaign_and_refuses_a_transfer() -> None:
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    kept = cluster.take(is_transfer)
    cluster.turn("n2", [])
    cluster.engine("n2").core.raft.stopping = True
    cluster.table += kept
    cluster.settle()
    assert isinstance(cluster.answers[token], CatchingUp)
    cluster.crash("n1")
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.leader() == "n3"
    assert not happened(cluster, "n2", EventKind.PRE_CAMPAIGNS)


def test_a_node_that_stops_amid_a_pre_vote_does_not_campaign() -> None:
    """The answer to its pre-vote comes when it stops."""
    cluster = led(3)
    cluster.crash("n1")
    while not happened(cluster, "n2", EventKind.PRE_CAMPAIGNS):
        cluster.tick("n2")
    answers = [one for one in cluster.table if one.source == "n2"]
    cluster.table = answers
    cluster.tick("n3", 2 * ELECTION_TICKS)
    cluster.stop("n2")
    cluster.settle()
    assert not happened(cluster, "n2", EventKind.CAMPAIGNS)


def test_a_target_whose_link_closes_ends_the_transfer_at_once() -> None:
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    cluster.engine("n1").core.link_closed(NodeId("n2"))
    cluster.turn("n1")
    assert refused(cluster, token, CatchingUp) == "the connection to n2 ended"
    append = cluster.propose("n1", b"goes on")
    cluster.settle()
    receipt(cluster, append)


def test_a_leader_that_loses_its_term_meanwhile_says_who_leads() -> None:
    cluster = led(3)
    token = cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    cluster.isolate("n1")
    cluster.run(3 * ELECTION_TICKS)
    answer = cluster.answers[token]
    assert isinstance(answer, CatchingUp | Timeout | NotLeader)
    assert cluster.leader() in ("n2", "n3")


def test_appends_beyond_the_limits_are_told_of_the_transfer() -> None:
    cluster = led(3, config(pending_appends=2))
    cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    cluster.propose("n1", b"a")
    cluster.propose("n1", b"b")
    problem = refused(cluster, cluster.propose("n1", b"c"), Transferring)
    assert problem.startswith("n1 gives the leadership to n2; 2 appends wait already")


def test_nothing_expires_while_the_leader_asks_the_target() -> None:
    cluster = led(3)
    open_producer(cluster, "p")
    cluster.run(900)
    cluster.transfer("n1", "n2")
    cluster.take(is_transfer)
    cluster.engine("n1")._expiry._due_at = 0
    last = raft_state(cluster, "n1").log.last_index
    cluster.run(10)
    assert raft_state(cluster, "n1").log.last_index == last
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n1").log.last_index > last
    assert len(cluster.engine("n1").state.producers) == 0


def test_a_target_that_lags_gets_all_entries_first() -> None:
    cluster = led(3)
    cluster.isolate("n2")
    append_many(cluster, "n1", 20)
    cluster.settle()
    cluster.heal()
    token = cluster.transfer("n1", "n2")
    cluster.run(ELECTION_TICKS)
    assert cluster.answers[token] == Transferred(NodeId("n2"))
    assert_same(cluster)


def test_a_target_that_cannot_catch_up_in_time_costs_no_append_anything() -> None:
    """The target answers heartbeats and takes no entries: nothing is held back for it."""
    cluster = led(3, config(window_messages=1, append_entries=1))
    lost = 0
    token = None
    for tick in range(2 * ELECTION_TICKS):
        cluster.tick()
        if tick == 5:
            token = cluster.transfer("n1", "n2")
        append = cluster.propose("n1", b"goes on")
        while cluster.table:
            lost += len(
                cluster.take(lambda one: isinstance(one.message, Append) and one.target == "n2")
            )
            cluster.deliver_all()
        assert isinstance(cluster.answers[append], Receipt)
    assert lost
    assert token is not None
    assert isinstance(cluster.answers[token], Timeout)
