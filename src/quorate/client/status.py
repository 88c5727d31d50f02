"""The status of a cluster, merged from the answers of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.client.results import ClusterStatus, LogSummary, NodeSummary, ReplicaSummary
from quorate.types import PRIORITY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quorate.wire.calls import LogStatus, NodeStatus, PeerStatus

    # The status of one log, by node.
    Views = dict[str, LogStatus]

__all__ = ["merge_status"]

LEADER = "leader"


def merge_status(
    answers: Sequence[NodeStatus], addresses: Mapping[str, str], why: Mapping[str, str]
) -> ClusterStatus:
    """Merge the answers. ``addresses`` are the known nodes, whether they answered or not; ``why``
    has the reasons of the addresses that did not answer."""
    up = {answer.id: answer for answer in answers}
    places = dict(addresses)
    for answer in answers:
        places |= answer.nodes
    nodes = [
        _node(node, place, up.get(node), why.get(place)) for node, place in sorted(places.items())
    ]
    logs: dict[tuple[str, bytes], Views] = {}
    for answer in answers:
        for log in answer.logs:
            logs.setdefault((log.name, log.incarnation), {})[answer.id] = log
    return ClusterStatus(
        nodes=nodes, logs=[_log(views, places) for _, views in sorted(logs.items())]
    )


def _node(node: str, place: str, answer: NodeStatus | None, why: str | None) -> NodeSummary:
    return NodeSummary(
        id=node,
        address=place,
        up=answer is not None,
        disk_used=answer.disk_used if answer is not None else None,
        full=answer.full if answer is not None else None,
        why=why if answer is None else None,
    )


def _log(views: Views, places: Mapping[str, str]) -> LogSummary:
    """One log's summary. The leader of the newest term knows most; else the furthest replica."""
    node, best = max(views.items(), key=lambda item: _rank(item[1]))
    leads = best.role == LEADER
    peers = {peer.node: peer for peer in best.peers} if leads else {}
    committed = max(view.committed for view in views.values())
    # Only a leader tells which nodes have a replica: today every node has one.
    holders = {node, *peers} if leads else {*views, *places}
    replicas = []
    for holder in sorted(holders):
        view, peer = views.get(holder), peers.get(holder)
        match = best.last if leads and holder == node else peer.match if peer else None
        replicas.append(
            ReplicaSummary(
                node=holder,
                role=view.role if view else "follower",
                priority=best.priorities.get(holder, PRIORITY),
                match=match,
                lag=None if match is None else max(0, committed - match),
                state=_state(view, peer, leads=leads and holder == node),
                full=view.full if view else peer is not None and peer.full,
                halted=(view.halted or None) if view else None,
            )
        )
    return LogSummary(
        name=best.name,
        incarnation=f"{int.from_bytes(best.incarnation, 'little'):032x}",
        leader=node if leads else best.leader,
        term=best.term,
        first_offset=best.first_offset,
        end_offset=max(view.end_offset for view in views.values()),
        committed=committed,
        staged_bytes=best.staged_bytes,
        replicas=replicas,
    )


def _rank(view: LogStatus) -> tuple[bool, int, bool, int]:
    return not view.halted, view.term, view.role == LEADER, view.committed


def _state(view: LogStatus | None, peer: PeerStatus | None, *, leads: bool) -> str:
    if leads:
        return "self"
    if view is None or view.halted:
        return "down"
    if view.unsure:
        return "unsure"
    # No leader sends to it: the next one begins with a comparison.
    return peer.state if peer else "compare"
