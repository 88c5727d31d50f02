"""Each check of the simulator is given a violation, and must raise the alarm.

A check that cannot fail proves nothing. A world that is well is played until it rests; then one
thing in it, or in what the simulator remembers, is made wrong.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from quorate.commands import Receipt
from quorate.entry import make_entry
from quorate.errors import Damaged, StateDiverged
from quorate.membership import Membership, encode_membership
from quorate.raft.messages import Ack, Append, Envelope, VoteReply
from quorate.raft.output import Event, EventKind, MembersChanged
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Answer, Effects, Propose, Read
from quorate.types import EntryKind, Index, NodeId, Position, Role, Term
from verification.disk.store import Store
from verification.sim import recovery_phase as recovery
from verification.sim.changes import require_settled_members
from verification.sim.decisions import Decisions
from verification.sim.options import swarm
from verification.sim.violation import Violation
from verification.sim.voter_sets import LoggedSets, VoterSets, first_sets
from verification.sim.work import check_work
from verification.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quorate.entry import Entry
    from verification.sim.node import SimulatedNode

EVENTS = 1_500


@pytest.fixture
def world() -> World:
    """A cluster that is well and at rest."""
    options = replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={}, uneven=False)
    made = World(replace(options, disk_us=200), Decisions("checks", []))
    made.under_fire()
    made.heal()
    made.run_until(lambda: False, made.now + 1_000_000)
    assert made.invariants.committed
    return made


class Case:
    """A world with what most checks want of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules = world.invariants
        self.promises: Any = world.invariants.promises
        leader = world.leader()
        assert leader is not None
        self.leader: SimulatedNode = leader
        self.follower: SimulatedNode = next(
            node for node in world.nodes.values() if node is not leader
        )
        assert leader.engine is not None
        self.engine: Engine = leader.engine
        self.raft = leader.engine.core.raft
        self.last = self.raft.log.last_index

    def seen(self, node: SimulatedNode) -> Any:
        return self.rules._seen[node.name]

    def members(self, node: SimulatedNode) -> LoggedSets:
        """The members that the log of ``node`` sets."""
        return self.rules.members_of(node.name)

    def membership(
        self,
        voters: Iterable[NodeId],
        outgoing: Iterable[NodeId] = (),
        intent: int = 0,
        term: Term | None = None,
        after: Entry | None = None,
    ) -> Entry:
        """An entry that sets members, after the last entry of the leader or another one."""
        body = encode_membership(Membership(tuple(voters), outgoing=tuple(outgoing), intent=intent))
        term = self.raft.term if term is None else term
        before = self.raft.log.last if after is None else after.position
        return make_entry(before, term, EntryKind.MEMBERSHIP, body)

    def log_membership(self, *entries: Entry) -> None:
        """Let the simulator find ``entries``, which set members, in the log of the leader."""
        seen = self.seen(self.leader)
        for entry in entries:
            self.rules.quorums.entered(self.leader, seen.members, entry, seen.log)

    def send(self, node: SimulatedNode, message: Any) -> None:
        assert node.engine is not None
        target = next(name for name in self.world.names if name != node.name)
        boot: Any = None
        envelope = Envelope(self.world.group, node.name, target, boot, message)
        self.promises.check_send(node, node.engine.core.raft, envelope)

    def entry_after_the_last(self) -> Any:
        position = Position(Index(self.last + 1), self.raft.term, 77)
        return SimpleNamespace(position=position, index=position.index, term=position.term)

    def raft_of(self, node: SimulatedNode) -> Any:
        assert node.engine is not None
        return node.engine.core.raft


# -- what a node is and has ---------------------------------------------------------------------


def two_leaders_of_a_term(case: Case) -> None:
    case.rules._check_new_leader(case.follower, case.raft)


def a_leader_without_a_committed_entry(case: Case) -> None:
    case.rules._committed_by[Term(0)] = Index(case.last + 5)
    case.rules._check_new_leader(case.leader, case.raft)


def a_follower_that_commits_first(case: Case) -> None:
    case.rules.committed.clear()
    raft = case.raft_of(case.follower)
    case.rules._check_commit(case.follower, case.seen(case.follower), raft)


