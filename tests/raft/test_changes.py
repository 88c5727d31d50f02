"""Changes of the members, by real engines that are moved by hand (R1 to R11 of docs/rules.md)."""

from __future__ import annotations

import pytest

from changes_rig import (
    change,
    led_by_voters,
    members,
    memberships,
    nodes,
    refused,
    run_until,
)
from cluster_rig import append_many, assert_same, raft_state
from core_rig import ELECTION_TICKS, leading
from quorate.entry import entry_without_body, parse_header
from quorate.errors import (
    Busy,
    CatchingUp,
    DiskFull,
    InvalidArgument,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
)
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.raft.memberships import Memberships
from quorate.raft.output import MembersChanged
from quorate.replica.engine_io import Room
from quorate.types import Index, NodeId, Role
from verification.hand import HandCluster


def test_new_voters_are_learners_first_then_joint_then_alone() -> None:
    cluster = led_by_voters(3, voters=1)
    token = change(cluster, members([1, 2, 3]))
    cluster.run(3 * ELECTION_TICKS)
    assert memberships(cluster, "n1") == [
        members([1], [2, 3]),
        Membership(nodes(1, 2, 3), outgoing=nodes(1)),
        members([1, 2, 3]),
    ]
    answer = cluster.answers[token]
    assert isinstance(answer, MembersChanged)
    assert answer.index == raft_state(cluster, "n1").memberships.index
    append_many(cluster, "n1", 3)
    cluster.run(5)
    assert_same(cluster)
    # All three count: two of them go on without the third.
    cluster.crash("n1")
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() in ("n2", "n3")


def test_learners_and_priorities_change_by_one_entry() -> None:
    cluster = led_by_voters(4, voters=3)
    wanted = Membership(nodes(1, 2, 3), nodes(4), priorities=((NodeId("n2"), 7),))
    token = change(cluster, wanted)
    cluster.run(5)
    assert memberships(cluster, "n1") == [wanted]
    assert isinstance(cluster.answers[token], MembersChanged)
    append_many(cluster, "n1", 2)
    cluster.run(5)
    assert raft_state(cluster, "n4").applied == raft_state(cluster, "n1").applied
    assert "n4" not in raft_state(cluster, "n4").electorate.voters


def test_a_learner_decides_nothing_and_campaigns_last() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(5)
    cluster.crash("n2")
    cluster.crash("n3")
    token = cluster.propose("n1", b"x")
    cluster.run(3 * ELECTION_TICKS)
    assert token not in cluster.answers or isinstance(cluster.answers[token], QuorateError)
    assert cluster.engine("n4").role is Role.FOLLOWER
    cluster.crash("n1")
    cluster.run(2 * ELECTION_TICKS)
    assert cluster.engine("n4").role is Role.FOLLOWER


def test_a_voter_that_lags_is_not_promoted() -> None:
    cluster = led_by_voters(4, voters=3)
    cluster.isolate("n4")
    token = change(cluster, members([1, 2, 4]), patience_ms=5000)
    cluster.run(ELECTION_TICKS)
    assert token not in cluster.answers
    cluster.run(12 * ELECTION_TICKS)
    assert "n4" in refused(cluster, token, CatchingUp)
    # It stays a learner, and no majority depends on it.
    assert memberships(cluster, "n1") == [members([1, 2, 3], [4])]


def test_a_change_whose_entry_is_not_committed_in_time_has_an_unknown_outcome() -> None:
    """A retriable error says that nothing was logged, and the learners may yet be committed."""
    cluster = led_by_voters(4, voters=3)
    for peer in ("n2", "n3"):
        cluster.cut(peer, "n1")
    token = change(cluster, members([1, 2, 3], [4]), patience_ms=200)
    cluster.run(ELECTION_TICKS // 2)
    index = raft_state(cluster, "n1").memberships.index
    assert f"entry {index} of the change is not committed" in refused(
        cluster, token, OutcomeUnknown
    )
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n1").committed >= index
    assert memberships(cluster, "n1") == [members([1, 2, 3], [4])]


def test_a_transfer_gives_a_change_up_once_its_last_entry_is_committed() -> None:
    """No request has an unknown outcome because of a transfer."""
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([1, 2, 4]))
    cluster.transfer("n1", "n2")
    assert token not in cluster.answers
    cluster.run(ELECTION_TICKS)
    assert "a transfer of the leadership began" in refused(cluster, token, Busy)
    assert memberships(cluster, "n2") == [members([1, 2, 3], [4])]
    assert cluster.leader() == "n2"


