"""``expect``: the conditions under which a scenario passes, also while its output is rewritten.

One function per subject. A node's facts are checked as ``expect n1 n2 role=follower term=2``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.output import EventKind, Refusal
from quorate.types import NodeId
from verification.scenario.parser import ScenarioError
from verification.scenario.rendering import entries_of, records_of, role_name, terms_of
from verification.scenario.words import expand, links, options, selection, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from quorate.raft.messages import Envelope
    from quorate.raft.state import RaftState
    from verification.hand import HandNode
    from verification.scenario.cluster import ScenarioCluster

__all__ = ["expect", "named_nodes"]

ALL = "all"


def named_nodes(cluster: ScenarioCluster, words: Sequence[str]) -> list[NodeId]:
    """``all`` that are up, or names; every one must be a node of the cluster."""
    if list(words) == [ALL]:
        return [name for name, node in cluster.nodes.items() if node.engine is not None]
    unknown = [word for word in words if word not in cluster.nodes]
    if unknown or not words:
        raise ScenarioError(f"{' '.join(unknown) or 'nothing'} where a node is expected")
    return [NodeId(word) for word in words]


def expect(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """Raise ScenarioError unless the condition in ``words`` holds now."""
    if not words:
        raise ScenarioError("expect needs a condition")
    subject = SUBJECTS.get(words[0])
    if subject is not None:
        subject(cluster, words[1:])
    else:
        _nodes(cluster, words)


def _equal(what: str, found: object, wanted: object) -> None:
    if str(found) != str(wanted):
        raise ScenarioError(f"expected {what} {wanted}, found {found}")


def _counted(what: str, found: int, wanted: dict[str, str]) -> None:
    """``count=3``, ``at-least=1`` or ``at-most=5``."""
    if not wanted:
        raise ScenarioError(f"{what}: say count=, at-least= or at-most=")
    if (
        found != whole(wanted.get("count", str(found)))
        or found < whole(wanted.get("at-least", "0"))
        or found > whole(wanted.get("at-most", str(found)))
    ):
        limits = " ".join(f"{key}={value}" for key, value in wanted.items())
        raise ScenarioError(f"expected {what} {limits}, found {found}")


COUNTS = ("count", "at-least", "at-most")

# -- nodes -------------------------------------------------------------------------------------

FACTS: dict[str, Callable[[HandNode], object]] = {
    "role": lambda node: role_name(node.engine),
    "halted": lambda node: type(node.halted).__name__ if node.halted is not None else "no",
    "term": lambda node: _raft(node).term,
    "vote": lambda node: _raft(node).vote or "none",
    "leader": lambda node: _raft(node).leader or "none",
    "last": lambda node: _raft(node).log.last_index,
    "persisted": lambda node: _raft(node).persisted,
    "committed": lambda node: _raft(node).committed,
    "applied": lambda node: node.engine.applied if node.engine else None,
    "end": lambda node: node.engine.state.end if node.engine else None,
    "pending": lambda node: node.engine.pending_appends if node.engine else None,
    "uncommitted": lambda node: _uncommitted(node),
    "voters": lambda node: ",".join(_raft(node).memberships.newest.voters),
    "outgoing": lambda node: ",".join(_raft(node).memberships.newest.outgoing) or "none",
    "learners": lambda node: ",".join(_raft(node).memberships.newest.learners) or "none",
}


def _raft(node: HandNode) -> RaftState:
    if node.engine is None:
        raise ScenarioError(f"{node.name} is down")
    return node.engine.core.raft


def _uncommitted(node: HandNode) -> int | None:
    leader = node.engine.core.leader if node.engine is not None else None
    return leader.uncommitted_bytes if leader is not None else None


def _nodes(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    names, facts = options(words, FACTS)
    if not facts:
        raise ScenarioError(f"unknown expectation: {' '.join(words)}")
    for name in named_nodes(cluster, names):
        for fact, wanted in facts.items():
            _equal(f"{name} {fact}", FACTS[fact](cluster.nodes[name]), wanted)


def _leader(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``leader n2 term=3``: the leader of the highest term that has one; or ``none``."""
    (wanted,), more = options(words, ("term",))
    found = cluster.leader()
    _equal("leader", found or "none", wanted)
    if found is not None and "term" in more:
        _equal(f"{found} term", cluster.engine(found).core.raft.term, more["term"])