def a_commit_on_too_few_disks(case: Case) -> None:
    position = Position(case.last, case.raft.term, 77)
    case.rules.quorums.check_durable(case.leader, position, case.members(case.leader).newest)


def a_second_uncommitted_membership(case: Case) -> None:
    first = case.membership(case.world.first_voters, intent=1)
    case.log_membership(first, case.membership(case.world.first_voters, intent=2, after=first))


def a_membership_over_an_entry_that_may_go(case: Case) -> None:
    entry = case.membership(case.world.first_voters, term=Term(case.raft.term + 1))
    case.rules.committed.pop()
    case.log_membership(entry)


def two_memberships_without_a_common_majority(case: Case) -> None:
    first = case.world.first_voters[0]
    case.log_membership(case.membership([first, NodeId("n8"), NodeId("n9")]))


def a_membership_of_an_older_request(case: Case) -> None:
    row = VoterSets(Index(1), Term(0), case.world.first_voters, (), (), 5)
    case.members(case.leader).take(row)
    case.log_membership(case.membership(case.world.first_voters, intent=4))


def a_membership_with_an_odd_body(case: Case) -> None:
    entry = case.membership(case.world.first_voters)
    case.log_membership(replace(entry, body=entry.body + b"12345678"))


def a_leader_that_its_voters_did_not_elect(case: Case) -> None:
    case.promises._votes.clear()
    case.rules.quorums.check_win(case.leader, case.raft.term, case.members(case.leader))


def _joint(case: Case) -> LoggedSets:
    """Members of whom a second set has not agreed on anything: none of its nodes exists."""
    new = tuple(map(NodeId, ("n7", "n8", "n9")))
    rows = LoggedSets(first_sets(case.world.first_voters))
    rows.take(VoterSets(Index(1), Term(0), new, case.world.first_voters, (), 0))
    return rows


def a_leader_that_never_was_a_voter(case: Case) -> None:
    rows = LoggedSets(first_sets([case.follower.name]))
    case.rules.quorums.check_win(case.leader, case.raft.term, rows)


def a_leader_that_one_of_two_sets_elected(case: Case) -> None:
    case.rules.quorums.check_win(case.leader, case.raft.term, _joint(case))


def a_commit_that_one_of_two_sets_acknowledged(case: Case) -> None:
    acks = dict.fromkeys(case.world.names, case.last)
    case.rules.quorums.check_commit(case.leader, case.raft.log.last, _joint(case), acks)


def a_commit_that_no_peer_acknowledged(case: Case) -> None:
    rows = case.members(case.leader)
    case.rules.quorums.check_commit(case.leader, case.raft.log.last, rows, {})


def a_commit_on_one_of_two_sets_of_disks(case: Case) -> None:
    row = _joint(case).newest
    case.rules.quorums.check_durable(case.leader, case.raft.log.last, row)


def a_counted_voter_that_forgot_its_vote(case: Case) -> None:
    case.promises._last_votes[case.follower.name] = (Term(case.raft.term + 1), NodeId("n9"))
    acks = dict.fromkeys(case.world.names, case.last)
    rows = case.members(case.leader)
    case.rules.quorums.check_commit(case.leader, case.raft.log.last, rows, acks)


def a_counted_voter_on_an_empty_disk(case: Case) -> None:
    """A wiped disk that keeps its name: it must be another member (R9)."""
    case.follower.store = Store(case.follower.name)
    rows = case.members(case.leader)
    for name in case.world.names:
        case.promises._votes[name, case.raft.term] = case.leader.name
    case.rules.quorums.check_win(case.leader, case.raft.term, rows)


def a_change_to_other_members_than_asked(case: Case) -> None:
    changes = case.world.clients.changes
    token = changes.ask(case.leader, case.world.first_voters, intent=7)
    assert token is not None
    case.rules.committed[0] = case.membership(case.world.first_voters, intent=6)
    case.world.clients.answered(case.leader, [Answer(token, MembersChanged(Index(1)))])


def a_change_that_does_not_end(case: Case) -> None:
    entry = case.membership(case.world.first_voters, intent=1)
    case.log_membership(entry)
    require_settled_members(case.world)


def a_receipt_of_too_many_disks(case: Case) -> None:
    entry = case.rules.committed[-1]
    receipt = Receipt(entry.base_offset, 1, entry.term, entry.index, synced=4)
    case.world.clients.check_copies(case.leader, receipt)


