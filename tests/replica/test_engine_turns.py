"""A turn: inputs before timers, one tick at most, and any mix of inputs is one step."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from cluster_rig import envelope, led, log_of, raft_state
from core_rig import ELECTION_TICKS, CoreRig, append, chain, config, end, heartbeat
from quorate.config import Config
from quorate.errors import InvalidArgument, InvariantBroken
from quorate.membership import VOTERS_MAX, Membership
from quorate.raft.messages import Ack, Heartbeat, PreVote
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Deliver, Effects, Flushed, Input
from quorate.storage.recovery.result import Recovered
from quorate.types import GroupId, Index, NodeId, Role, Term, VoteRecord
from verification.hand import HandCluster

VOTERS = tuple(NodeId(f"n{number}") for number in range(1, 4))


def engine(name: str = "n1", incarnation: int = 1, voters: tuple[NodeId, ...] = VOTERS) -> Engine:
    """A new engine at time 0; with incarnation 1 it is n2 that campaigns at once."""
    recovered = Recovered(VoteRecord(1, Term(0), None, 1), ())
    group, membership = GroupId("c", incarnation), Membership(voters)
    return Engine(group, NodeId(name), membership, Config(), recovered, Random(0), 0)


def asks(effects: Effects) -> bool:
    return any(isinstance(item.message, PreVote) for item in effects.sends)


# -- time --------------------------------------------------------------------------------------


def test_however_long_a_stall_it_is_one_tick() -> None:
    replica = engine()
    for turn in range(1, 20):
        assert not asks(replica.turn([], turn * 3_600_000))
        assert replica.core.raft.clock == turn


def test_a_leader_whose_turns_are_slow_beats_as_often_as_it_can() -> None:
    """Its followers count real time, and would take it for dead."""
    cluster = led()
    leader, now_ms = cluster.engine("n1"), 100_000
    leader.turn([], now_ms)
    beats = []
    for _ in range(6):
        now_ms += 60
        sent = leader.turn([], now_ms).sends
        beats.append(any(isinstance(one.message, Heartbeat) for one in sent))
    assert beats == [False, True] * 3


def test_turns_between_ticks_pass_no_time() -> None:
    replica = engine()
    clocks = []
    for now_ms in (0, 3, 9, 10, 11, 19, 20, 25, 30, 30):
        replica.turn([], now_ms)
        clocks.append(replica.core.raft.clock)
    assert clocks == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]


def test_a_tick_that_comes_late_does_not_delay_the_next() -> None:
    """Turns come when they come; over a second there are as many ticks as fit."""
    replica = engine()
    for now_ms in range(0, 1001, 7):
        replica.turn([], now_ms)
    assert replica.core.raft.clock >= 99


def test_inputs_come_before_timers() -> None:
    """A leader's word that lies here is heard before anybody is judged by silence."""
    cluster = HandCluster(3, seed=3)
    beat = envelope(cluster, "n1", "n2", heartbeat(1))
    for _ in range(2 * ELECTION_TICKS):
        cluster.tick("n2")
        if cluster.engine("n2").role is not Role.FOLLOWER:
            break
    late = raft_state(cluster, "n2").clock
    again = HandCluster(3, seed=3)
    again.tick("n2", ticks=late - 1)
    again.tick("n1")  # time passes, and n2 has its turn with a message
    again.turn("n2", [Deliver(beat)])
    assert raft_state(again, "n2").clock == late
    assert (again.engine("n2").role, raft_state(again, "n2").leader) == (Role.FOLLOWER, "n1")


# -- who campaigns first -----------------------------------------------------------------------


@pytest.mark.parametrize("incarnation", range(6))
def test_the_first_to_campaign_is_picked_by_the_incarnation(incarnation: int) -> None:
    first = [name for name in VOTERS if asks(engine(name, incarnation).turn([], 10))]
    assert first == [VOTERS[incarnation % 3]]


def test_the_first_to_campaign_asks_again_soon_while_the_others_are_not_there() -> None:
    """Their replicas are made a moment later: a new log does not wait for a whole timeout."""
    replica = engine("n2")
    timing = replica.config.timing
    asked = [now for now in range(10, timing.election_ms, 10) if asks(replica.turn([], now))]
    waits = [later - earlier for earlier, later in pairwise(asked)]
    assert asked[0] == 10
    assert len(asked) > timing.election_ms // timing.hint_max_ms
    assert all(timing.hint_min_ms <= wait <= timing.hint_max_ms for wait in waits)
    # After that it is as patient as anybody.
    later = range(timing.election_ms, 2 * timing.election_ms, 10)
    assert sum(asks(replica.turn([], now)) for now in later) <= 2


@pytest.mark.parametrize("messages", [0, 2], ids=["term and entries", "term only"])
def test_after_a_restart_nobody_is_first(messages: int) -> None:
    cluster = HandCluster(3)
    cluster.tick("n1")
    for _ in range(messages or 10):
        cluster.deliver_all()
    assert raft_state(cluster, "n1").term == 1
    cluster.crash("n1")
    cluster.restart("n1")
    assert bool(log_of(cluster, "n1")) == (messages == 0)
    cluster.tick("n1", ticks=ELECTION_TICKS - 1)
    assert cluster.engine("n1").role is Role.FOLLOWER