def test_a_change_that_is_committed_and_not_applied_is_not_called_failed() -> None:
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([1, 2, 3], [4]))
    core = cluster.engine("n1").core
    core.raft.commit(core.raft.memberships.index)
    core.changes.give_up(Busy("a transfer of the leadership began"))
    cluster.run(ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)


def test_a_change_that_is_done_when_a_transfer_begins_succeeds() -> None:
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([1, 2, 3], [4]))
    cluster.transfer("n1", "n2")
    assert token not in cluster.answers
    cluster.run(ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)
    assert cluster.leader() == "n2"


def test_a_majority_that_does_not_answer_begins_no_joint_membership() -> None:
    cluster = led_by_voters(5, voters=3)
    cluster.isolate("n4")
    cluster.isolate("n5")
    token = change(cluster, members([1, 4, 5]), patience_ms=2000)
    cluster.run(14 * ELECTION_TICKS)
    assert "n4, n5" in refused(cluster, token, NoQuorum)
    assert not raft_state(cluster, "n1").memberships.newest.joint
    append_many(cluster, "n1", 1)


@pytest.mark.parametrize("heard", [(2, 3), (4, 5, 6)], ids=["outgoing", "new"])
def test_while_joint_a_leader_that_hears_one_half_answers_no_read_and_steps_down(
    heard: tuple[int, ...],
) -> None:
    cluster = led_by_voters(6, voters=3)
    change(cluster, members([4, 5, 6]))
    run_until(cluster, lambda: raft_state(cluster, "n1").memberships.newest.joint)
    for name in {*nodes(2, 3, 4, 5, 6)} - {*nodes(*heard)}:
        cluster.cut("n1", name)
        cluster.cut(name, "n1")
    token = cluster.read("n1")
    cluster.run(ELECTION_TICKS // 2)
    assert cluster.engine("n1").role is Role.LEADER
    assert token not in cluster.answers
    cluster.run(3 * ELECTION_TICKS)
    assert cluster.engine("n1").role is not Role.LEADER


def test_a_leader_that_is_removed_gives_the_leadership_away() -> None:
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([2, 3, 4]))
    cluster.run(3 * ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)
    assert cluster.leader() in ("n2", "n3", "n4")
    assert cluster.engine("n1").role is Role.FOLLOWER
    append_many(cluster, str(cluster.leader()), 2)
    cluster.run(12 * ELECTION_TICKS)
    # It campaigns no more, and disturbs no one.
    assert cluster.engine("n1").role is Role.FOLLOWER
    terms = {cluster.engine(name).core.raft.term for name in ("n2", "n3", "n4")}
    assert len(terms) == 1


def test_a_leader_that_is_removed_does_not_count_itself() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([2, 3, 4]))
    raft = raft_state(cluster, "n1")
    run_until(cluster, lambda: raft.memberships.newest == members([2, 3, 4]))
    for name in ("n2", "n4"):
        cluster.cut(name, "n1")
    cluster.take(lambda one: one.source in ("n2", "n4"))
    cluster.run(ELECTION_TICKS // 2)
    assert raft.persisted >= raft.memberships.index
    assert raft.committed < raft.memberships.index
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert raft.committed >= raft.memberships.index


def test_a_leader_that_is_removed_steps_down_at_once() -> None:
    """It leads no voter that could tell it of the next term, and would take appends in vain."""
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([2, 3, 4]))
    while token not in cluster.answers:
        cluster.run(1)
    cluster.run(5)
    assert cluster.leader() in ("n2", "n3", "n4")
    assert cluster.engine("n1").role is Role.FOLLOWER


def test_a_removed_node_that_was_down_does_not_depose_the_leader() -> None:
    cluster = led_by_voters(4, voters=3)
    cluster.crash("n3")
    change(cluster, members([1, 2, 4]))
    cluster.run(30 * ELECTION_TICKS)
    assert memberships(cluster, "n1")[-1] == members([1, 2, 4])
    term = raft_state(cluster, "n1").term
    cluster.restart("n3")
    cluster.run(12 * ELECTION_TICKS)
    assert cluster.leader() == "n1"
    assert raft_state(cluster, "n1").term == term