def another_committed_entry(case: Case) -> None:
    case.rules.committed[case.raft.committed - 1] = case.entry_after_the_last()
    case.rules._check_commit(case.leader, case.seen(case.leader), case.raft)


def a_leader_that_cuts_its_log(case: Case) -> None:
    case.seen(case.leader).log.append(case.entry_after_the_last())
    case.rules._check_log(case.leader, case.seen(case.leader), case.raft)


def a_cut_below_committed(case: Case) -> None:
    seen = case.seen(case.follower)
    seen.log.append(case.entry_after_the_last())
    seen.committed = Index(case.last + 1)
    case.rules._check_log(case.follower, seen, case.raft_of(case.follower))


def a_cut_of_what_another_node_committed(case: Case) -> None:
    seen = case.seen(case.follower)
    entry = case.entry_after_the_last()
    seen.log.append(entry)
    case.rules.committed.append(entry)
    case.rules._check_log(case.follower, seen, case.raft_of(case.follower))


def another_entry_of_the_same_term(case: Case) -> None:
    entry, other = case.rules.committed[:2]
    case.rules._entries[entry.index, entry.term] = other
    case.rules._check_new_entries(case.leader, [entry])


def other_bytes_in_an_entry(case: Case) -> None:
    entry = case.rules.committed[0]
    spoiled: Any = SimpleNamespace(
        position=entry.position, index=entry.index, term=entry.term, whole=True,
        header=entry.header, body=entry.body + b"!",
    )  # fmt: skip
    case.rules._check_new_entries(case.leader, [spoiled])


def a_term_that_falls(case: Case) -> None:
    case.seen(case.leader).term = Term(case.raft.term + 1)
    case.rules.after_turn(case.leader, [], Effects())


def a_term_that_is_forgotten(case: Case) -> None:
    case.promises._terms_sent[case.follower.name] = Term(case.raft.term + 1)
    case.rules.started(case.follower)


def a_vote_that_is_forgotten(case: Case) -> None:
    raft = case.raft_of(case.follower)
    case.promises._votes[case.follower.name, raft.term] = NodeId("n9")
    case.rules.started(case.follower)


def marks_that_fall(case: Case) -> None:
    case.seen(case.leader).committed = Index(case.last + 1)
    case.rules._check_watermarks(case.leader, case.seen(case.leader), case.engine)


def marks_past_the_log(case: Case) -> None:
    case.raft.persisted = Index(case.last + 1)
    case.rules._check_watermarks(case.leader, case.seen(case.leader), case.engine)


def a_leader_that_hears_no_peer(case: Case) -> None:
    seen = case.seen(case.leader)
    seen.heard = dict.fromkeys(seen.heard, -1_000_000)
    case.rules._check_role(case.leader, seen, case.engine)


def a_match_that_was_never_acked(case: Case) -> None:
    seen, name = case.seen(case.leader), case.follower.name
    seen.acks.pop(name, None)
    case.rules._check_match(case.leader, seen, name, case.last, case.raft)


def a_match_that_is_not_on_disk(case: Case) -> None:
    seen, name = case.seen(case.leader), case.follower.name
    seen.acks[name] = case.last
    case.follower.store.durable.places.clear()
    case.rules._check_match(case.leader, seen, name, case.last, case.raft)


def a_full_queue_that_grew(case: Case) -> None:
    limits = case.leader.config.limits
    grown: Any = SimpleNamespace(
        core=SimpleNamespace(leader=None, reads_waiting=0), durability=SimpleNamespace(held=0),
        pending_appends=limits.pending_appends + 1, pending_bytes=0,
    )  # fmt: skip
    case.rules._check_caps(case.leader, grown)


# -- what a node says ---------------------------------------------------------------------------


def a_term_that_is_not_on_disk(case: Case) -> None:
    case.send(case.follower, Ack(Term(case.raft.term + 1), 1, Index(1)))


def an_ack_of_what_is_not_on_disk(case: Case) -> None:
    case.follower.store.durable.places.clear()
    case.send(case.follower, Ack(case.raft.term, 1, case.last))


