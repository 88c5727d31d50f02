"""Short ways to bring a cluster that is moved by hand into a situation, and to look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.commands import Receipt
from quorate.raft.messages import Envelope, PreVote
from quorate.replica.engine_io import Propose, ReadAnswer
from quorate.types import BootId, Index, NodeId
from verification.hand import HandCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.config import Config
    from quorate.entry import Entry
    from quorate.errors import QuorateError
    from quorate.raft.messages import Message
    from quorate.raft.output import Event, EventKind
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState


def led(size: int = 3, config: Config | None = None, *, seed: int = 0) -> HandCluster:
    """n1 leads; its noop is committed and applied by all."""
    cluster = HandCluster(size, config, seed=seed)
    cluster.run(3)
    assert cluster.leader() == "n1"
    assert all(cluster.engine(name).applied == 1 for name in cluster.voters)
    return cluster


def raft_state(cluster: HandCluster, name: str) -> RaftState:
    return cluster.engine(name).core.raft


def progress(cluster: HandCluster, peer: str) -> Progress:
    """What the leader knows of ``peer``."""
    name = cluster.leader()
    assert name is not None
    leader = cluster.engine(name).core.leader
    assert leader is not None
    return next(item for node, item in leader.progress.items() if node == peer)


def log_of(cluster: HandCluster, name: str) -> list[Entry]:
    log = raft_state(cluster, name).log
    return log.entries(Index(1), Index(log.last_index + 1))


def envelope(
    cluster: HandCluster, source: str, target: str, message: Message, boot: BootId | None = None
) -> Envelope:
    """A message as it would travel, in the sender's own boot unless another is given."""
    if boot is None:
        node = cluster.nodes[NodeId(source)]
        boot = node.engine.boot if node.engine is not None else BootId(1, 0)
    return Envelope(cluster.group, NodeId(source), NodeId(target), boot, message)


def happened(cluster: HandCluster, name: str, kind: EventKind) -> list[Event]:
    events = next(node.events for node in cluster.nodes.values() if node.name == name)
    return [event for event in events if event.kind is kind]


def assert_same(cluster: HandCluster) -> None:
    """Every replica that runs has the same log, committed and applied to its end."""
    running = [name for name, node in cluster.nodes.items() if node.engine is not None]
    first = log_of(cluster, running[0])
    for name in running:
        engine = cluster.engine(name)
        assert [entry.position for entry in log_of(cluster, name)] == [
            entry.position for entry in first
        ]
        assert engine.applied == raft_state(cluster, name).committed == len(first)
        assert engine.state.digest() == cluster.engine(running[0]).state.digest()


def run_until(cluster: HandCluster, reached: Callable[[], bool], ticks_max: int) -> int:
    """Let time pass for all until ``reached``; how many ticks it took."""
    for tick in range(ticks_max):
        if reached():
            return tick
        cluster.run(1)
    assert reached(), f"not reached in {ticks_max} ticks"
    return ticks_max


def settle_losing(
    cluster: HandCluster, lose: Callable[[Envelope], bool], hung: tuple[str, ...] = ()
) -> None:
    """Deliver until nothing moves, but never what ``lose`` picks; the disks of ``hung`` nodes
    do nothing. No time passes."""
    while True:
        for name in cluster.voters:
            if name not in hung:
                cluster.flush(name)
        cluster.take(lose)
        if not cluster.table:
            return
        cluster.deliver_all()


def elect(
    cluster: HandCluster,
    name: str,
    ticks_max: int = 1000,
    lose: Callable[[Envelope], bool] = lambda _: False,
) -> None:
    """Let time pass, and nobody but ``name`` ask for votes, until it leads."""

    def lost(envelope: Envelope) -> bool:
        others_ask = isinstance(envelope.message, PreVote) and envelope.source != name
        return others_ask or lose(envelope)

    for _ in range(ticks_max):
        cluster.tick()
        settle_losing(cluster, lost)
        if cluster.leader() == name:
            return
    raise AssertionError(f"{name} did not win in {ticks_max} ticks")


def run_delayed(cluster: HandCluster, ticks: int, delay: int) -> None:
    """Let time pass on a network whose messages all take ``delay`` ticks; flushes take none."""
    flying: list[tuple[int, Envelope]] = []
    for now in range(ticks):
        cluster.tick()
        due = [envelope for at, envelope in flying if at <= now]
        flying = [(at, envelope) for at, envelope in flying if at > now]
        for envelope in due:
            cluster.deliver(envelope)
        flying += [(now + delay, envelope) for envelope in cluster.take(lambda _: True)]
    cluster.table += [envelope for _, envelope in flying]


def append_many(cluster: HandCluster, name: str, count: int) -> list[int]:
    """``count`` appends of one record, each in a turn and thus an entry of its own."""
    tokens = []
    for number in range(count):
        tokens.append(cluster.propose(name, b"%d" % number))
        cluster.settle()
    return tokens


def append_at_once(cluster: HandCluster, name: str, batches: list[bytes]) -> list[int]:
    """Several appends that arrive in one turn. Their tokens are negative."""
    tokens = [-number for number in range(1, len(batches) + 1)]
    cluster.turn(
        name, [Propose(token, batch, 1) for token, batch in zip(tokens, batches, strict=True)]
    )
    return tokens


def receipt(cluster: HandCluster, token: int) -> Receipt:
    answer = cluster.answers[token]
    assert isinstance(answer, Receipt), answer
    return answer


def read_answer(cluster: HandCluster, token: int) -> ReadAnswer:
    answer = cluster.answers[token]
    assert isinstance(answer, ReadAnswer), answer
    return answer


def refused(cluster: HandCluster, token: int, kind: type[QuorateError]) -> str:
    """The message of the error that answered ``token``, which is of this kind."""
    answer = cluster.answers[token]
    assert type(answer) is kind, answer
    return str(answer)