def test_a_membership_counts_before_its_commit_and_goes_with_its_entry() -> None:
    """R1: the leader that logged it needs both majorities; once another leader has replaced the
    entry, only the old voters count."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    cluster.isolate("n1")
    change(cluster, members([1, 2, 4]))
    cluster.run(3)
    raft = raft_state(cluster, "n1")
    assert raft.memberships.newest == Membership(nodes(1, 2, 4), outgoing=nodes(1, 2, 3))
    assert raft.electorate.voters == {*nodes(1, 2, 3, 4)}
    cluster.run(4 * ELECTION_TICKS)
    append_many(cluster, str(cluster.leader()), 1)
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert raft.log.last == raft_state(cluster, "n2").log.last
    assert raft.memberships.newest == members([1, 2, 3], [4])
    assert raft.electorate.voters == {*nodes(1, 2, 3)}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (members([1, 2]), "2 voters survive no more losses than 1"),
        (members([1, 2, 3, 4]), "4 voters survive no more losses than 3"),
        (Membership(nodes(1), outgoing=nodes(1, 2, 3)), "no outgoing ones"),
    ],
)
def test_a_change_that_helps_no_one_is_refused(wanted: Membership, problem: str) -> None:
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, wanted)
    assert problem in refused(cluster, token, InvalidArgument)
    assert memberships(cluster, "n1") == []


def test_an_even_number_of_voters_needs_force() -> None:
    cluster = led_by_voters(2, voters=1)
    token = change(cluster, members([1, 2]), forced=True)
    cluster.run(3 * ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)
    assert raft_state(cluster, "n2").electorate.voters == {*nodes(1, 2)}


def test_a_request_that_saw_other_members_or_is_older_is_refused() -> None:
    cluster = led_by_voters(4, voters=3)
    token = change(cluster, members([1, 2, 3], [4], intent=5), expect=Index(0))
    cluster.run(5)
    assert isinstance(cluster.answers[token], MembersChanged)
    token = change(cluster, members([1, 2, 3], intent=6), expect=Index(0))
    assert "look again" in refused(cluster, token, Busy)
    token = change(cluster, members([1, 2, 3], intent=4))
    assert "request 4 is older than request 5" in refused(cluster, token, InvalidArgument)


def test_one_change_at_a_time_and_the_same_again_joins_it() -> None:
    cluster = led_by_voters(5, voters=3)
    cluster.isolate("n4")
    first = change(cluster, members([1, 2, 4]))
    other = change(cluster, members([1, 2, 5]))
    again = change(cluster, members([1, 2, 4]))
    assert "under way" in refused(cluster, other, Busy)
    cluster.run(3)
    cluster.heal()
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.answers[first] == cluster.answers[again]
    assert isinstance(cluster.answers[first], MembersChanged)


def test_only_the_leader_changes_members() -> None:
    cluster = led_by_voters(3, voters=3)
    token = cluster.change("n2", MemberChange(members([1, 2, 3])))
    assert refused(cluster, token, NotLeader)


def test_what_is_wanted_already_is_answered_at_once() -> None:
    cluster = led_by_voters(3, voters=3)
    token = change(cluster, members([1, 2, 3]))
    assert cluster.answers[token] == MembersChanged(Index(0))


def test_a_transfer_gives_up_a_change_that_waits_for_a_learner() -> None:
    """B7: a node that stops must not wait for a learner that lags."""
    cluster = led_by_voters(4, voters=3)
    cluster.isolate("n4")
    waits = change(cluster, members([1, 2, 4]))
    cluster.run(3)
    cluster.transfer("n1", "n2")
    cluster.run(5)
    assert "a transfer of the leadership began" in refused(cluster, waits, Busy)
    assert cluster.leader() == "n2"


@pytest.mark.parametrize("target", ["n9", "n3"])
def test_a_transfer_that_is_refused_ends_no_change(target: str) -> None:
    """n9 is unknown, and n3 does not answer."""
    cluster = led_by_voters(4, voters=3)
    cluster.isolate("n4")
    cluster.crash("n3")
    cluster.run(ELECTION_TICKS // 2)
    token = change(cluster, members([1, 2, 4]))
    transfer = cluster.transfer("n1", target)
    assert isinstance(cluster.answers[transfer], QuorateError)
    assert token not in cluster.answers
    cluster.heal()
    cluster.run(4 * ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)


def test_a_restart_and_a_checkpoint_keep_the_members() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([2, 3, 4]))
    cluster.run(4 * ELECTION_TICKS)
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.restart(name)
        assert raft_state(cluster, name).memberships.newest == members([2, 3, 4])
    cluster.run(6 * ELECTION_TICKS)
    leader = str(cluster.leader())
    assert leader in ("n2", "n3", "n4")
    # n1 does not know that the others committed its removal. It asks for votes, and gets none.
    term = raft_state(cluster, leader).term
    append_many(cluster, leader, 2)
    cluster.run(6 * ELECTION_TICKS)
    assert cluster.leader() == leader
    assert raft_state(cluster, leader).term == term


def test_a_membership_waits_for_the_commit_of_the_one_before() -> None:
    """R3: two uncommitted memberships could leave a majority of the first one behind."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    for peer in ("n2", "n3"):
        cluster.cut(peer, "n1")
    change(cluster, members([1, 2, 4]))
    cluster.run(ELECTION_TICKS // 2)
    assert len(memberships(cluster, "n1")) == 2
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert memberships(cluster, "n1")[-1] == members([1, 2, 4])


@pytest.mark.parametrize("flag", ["unfit", "full"])
def test_a_voter_that_is_not_fit_is_not_promoted(flag: str) -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    cluster.cut("n4", "n1")
    setattr(leader.progress[NodeId("n4")], flag, True)
    token = change(cluster, members([1, 2, 4]), patience_ms=200)
    cluster.run(30)
    assert "n4 cannot vote yet" in refused(cluster, token, CatchingUp)


def test_a_replica_that_comes_later_begins_unsure() -> None:
    """R7: it may be in the place of a disk that acknowledged entries, and is lost."""
    cluster = HandCluster(2, voters=1)
    assert raft_state(cluster, "n1").sure
    assert not raft_state(cluster, "n2").sure
    cluster.crash("n2")
    cluster.restart("n2")
    assert not raft_state(cluster, "n2").sure


def test_a_removed_leader_steps_down_without_a_successor() -> None:
    cluster = led_by_voters(2, voters=1)
    token = change(cluster, members([2]))
    while raft_state(cluster, "n1").memberships.newest != members([2]):
        cluster.run(1)
    while token not in cluster.answers:
        cluster.tick()
        cluster.flush("n2")
        cluster.settle()
    cluster.isolate("n1")
    cluster.run(3 * ELECTION_TICKS)
    assert cluster.engine("n1").role is not Role.LEADER


def test_a_removed_peer_is_fed_until_it_knows() -> None:
    """R11: a node that does not know of its removal asks for votes again and again."""
    cluster = led_by_voters(4, voters=3)
    cluster.cut("n1", "n3")
    change(cluster, members([1, 2, 4]))
    cluster.run(3 * ELECTION_TICKS)
    assert memberships(cluster, "n1")[-1] == members([1, 2, 4])
    assert raft_state(cluster, "n3").memberships.newest != members([1, 2, 4])
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    assert "n3" in leader.progress
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n3").memberships.newest == members([1, 2, 4])
    # The commit is told for an election timeout: a message may be lost.
    assert "n3" in leader.progress
    cluster.run(ELECTION_TICKS)
    assert "n3" not in leader.progress


def test_a_removed_peer_that_does_not_answer_is_fed_for_a_while() -> None:
    cluster = led_by_voters(4, voters=3)
    cluster.crash("n3")
    change(cluster, members([1, 2, 4]))
    cluster.run(5 * ELECTION_TICKS)
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    assert "n3" in leader.progress
    cluster.run(8 * ELECTION_TICKS)
    assert "n3" not in leader.progress


def test_a_peer_that_comes_back_begins_anew() -> None:
    """What it acknowledged before its removal may be dropped since."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    assert leader.progress[NodeId("n4")].match
    cluster.isolate("n4")
    change(cluster, members([1, 2, 3]))
    cluster.run(5)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(5)
    assert leader.progress[NodeId("n4")].match == 0


def test_no_membership_is_logged_during_a_transfer() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    cluster.cut("n2", "n1")
    cluster.propose("n1", b"not acknowledged by n2")
    cluster.transfer("n1", "n2")
    token = change(cluster, members([1, 2, 4]))
    assert "a transfer to n2 is under way" in refused(cluster, token, Busy)
    cluster.run(ELECTION_TICKS // 2)
    assert len(memberships(cluster, "n1")) == 1


def test_a_change_that_waits_is_not_logged_while_the_leader_leaves() -> None:
    """The transfer of a leader that leaves gives up no change."""
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    core = cluster.engine("n1").core
    assert core.leader is not None
    cluster.isolate("n4")
    cluster.propose("n1", b"n4 lacks it")
    cluster.run(ELECTION_TICKS + 1)
    change(cluster, members([1, 2, 4]))
    cluster.heal()
    for target in ("n2", "n3"):
        cluster.cut(target, "n1")
    cluster.propose("n1", b"not acknowledged: no target is asked")
    core.transfers.begin_to_leave(core.leader)
    held = 0
    for _ in range(ELECTION_TICKS // 2):
        cluster.run(1)
        assert core.leader is not None
        if core.transfers.target is not None and core.changes.due(core.leader) is not None:
            assert core.membership_due is None
            assert len(memberships(cluster, "n1")) == 1
            held += 1
    assert held


def test_a_node_without_the_newest_membership_never_leads() -> None:
    """It does not know the voters that it would have to count."""
    cluster = led_by_voters(3, voters=3)
    change(cluster, members([1, 2, 3], intent=1))
    cluster.run(5)
    raft = raft_state(cluster, "n2")
    (entry,) = raft.log.entries(raft.memberships.index, Index(raft.memberships.index + 1))
    header = parse_header(entry.header)
    assert header is not None
    raft.memberships = Memberships(members([1, 2, 3]))
    raft.memberships.take([entry_without_body(entry.header, header)])
    assert not raft.may_feed


def test_a_learner_that_lags_a_little_is_not_promoted_before_it_has_all() -> None:
    cluster = led_by_voters(4, voters=3)
    change(cluster, members([1, 2, 3], [4]))
    cluster.run(ELECTION_TICKS)
    cluster.cut("n4", "n1")
    append_many(cluster, "n1", 2)
    token = change(cluster, members([1, 2, 4]))
    cluster.run(5)
    assert memberships(cluster, "n1") == [members([1, 2, 3], [4])]
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)


def test_a_new_leader_logs_no_membership_before_an_entry_of_its_own_term_is_committed() -> None:
    """R3: until then it does not know which memberships of earlier terms are committed."""
    rig = leading(settled=False)
    rig.core.change(1, MemberChange(members([1, 2, 3], [4])))
    assert rig.core.membership_due is None
    rig.settle()
    rig.core.raft.applied = rig.core.raft.committed
    assert rig.core.membership_due == members([1, 2, 3], [4])


def test_a_membership_that_a_start_found_is_forgotten_with_its_entry() -> None:
    """The blocks of the disk name it. A node that took it for lost would never lead again."""
    cluster = led_by_voters(3, voters=3)
    cluster.isolate("n1")
    change(cluster, members([1, 2, 3], intent=1))
    cluster.run(2)
    cluster.propose("n1", b"a block that names it")
    cluster.crash("n1")
    cluster.restart("n1")
    assert memberships(cluster, "n1") == [members([1, 2, 3], intent=1)]
    cluster.run(3 * ELECTION_TICKS)
    cluster.heal()
    cluster.run(3 * ELECTION_TICKS)
    assert memberships(cluster, "n1") == []
    assert raft_state(cluster, "n1").may_feed


def test_a_change_is_refused_while_a_disk_has_only_its_reserve() -> None:
    cluster = led_by_voters(3, voters=3)
    disk_space = cluster.engine("n1").disk_space
    disk_space.room, disk_space.shortage = 0, "the disk is full"
    cluster.turn("n1", [Room(0, "the disk is full")])
    token = change(cluster, members([1, 2, 3], intent=1))
    cluster.run(5)
    assert "no majority of disks has room" in refused(cluster, token, DiskFull)
    assert memberships(cluster, "n1") == []


def test_a_membership_waits_for_allocated_space() -> None:
    """The disk is not full: its next segment is being allocated."""
    cluster = led_by_voters(3, voters=3)
    cluster.turn("n1", [Room(100, "")])
    token = change(cluster, members([1, 2, 3], intent=1))
    cluster.run(5)
    assert memberships(cluster, "n1") == []
    cluster.turn("n1", [Room(None, "")])
    cluster.run(5)
    assert isinstance(cluster.answers[token], MembersChanged)


def test_a_membership_waits_for_room() -> None:
    """It would block all entries after it."""
    cluster = led_by_voters(4, voters=3)
    cluster.isolate("n4")
    token = change(cluster, members([1, 2, 4]))
    cluster.run(3)
    for name in ("n1", "n2", "n3"):
        cluster.turn(name, [Room(60_000, "95 % of the disk are in use")])
    cluster.heal()
    cluster.run(3 * ELECTION_TICKS)
    assert memberships(cluster, "n1") == [members([1, 2, 3], [4])]
    for name in ("n1", "n2", "n3"):
        cluster.turn(name, [Room(None, "")])
    cluster.run(3 * ELECTION_TICKS)
    assert isinstance(cluster.answers[token], MembersChanged)