def a_second_vote(case: Case) -> None:
    case.promises._votes[case.follower.name, case.raft.term] = NodeId("n9")
    case.send(case.follower, VoteReply(case.raft.term, granted=True))


def a_vote_that_is_not_on_disk(case: Case) -> None:
    case.promises._votes.clear()
    raft = case.raft_of(case.follower)
    case.promises._check_vote(case.follower, raft, raft.term, NodeId("n9"))


def a_vote_of_a_node_that_lost_an_entry(case: Case) -> None:
    entry = case.entry_after_the_last()
    case.rules.committed.append(entry)
    case.promises._acked[case.follower.name] = [entry.position]
    case.send(case.follower, VoteReply(case.raft.term, granted=True))


def an_append_without_a_body(case: Case) -> None:
    without_body: Any = SimpleNamespace(whole=False, size=1)
    message = Append(case.raft.term, 1, Position(Index(0), Term(0), 0), (without_body,), Index(0))
    case.send(case.leader, message)


def an_append_above_its_limit(case: Case) -> None:
    entries: Any = (SimpleNamespace(whole=True, size=1),) * 100_000
    message = Append(case.raft.term, 1, Position(Index(0), Term(0), 0), entries, Index(0))
    case.send(case.leader, message)


def two_leaders_met(case: Case) -> None:
    case.rules.check_events(case.leader, [Event(EventKind.SPLIT_LEADERS, case.raft.term)])


def a_throttle_above_committed(case: Case) -> None:
    above = Index(case.raft.committed + 1)
    event = Event(EventKind.PEER_THROTTLED, case.raft.term, index=above)
    case.rules.check_events(case.leader, [event])


# -- what a turn costs --------------------------------------------------------------------------


def a_turn_that_looks_at_too_much(case: Case) -> None:
    check_work(case.leader, 1, Effects(work=10_000_000), Index(0))


def a_turn_that_reads_too_much(case: Case) -> None:
    check_work(case.leader, 1, Effects(fetched=10_000_000), Index(0))


def a_turn_that_applies_too_much(case: Case) -> None:
    check_work(case.leader, 1, Effects(), Index(10_000_000))


def a_turn_that_says_too_much(case: Case) -> None:
    envelope: Any = None
    check_work(case.leader, 1, Effects(sends=[envelope] * 10_000_000), Index(0))


def an_entry_that_is_sent_again_and_again(case: Case) -> None:
    assert case.engine.core.leader is not None
    peer = next(iter(case.engine.core.leader.progress.values()))
    last = case.raft.log.last
    append = Append(case.raft.term, 1, last, (case.entry_after_the_last(),), last.index)
    boot = case.engine.boot
    envelope = Envelope(case.world.group, case.leader.name, peer.node, boot, append)
    case.leader._resends.check(Effects(sends=[envelope] * 100))


def nodes_that_do_not_stop_talking(case: Case) -> None:
    case.world._events_max = case.world.events
    case.world.count_event("message", case.leader.name)


# -- disks --------------------------------------------------------------------------------------


def a_halt_without_a_reason(case: Case) -> None:
    case.world.halted(case.leader, Damaged("0000000000000001.segment is damaged"), [])


def a_halt_that_names_another_file(case: Case) -> None:
    case.world.losses.note(case.leader, "0000000000000001.segment", 0)
    case.world.halted(case.leader, Damaged("0000000000000007.segment is damaged"), [])


def a_state_that_no_adversary_changed(case: Case) -> None:
    case.world.halted(case.leader, StateDiverged("another state"), [])


def a_halt_that_does_not_say_what_is_lost(case: Case) -> None:
    case.world.halts.append("something is wrong with a file")
    recovery.end_over_budget(case.world)


# -- a healthy cluster --------------------------------------------------------------------------


def no_leader(case: Case) -> None:
    for node in (case.leader, case.follower):
        node.wanted_up = False
        node.kill()
    recovery._require_leader(case.world)


def _cut_off(case: Case) -> None:
    name, others = case.follower.name, [*case.world.names]
    others.remove(name)
    case.world.network.cuts.update(case.world.links_between([name], others))
    case.world.clients.append(case.leader, size=10)
    case.world.run_until(lambda: case.world.clients.idle, case.world.now + 100_000)


def a_peer_that_is_not_fed(case: Case) -> None:
    _cut_off(case)
    recovery._require_feeding(case.world)