def _log(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``log n1 1 1 2``: the terms of all its entries, on disk if the node is down."""
    (name,) = named_nodes(cluster, words[:1])
    _equal(f"{name} log", terms_of(entries_of(cluster.nodes[name])), " ".join(words[1:]))


def _same_logs(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``same-logs [nodes]``: the logs are equal to the last byte, committed, synced and applied."""
    names = named_nodes(cluster, words or [ALL])
    last = _raft(cluster.nodes[names[0]]).log.last
    for name in names:
        raft = _raft(cluster.nodes[name])
        _equal(f"{name} log to end at", raft.log.last, last)
        _equal(f"{name} committed", raft.committed, last.index)
        _equal(f"{name} persisted", raft.persisted, last.index)
        _equal(f"{name} applied", cluster.engine(name).applied, last.index)
    hashes = {cluster.engine(name).state.digest() for name in names}
    _equal("number of different states", len(hashes), 1)


# -- clients -----------------------------------------------------------------------------------


def _answer(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``answer a b OK``: also an error code, ``end=3`` for a read, ``leader=n2`` for a transfer, or
    ``none``."""
    if len(words) < 2:
        raise ScenarioError("expect answer NAME... ANSWER")
    for label in expand(words[:-1]):
        _equal(f"answer to {label}", cluster.answer_of(label), words[-1])


def _records(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``records n1 a b``: the values of all applied records, in order."""
    for name in named_nodes(cluster, words[:1]):
        found = " ".join(records_of(cluster.engine(name)))
        _equal(f"{name} records", found, " ".join(expand(words[1:])))


def _receipts_hold(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``receipts-hold [nodes]``: every acknowledged value is there, at its offset, and once."""
    for name in named_nodes(cluster, words or [ALL]):
        records = records_of(cluster.engine(name))
        for value, receipt in cluster.receipts().items():
            found = [offset for offset, record in enumerate(records) if record == value]
            _equal(f"{name} to have {value!r} at", found, [receipt.offset])


# -- messages and their effects ----------------------------------------------------------------


def _table(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``table n2->n1 vote-reply count=0``: messages that are on their way."""
    _count_messages(cluster, words, cluster.table, "messages on the table")


def _arrived(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``arrived n1->n3 compare at-most=4``: messages that reached their target, since the start."""
    _count_messages(cluster, words, cluster.arrived, "messages arrived")


def _count_messages(
    cluster: ScenarioCluster, words: Sequence[str], envelopes: Iterable[Envelope], what: str
) -> None:
    plain, more = options(words, (*COUNTS, "term"))
    chosen = selection(plain, cluster.names, more.pop("term", None))
    _counted(what, sum(chosen(envelope) for envelope in envelopes), more)


def _happened(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``happened n3 campaigns count=0``: events that a node reported, since the start."""
    (name, kind), more = options(words, COUNTS)
    if kind not in list(EventKind):
        raise ScenarioError(f"unknown event {kind}; known: {', '.join(EventKind)}")
    for node in named_nodes(cluster, [name]):
        _counted(f"{node} {kind}", cluster.happened[node, EventKind(kind)], more)


def _refused(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``refused n3 stale-term count=2``: messages that a node refused since it started."""
    (name, reason), more = options(words, COUNTS)
    if reason not in list(Refusal):
        raise ScenarioError(f"unknown refusal {reason}; known: {', '.join(Refusal)}")
    for node in named_nodes(cluster, [name]):
        found = _raft(cluster.nodes[node]).refused[Refusal(reason)]
        _counted(f"{node} refusals {reason}", found, more)


def _peer(cluster: ScenarioCluster, words: Sequence[str]) -> None:
    """``peer n1->n3 state=append match=4``: the knowledge of leader n1 about n3."""
    plain, facts = options(words, ("state", "match", "next", "inflight"))
    ((leader, peer),) = links(plain, cluster.names)
    leading = cluster.engine(leader).core.leader
    if leading is None:
        raise ScenarioError(f"{leader} does not lead")
    progress = leading.progress[NodeId(peer)]
    found = {
        "state": str(progress.state),
        "match": str(progress.match),
        "next": str(progress.next),
        "inflight": str(len(progress.inflight)),
    }
    for fact, wanted in facts.items():
        _equal(f"{leader}->{peer} {fact}", found[fact], wanted)


SUBJECTS: dict[str, Callable[[ScenarioCluster, Sequence[str]], None]] = {
    "answer": _answer,
    "arrived": _arrived,
    "happened": _happened,
    "leader": _leader,
    "log": _log,
    "peer": _peer,
    "receipts-hold": _receipts_hold,
    "records": _records,
    "refused": _refused,
    "same-logs": _same_logs,
    "table": _table,
}
