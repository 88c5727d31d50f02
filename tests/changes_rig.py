"""Changes of the members of a log whose engines are moved by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import append_many, raft_state
from quorate.membership import Membership, decode_membership
from quorate.raft.changes import MemberChange
from quorate.types import EntryKind, Index, NodeId
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quorate.errors import QuorateError


def nodes(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"n{number}") for number in numbers)


def members(voters: Iterable[int], learners: Iterable[int] = (), intent: int = 0) -> Membership:
    return Membership(nodes(*voters), nodes(*learners), intent=intent)


def led_by_voters(size: int, voters: int) -> HandCluster:
    """n1 leads a log of the first ``voters`` of ``size`` nodes, with a few records."""
    cluster = HandCluster(size, voters=voters)
    cluster.run(5)
    assert cluster.leader() == "n1"
    append_many(cluster, "n1", 3)
    cluster.settle()
    return cluster


def change(cluster: HandCluster, wanted: Membership, **fields: object) -> int:
    return cluster.change("n1", MemberChange(wanted, **fields))  # type: ignore[arg-type]  # fields of MemberChange


def memberships(cluster: HandCluster, name: str) -> list[Membership]:
    """The memberships that the log of ``name`` sets, one after the other."""
    log = raft_state(cluster, name).log
    entries = log.entries(Index(1), Index(log.last_index + 1))
    return [decode_membership(one.body) for one in entries if one.kind is EntryKind.MEMBERSHIP]


def refused(cluster: HandCluster, token: int, kind: type[QuorateError]) -> str:
    answer = cluster.answers[token]
    assert type(answer) is kind, answer
    return str(answer)


def run_until(cluster: HandCluster, met: Callable[[], bool], steps: int = 2000) -> None:
    """Deliver one message after another, in the order in which they were sent, and let time pass
    when there is none, until ``met``."""
    for _ in range(steps):
        if met():
            return
        if cluster.table:
            cluster.deliver(cluster.table.pop(0))
        else:
            cluster.tick()
    raise AssertionError("it never came")