def copies_that_do_not_become_equal(case: Case) -> None:
    _cut_off(case)
    recovery._require_convergence(case.world)


def bytes_that_are_still_counted(case: Case) -> None:
    assert case.engine.core.leader is not None
    case.engine.core.leader.uncommitted_bytes = 5
    recovery._require_no_debts(case.engine)


def an_entry_that_is_gone(case: Case) -> None:
    case.rules.committed.append(case.entry_after_the_last())
    recovery._require_convergence(case.world)


def a_record_that_no_node_shows(case: Case) -> None:
    case.world.clients.ledger.ends[-1] += 5
    case.world.clients.readers.read_all([*case.world.nodes.values()])


CASES: tuple[tuple[Callable[[Case], None], str], ...] = (
    (two_leaders_of_a_term, "I1"),
    (two_leaders_met, "I1"),
    (another_entry_of_the_same_term, "I2"),
    (a_leader_without_a_committed_entry, "I3"),
    (a_follower_that_commits_first, "I4"),
    (a_leader_that_cuts_its_log, "I5"),
    (a_term_that_falls, "I6"),
    (a_term_that_is_forgotten, "I6"),
    (a_vote_that_is_forgotten, "I6"),
    (a_second_vote, "I6"),
    (marks_that_fall, "I6"),
    (a_commit_on_too_few_disks, "I7"),
    (a_commit_on_one_of_two_sets_of_disks, "I7"),
    (a_second_uncommitted_membership, "I11"),
    (a_membership_over_an_entry_that_may_go, "I11"),
    (two_memberships_without_a_common_majority, "I11"),
    (a_membership_of_an_older_request, "I11"),
    (a_membership_with_an_odd_body, "members"),
    (a_leader_that_its_voters_did_not_elect, "I16"),
    (a_leader_that_never_was_a_voter, "I16"),
    (a_leader_that_one_of_two_sets_elected, "I16"),
    (a_commit_that_one_of_two_sets_acknowledged, "I16"),
    (a_commit_that_no_peer_acknowledged, "I16"),
    (a_counted_voter_that_forgot_its_vote, "I17"),
    (a_counted_voter_on_an_empty_disk, "I17"),
    (a_change_to_other_members_than_asked, "C15"),
    (a_change_that_does_not_end, "C15"),
    (a_receipt_of_too_many_disks, "C1"),
    (another_committed_entry, "I8"),
    (a_cut_below_committed, "I8"),
    (a_cut_of_what_another_node_committed, "I8"),
    (marks_past_the_log, "I9"),
    (a_term_that_is_not_on_disk, "I10"),
    (an_ack_of_what_is_not_on_disk, "I10"),
    (a_vote_that_is_not_on_disk, "I10"),
    (a_match_that_was_never_acked, "I12"),
    (a_match_that_is_not_on_disk, "I12"),
    (a_vote_of_a_node_that_lost_an_entry, "I13"),
    (other_bytes_in_an_entry, "I14"),
    (an_append_without_a_body, "I14"),
    (an_append_above_its_limit, "I15"),
    (a_full_queue_that_grew, "I15"),
    (bytes_that_are_still_counted, "I15"),
    (a_leader_that_hears_no_peer, "check-quorum"),
    (a_throttle_above_committed, "throttle"),
    (a_turn_that_looks_at_too_much, "work"),
    (a_turn_that_reads_too_much, "work"),
    (a_turn_that_applies_too_much, "work"),
    (a_turn_that_says_too_much, "work"),
    (an_entry_that_is_sent_again_and_again, "resend"),
    (nodes_that_do_not_stop_talking, "storm"),
    (a_halt_without_a_reason, "halt"),
    (a_halt_that_names_another_file, "halt"),
    (a_state_that_no_adversary_changed, "halt"),
    (a_halt_that_does_not_say_what_is_lost, "halt"),
    (no_leader, "C11"),
    (a_peer_that_is_not_fed, "C11"),
    (copies_that_do_not_become_equal, "C11"),
    (an_entry_that_is_gone, "C1"),
    (a_record_that_no_node_shows, "C6"),
)


