"""Raft § 5.3, § 5.4.2 and § 5.4.3: when an entry is committed, and what that means for ever."""

from __future__ import annotations

import pytest

from cluster_rig import assert_same, elect, happened, led, log_of, raft_state, receipt, run_until
from core_rig import (
    ELECTION_TICKS,
    HEARTBEAT_TICKS,
    CoreRig,
    append,
    chain,
    compare,
    config,
    end,
    heartbeat,
    leading,
    only,
    pick,
)
from quorate.errors import Damaged
from quorate.raft.messages import Ack, Append, Compare, Envelope, Heartbeat
from quorate.raft.output import EventKind
from quorate.types import Role
from verification.disk.inode import LOST


@pytest.mark.parametrize("size", range(1, 8))
def test_an_entry_is_committed_when_a_majority_has_it_on_disk(size: int) -> None:
    """§ 5.3: exactly the copy that completes a majority commits, the leader's own included."""
    rig = leading(size)
    rig.propose()
    rig.persist()
    for copies, peer in enumerate(rig.peers, start=1):
        assert (rig.raft.committed == 2) == (copies > size // 2)
        rig.confirm(peer)
    assert rig.raft.committed == 2


def test_the_leaders_own_copy_counts_only_when_it_is_on_disk() -> None:
    """§ 5.3: a copy in memory is none; two followers suffice without the leader's."""
    rig = leading()
    rig.propose()
    rig.confirm("n2")
    assert rig.raft.committed == 1
    rig.confirm("n3")
    assert (rig.raft.committed, rig.raft.persisted) == (2, 1)
    assert rig.leader.synced(rig.raft.committed) == 2


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """§ 5.4.2, Figure 8 (c): an old entry on a majority may still be overwritten."""
    rig = leading(5, log=chain(1, 2), term=3, settled=False)
    rig.persist()
    for peer in rig.peers:
        rig.confirm(peer, 2)
    assert rig.raft.committed == 0


def test_entries_of_earlier_terms_come_along_with_one_of_the_own() -> None:
    """§ 5.4.2, Figure 8 (e): once an entry of the own term is committed, all before it are."""
    rig = leading(5, log=chain(1, 2), term=3, settled=False)
    rig.persist()
    for peer in rig.peers[:2]:
        assert rig.raft.committed == 0
        rig.confirm(peer, 3)
    assert rig.raft.committed == 3


def test_figure_8_loses_nothing_that_was_acknowledged() -> None:
    """§ 5.4.2, Figure 8 as a whole: an entry of an early term reaches three of five, is not taken
    for committed, and is rightly overwritten by a leader that never had it."""
    cluster = led(5, config(append_entries=1))
    # (a) n1 leads and reaches n2 alone.
    for name in ("n3", "n4", "n5"):
        cluster.cut("n1", name)
    token = cluster.propose("n1", b"of term 1")
    cluster.settle()
    cluster.heal()
    # (b) n5 wins with n3 and n4; nobody gets the entry of its term.
    cluster.crash("n1")
    elect(cluster, "n5", lose=is_from_leader)
    # (c) n1 is back and wins with n2, n3 and n4; its old entry gets to n3, its new one to nobody.
    cluster.crash("n5")
    cluster.restart("n1")
    elect(cluster, "n1", lose=lambda item: is_from_leader(item) and not for_n3(item))
    assert [len(log_of(cluster, name)) for name in ("n1", "n2", "n3", "n4")] == [3, 2, 2, 1]
    assert raft_state(cluster, "n1").committed == 1  # the noop, before all this
    # (d) n5 is back and wins, for its last entry is the newest; the old entry goes.
    cluster.crash("n1")
    cluster.restart("n5")
    elect(cluster, "n5")
    cluster.restart("n1")
    cluster.run(5 * HEARTBEAT_TICKS)
    assert_same(cluster)
    assert [entry.count for entry in log_of(cluster, "n3")] == [0, 0, 0]
    assert token not in cluster.answers


def is_from_leader(envelope: Envelope) -> bool:
    return isinstance(envelope.message, Compare | Append | Heartbeat)


def for_n3(envelope: Envelope) -> bool:
    """Everything but the entry of the leader's own term may reach n3."""
    message = envelope.message
    own = isinstance(message, Append) and message.entries[-1].term == message.term
    return envelope.target == "n3" and not own


def test_a_follower_learns_of_commits_from_the_next_message() -> None:
    """§ 5.3: appends carry the leader's committed index, heartbeats its position."""
    rig = CoreRig(term=1)
    entries = chain(1, 1, 1)
    rig.hear("n2", append(1, entries[:2], committed=1))
    assert rig.raft.committed == 1
    rig.hear("n2", heartbeat(1, end(entries[:2])))
    assert rig.raft.committed == 2


def test_a_follower_commits_no_more_than_the_message_proves() -> None:
    """§ 5.3: the lower of the leader's commit and the last entry that is known to agree."""
    rig = CoreRig(log=chain(1, 1, 1, 1), term=1)
    rig.hear("n2", append(2, chain(1, 1), committed=4))
    assert rig.raft.committed == 2


def test_a_heartbeat_commits_nothing_that_differs_here() -> None:
    """§ 5.3: the committed position counts for whoever has that very entry."""
    rig = CoreRig(log=chain(1, 1, 1), term=1)
    rig.hear("n2", heartbeat(3, end(chain(1, 1, 2))))
    assert rig.raft.committed == 0
    rig.hear("n2", heartbeat(3, end(chain(1, 1, 1, 3))))
    assert rig.raft.committed == 0


def test_committed_never_goes_back() -> None:
    """§ 5.3: an old message with a lower commit changes nothing."""
    rig = CoreRig(term=1)
    rig.hear("n2", append(1, chain(1, 1), committed=2))
    rig.hear("n2", append(1, chain(1, 1), committed=0))
    rig.hear("n2", heartbeat(1))
    assert rig.raft.committed == 2


def test_idle_followers_hear_of_the_last_commit_within_a_tick() -> None:
    """§ 5.3: no further append is needed for followers to apply the last one."""
    cluster = led(3)
    cluster.propose("n1", b"x")
    cluster.settle()
    cluster.run(1)
    assert_same(cluster)


def test_the_commit_of_the_last_append_is_pushed_once() -> None:
    """§ 5.3: an idle leader tells each follower once, then only beats."""
    rig = leading()
    rig.tick()
    assert pick(rig.tick(HEARTBEAT_TICKS - 1), Heartbeat) == []
    rig.propose()
    rig.settle()
    pushed = pick(rig.tick(), Heartbeat)
    assert [message.committed.index for message in pushed] == [2, 2]


def test_appends_carry_the_newest_commit() -> None:
    """§ 5.3: so a busy follower needs no word of its own about it."""
    rig = leading()
    rig.tick()
    rig.propose()
    rig.settle()
    (message, _) = pick(rig.propose(), Append)
    assert message.committed == 2
    assert pick(rig.tick(), Heartbeat) == []


def test_an_acknowledged_append_survives_its_leader() -> None:
    """§ 5.4.3: whoever is elected later has every committed entry."""
    cluster = led(3)
    token = cluster.propose("n1", b"x")
    cluster.settle()
    done = receipt(cluster, token)
    cluster.crash("n1", lambda: LOST)
    for node in ("n2", "n3"):
        cluster.crash(node, lambda: LOST)
        cluster.restart(node)
    elect(cluster, "n2")
    cluster.restart("n1")
    cluster.run(5 * HEARTBEAT_TICKS)
    assert_same(cluster)
    for name in cluster.voters:
        assert log_of(cluster, name)[done.index - 1].body.endswith(b"x")


def test_a_node_that_lacks_committed_entries_does_not_win() -> None:
    """§ 5.4.1: committed entries are on a majority, and one of those refuses the vote."""
    cluster = led(3)
    cluster.isolate("n3")
    token = cluster.propose("n1", b"kept")
    cluster.settle()
    assert token in cluster.answers
    cluster.crash("n1")
    cluster.heal()
    run_until(cluster, lambda: cluster.leader() == "n2", 6 * ELECTION_TICKS)
    assert happened(cluster, "n3", EventKind.LEADS) == []


def test_a_leader_that_would_undo_a_commit_stops_the_replica() -> None:
    """§ 5.4.3: it cannot be; if it is, one of the two copies is damaged and must not go on."""
    for message in (
        append(5, chain(5, after=end(chain(1))), end(chain(1))),
        append(5, chain(3, 5)),
        compare(5, end(chain(3))),
        heartbeat(5, end(chain(3, 3))),
    ):
        rig = CoreRig(log=chain(1, 1, 1), term=1)
        rig.hear("n2", heartbeat(1, end(chain(1, 1))))
        assert rig.raft.committed == 2
        with pytest.raises(Damaged, match=r"n1: the entry at index \d is committed here"):
            rig.hear("n3", message)
        assert rig.terms == [1, 1, 1]


def test_a_follower_answers_for_all_that_is_committed() -> None:
    """§ 5.4.3: the leader has whatever is committed, so it counts as agreed upon."""
    rig = CoreRig(log=chain(1, 1, 1), term=1)
    rig.hear("n2", heartbeat(1, end(chain(1, 1, 1))))
    assert only(rig.hear("n2", compare(1, end(chain(1)))), Ack).match == 3


def test_entries_are_applied_once_in_order_and_equally_everywhere() -> None:
    """§ 5.3, Figure 3 "state machine safety": the same state after the same entries."""
    cluster = led(3)
    for number in range(30):
        cluster.propose("n1", b"%d" % number, count=number % 3 + 1)
        cluster.settle()
    cluster.crash("n1")
    elect(cluster, "n3")
    cluster.restart("n1")
    cluster.run(5 * HEARTBEAT_TICKS)
    assert_same(cluster)
    assert cluster.engine("n1").state.end == 60
    assert cluster.engine("n3").role is Role.LEADER
