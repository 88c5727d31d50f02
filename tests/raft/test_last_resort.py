"""Nodes that cannot apply an entry each, and one that lacks entries: a leader that only feeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster_rig import (
    append_many,
    happened,
    led,
    raft_state,
    read_answer,
    receipt,
    run_until,
    settle_losing,
)
from core_rig import ELECTION_TICKS, config
from quorate.errors import Corrupt, Transferring
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.raft.election import LAST_RESORT_ELECTIONS
from quorate.raft.messages import Append
from quorate.raft.output import EventKind
from quorate.replica.engine_io import Room
from quorate.replica.proposals import Proposals
from quorate.storage.layout import PAGE, segment_name
from quorate.types import EntryKind, Index, NodeId

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from verification.hand import HandCluster

ENTRIES = 30
# Until each had its turn, and the wait before a second one is over.
TURNS_ELECTIONS = 60


def spoil(cluster: HandCluster, name: str, index: int, *, page: bool = False) -> None:
    """Spoil the body of an entry, or all of the page under its header; the node is down."""
    store = cluster.nodes[NodeId(name)].store
    assert store.log is not None
    start, end = store.log.segments[0].rows.frame(Index(index))
    if page:
        store.disk.spoil(segment_name(1), start - start % PAGE, bytes(PAGE))
    else:
        byte = store.disk.files[segment_name(1)].content[end - 1]
        store.disk.spoil(segment_name(1), end - 1, bytes([byte ^ 1]))


def stopped(seed: int = 0, *, page: bool = False) -> HandCluster:
    """n1 and n2 each lost an entry that the other has and that no checkpoint covers; n3 was away
    and has neither."""
    cluster = led(3, config(log_memory_bytes=0), seed=seed)
    cluster.isolate("n3")
    append_many(cluster, "n1", ENTRIES)
    cluster.run(3)
    for name, index in (("n1", 8), ("n2", 12)):
        cluster.crash(name)
        spoil(cluster, name, index, page=page)
        cluster.restart(name)
    cluster.heal()
    cluster.table.clear()
    assert [raft_state(cluster, name).lost for name in cluster.voters] == [*lost(page=page), None]
    return cluster


def lost(*, page: bool) -> list[int]:
    """The first entries that n1 and n2 cannot apply. If the header is gone with the page, no chain
    confirms the entry before it either."""
    return [7, 11] if page else [8, 12]


@pytest.mark.parametrize("page", [False, True], ids=["bodies", "pages"])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_that_cannot_serve_take_turns_until_the_third_has_all_and_serves(
    seed: int, page: bool
) -> None:
    cluster = stopped(seed, page=page)
    run_until(cluster, lambda: cluster.leader() == "n3", TURNS_ELECTIONS * ELECTION_TICKS)
    token, read = cluster.propose("n3", b"new"), cluster.read("n3")
    cluster.run(20)
    receipt(cluster, token)
    read_answer(cluster, read)
    assert raft_state(cluster, "n3").log.last == raft_state(cluster, "n1").log.last
    assert cluster.engine("n3").applied == raft_state(cluster, "n3").log.last_index
    assert [raft_state(cluster, name).lost for name in ("n1", "n2")] == lost(page=page)
    data = [
        entry
        for entry in raft_state(cluster, "n3").log.walk(Index(1), Index(ENTRIES + 2))
        if entry.kind is EntryKind.DATA
    ]
    assert len(data) == ENTRIES


def resort(cluster: HandCluster) -> NodeId:
    """The one that leads although it cannot serve."""
    run_until(cluster, lambda: cluster.leader() is not None, 12 * ELECTION_TICKS)
    leader = cluster.leader()
    assert leader is not None
    assert raft_state(cluster, leader).lost is not None
    return leader


def test_a_leader_that_cannot_serve_takes_no_request_and_logs_nothing_but_its_noop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = stopped()
    looks: list[NodeId] = []
    monkeypatch.setattr(Proposals, "expire", lambda one: looks.append(one._core.raft.node))
    leader = resort(cluster)
    cluster.run(3)
    last = raft_state(cluster, leader).log.last_index
    token, read = cluster.propose(leader, b"refused"), cluster.read(leader)
    refused = cluster.answers[token]
    assert isinstance(refused, Transferring)
    assert refused.retriable
    assert f"entry {raft_state(cluster, leader).lost} is damaged" in str(refused)
    assert isinstance(cluster.answers[read], Corrupt)
    cluster.engine(leader)._expiry._due_at = 0
    cluster.run(2)
    assert raft_state(cluster, leader).log.last_index == last
    assert leader not in looks


def test_a_leader_that_cannot_serve_adds_no_entry_to_a_log_that_is_all_committed() -> None:
    """n3 alone can serve, and its disk has no room for one entry more: an entry that the others
    commit without it would keep it from leading for good."""
    cluster = led(3)
    append_many(cluster, "n1", 10)
    cluster.run(3)
    for name, index in (("n1", 4), ("n2", 6)):
        cluster.crash(name)
        spoil(cluster, name, index)
        cluster.restart(name)
    cluster.turn("n3", [Room(50, "full")])
    run_until(cluster, lambda: cluster.leader() == "n3", 20 * ELECTION_TICKS)
    cluster.run(ELECTION_TICKS)
    last = raft_state(cluster, "n3").log.last
    assert all(raft_state(cluster, name).all_committed for name in cluster.voters)
    cluster.isolate("n3")
    run_until(cluster, lambda: cluster.leader() in ("n1", "n2"), 12 * ELECTION_TICKS)
    cluster.run(ELECTION_TICKS)
    assert [raft_state(cluster, name).log.last for name in cluster.voters] == [last] * 3
    cluster.heal()
    run_until(cluster, lambda: cluster.leader() == "n3", TURNS_ELECTIONS * ELECTION_TICKS)
    read = cluster.read("n3")
    cluster.run(20)
    read_answer(cluster, read)


@pytest.mark.parametrize("seed", range(8))
def test_a_node_that_can_serve_leads_before_one_that_cannot(seed: int) -> None:
    cluster = led(3, seed=seed)
    append_many(cluster, "n1", 5)
    cluster.run(2)
    cluster.crash("n2")
    spoil(cluster, "n2", 3)
    cluster.restart("n2")
    cluster.run(ELECTION_TICKS)
    cluster.crash("n1")
    cluster.run(LAST_RESORT_ELECTIONS * ELECTION_TICKS)
    assert cluster.leader() == "n3"
    assert not happened(cluster, "n2", EventKind.PRE_CAMPAIGNS)


def test_an_entry_without_its_body_is_not_sent_from_memory_either() -> None:
    """The last entries of n1 may not be committed, so it has them in memory; one has no body."""
    cluster = led(3)
    cluster.isolate("n1")
    append_many(cluster, "n1", 4)
    cluster.crash("n1")
    cluster.crash("n2")
    spoil(cluster, "n1", 3)
    cluster.restart("n1")
    assert raft_state(cluster, "n1").log.first_in_memory <= 3
    cluster.heal()
    cluster.table.clear()
    sent: list[Append] = []

    def see(envelope: Envelope) -> bool:
        if isinstance(envelope.message, Append):
            sent.append(envelope.message)
        return False

    for _ in range(12 * ELECTION_TICKS):
        cluster.tick()
        settle_losing(cluster, see)
    assert happened(cluster, "n1", EventKind.LEADS)
    assert sent
    assert all(entry.whole for message in sent for entry in message.entries)
    assert raft_state(cluster, "n3").log.last_index == 2


def test_an_unsure_node_is_no_last_resort() -> None:
    cluster = stopped()
    for name in ("n1", "n2"):
        cluster.engine(name).core.raft.sure = False
    cluster.run(TURNS_ELECTIONS * ELECTION_TICKS)
    assert cluster.leader() is None


def test_a_node_without_peers_that_cannot_apply_an_entry_does_not_lead() -> None:
    cluster = led(1)
    append_many(cluster, "n1", 5)
    cluster.crash("n1")
    spoil(cluster, "n1", 3)
    cluster.restart("n1")
    cluster.run(12 * ELECTION_TICKS)
    assert (raft_state(cluster, "n1").lost, cluster.leader()) == (3, None)


def test_a_node_that_lost_the_page_of_the_newest_membership_never_leads() -> None:
    """It knows that there is a newer one, and not which voters to count."""
    cluster = led(3)
    wanted = Membership(cluster.voters, intent=1)
    cluster.change("n1", MemberChange(wanted))
    cluster.run(3)
    append_many(cluster, "n1", 3)
    cluster.run(3)
    changed = raft_state(cluster, "n2").memberships.index
    cluster.crash("n2")
    spoil(cluster, "n2", changed, page=True)
    cluster.restart("n2")
    raft = raft_state(cluster, "n2")
    assert raft.memberships.newest != wanted
    assert not raft.memberships.known
    for name in ("n1", "n3"):
        cluster.crash(name)
    cluster.run(20 * ELECTION_TICKS)
    assert not happened(cluster, "n2", EventKind.PRE_CAMPAIGNS)