@pytest.mark.parametrize(("spoil", "rule"), CASES, ids=[case.__name__ for case, _ in CASES])
def test_the_alarm_is_raised(spoil: Callable[[Case], None], rule: str, world: World) -> None:
    with pytest.raises(Violation) as found:
        spoil(Case(world))
    assert found.value.rule == rule


def test_a_world_that_is_well_raises_none(world: World) -> None:
    recovery.recover_cluster(world)
    assert world.sometimes["recovered"] == 1


# -- questions that get no answer ---------------------------------------------------------------


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Callable[[type], None]:
    """Lets engines drop all that is asked of them in one way."""
    turn = Engine.turn

    def drop(kind: type) -> None:
        def deaf_turn(self: Engine, inputs: Any, now_ms: int, wall_us: int = 0) -> Effects:
            heard = [item for item in inputs if type(item) is not kind]
            return turn(self, heard, now_ms, wall_us)

        monkeypatch.setattr(Engine, "turn", deaf_turn)

    return drop


@pytest.mark.parametrize(
    ("require", "kind", "words"),
    [
        (recovery.serve_without_room, Read, "on full disks no leader answers a read"),
        (recovery.serve_without_room, Propose, "a majority has room for an append"),
        (recovery._require_reads, Read, "got no answer"),
        (recovery._require_appends, Propose, "was not acked in a healthy cluster"),
    ],
)
def test_a_demand_that_is_not_met(
    require: Callable[[World], None], kind: type, words: str, world: World, deaf: Any
) -> None:
    deaf(kind)
    with pytest.raises(Violation, match=words) as found:
        require(world)
    assert found.value.rule == "C11"


def test_an_operation_without_an_answer(world: World, deaf: Any) -> None:
    deaf(Read)
    world.clients.ask(Case(world).leader)
    with pytest.raises(Violation, match="an operation of a live process got no answer"):
        recovery._require_answers(world)


def test_states_that_differ(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    digests: Iterator[int] = iter(range(1000))
    state = type(Case(world).engine.state)
    monkeypatch.setattr(state, "digest", lambda self: next(digests))
    with pytest.raises(Violation) as found:
        recovery._require_convergence(world)
    assert found.value.rule == "C10"


def test_a_watchdog_that_has_to_act(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stalled(calm: World) -> None:
        calm.run_until(lambda: False, calm.now + 60_000_000)
        calm.sometimes[recovery.STALLED] += 1

    monkeypatch.setattr(recovery, "_require_records", stalled)
    with pytest.raises(Violation, match="the watchdog had to free a peer"):
        recovery.recover_cluster(world)


# -- what rot explains --------------------------------------------------------------------------


def test_only_rot_explains_a_halt_and_what_an_open_found(world: World) -> None:
    case = Case(world)
    losses, node = world.losses, case.follower
    name = max(file for file in node.store.disk.durable if file.endswith(".segment"))
    assert node.store.log is not None
    found: Any = SimpleNamespace(
        record=SimpleNamespace(unsure=False), damage=[SimpleNamespace(first=1, last=2)]
    )
    halt = Damaged(f"{name}: entries 1 to 2 are damaged")
    assert not losses.explain_halt(node, halt)
    assert not losses.explain_damage(node, found)
    place = node.store.durable.places[0]
    losses.note_body(node, place)
    assert not losses.explain_damage(node, found), "it lost entry 1 and not entry 2"
    assert not losses.explain_halt(node, halt), "a node that is fit goes on"
    losses.note_body(node, node.store.durable.places[1])
    assert losses.explain_damage(node, found)
    losses.note(node, name, 0)
    assert losses.explain_halt(node, halt)
    assert not losses.explain_halt(node, StateDiverged(str(halt)))
    assert not losses.explain_halt(node, Damaged("no file is named"))
    assert losses.held(node, place.position)
    assert not losses.held(case.leader, place.position)


def test_a_follower_is_behind_what_its_leader_lost(world: World) -> None:
    case = Case(world)
    losses, node = world.losses, case.follower
    assert not losses.bars(case.leader, node)
    place = case.leader.store.durable.places[-1]
    losses.note_body(case.leader, place)
    assert not losses.bars(case.leader, node), "it has all"
    node.store.durable.places.pop()
    assert losses.bars(case.leader, node)
    assert case.leader.engine is not None
    assert case.leader.engine.role is Role.LEADER