def test_a_group_has_at_most_seven_voters() -> None:
    voters = tuple(NodeId(f"n{number}") for number in range(1, VOTERS_MAX + 2))
    with pytest.raises(InvalidArgument, match="1 to 7 voters"):
        engine("n1", voters=voters)


def test_a_replica_that_is_no_voter_never_campaigns() -> None:
    """R11: another node may have removed it, or not have made it a voter yet."""
    stranger = engine("n9")
    for now_ms in range(0, 100_000, 10):
        effects = stranger.turn((), now_ms)
        assert not effects.sends
    assert stranger.role is Role.FOLLOWER


# -- mixes of inputs ---------------------------------------------------------------------------

OLD = chain(1, 1, 1, 1)


def flushing() -> HandCluster:
    """n2 has four entries, the last two of them in the flush that is under way."""
    cluster = HandCluster(3, auto_flush=False)
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", append(1, OLD[:2])))])
    cluster.flush("n2")
    cluster.turn("n2", [Deliver(envelope(cluster, "n1", "n2", append(1, OLD[2:], end(OLD[:2]))))])
    cluster.table.clear()
    return cluster


def finish_flush(cluster: HandCluster) -> Input:
    node = cluster.nodes[NodeId("n2")]
    assert node.flush is not None
    flush, node.flush = node.flush, None
    node.store.write(flush)
    return Flushed(flush.number)


def acks_to(cluster: HandCluster, target: str) -> list[int]:
    said = (item.message for item in cluster.table if item.target == target)
    return [message.match for message in said if isinstance(message, Ack)]


@pytest.mark.parametrize("new_terms", [(2,), (2, 2), (2, 2, 2)], ids=len)
@pytest.mark.parametrize("flush_first", [True, False], ids=["flushed first", "cut first"])
def test_a_flush_may_end_in_the_turn_that_cuts_its_entries(
    new_terms: tuple[int, ...], flush_first: bool
) -> None:
    """The order within a turn is chance. What the flush proved of the entries that were cut
    counts for nothing, and the new ones are acked after a flush of their own."""
    cluster = flushing()
    new = chain(*new_terms, after=end(OLD[:2]))
    cut: Input = Deliver(envelope(cluster, "n3", "n2", append(2, new, end(OLD[:2]))))
    done = finish_flush(cluster)
    cluster.turn("n2", [done, cut] if flush_first else [cut, done])
    assert cluster.nodes[NodeId("n2")].halted is None
    assert raft_state(cluster, "n2").persisted == 2
    assert acks_to(cluster, "n3") == []
    cluster.flush("n2")
    assert acks_to(cluster, "n3") == [2 + len(new)]
    assert raft_state(cluster, "n2").persisted == 2 + len(new)


def test_a_flush_that_nobody_asked_for_is_a_mistake() -> None:
    cluster = led(1)
    cluster.turn("n1", [Flushed(99)])
    assert isinstance(cluster.nodes[NodeId("n1")].halted, InvariantBroken)


def test_what_the_core_is_told_must_be_true() -> None:
    """Mistakes of the engine stop the replica instead of becoming state."""
    with pytest.raises(InvariantBroken, match="at least that of the last entry"):
        CoreRig(log=OLD, term=0)
    rig = CoreRig(log=OLD, term=1)
    with pytest.raises(InvariantBroken, match="only what is in the log is persisted"):
        rig.persist(5)
    with pytest.raises(InvariantBroken, match="only what is in the log is committed"):
        rig.raft.commit(Index(5))


def test_a_turn_without_inputs_changes_nothing() -> None:
    cluster = led(3)
    before = (raft_state(cluster, "n1").committed, log_of(cluster, "n1"))
    cluster.turn("n1")
    assert cluster.table == []
    assert (raft_state(cluster, "n1").committed, log_of(cluster, "n1")) == before


def test_the_same_seed_gives_the_same_history() -> None:
    def history() -> list[str]:
        cluster = HandCluster(3, config(election_ms=200, heartbeat_ms=50), seed=5)
        said = []
        for _ in range(100):
            cluster.tick()
            said += [repr(item) for item in cluster.table]
            cluster.settle()
        return said

    assert history() == history()


def test_a_boot_is_named_after_its_record_and_a_nonce() -> None:
    one, two = engine("n1"), engine("n1")
    assert one.boot == two.boot  # the same seed
    assert one.boot.counter == 1
    cluster = led(1)
    first = cluster.engine("n1").boot
    cluster.crash("n1")
    cluster.restart("n1")
    second = cluster.engine("n1").boot
    assert (second.counter, second.nonce != first.nonce) == (2, True)
    assert raft_state(cluster, "n1").log.position(Index(1)).term == 1
