"""What is committed is applied in slices: the order of answers, and the reads that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import append_many, led, raft_state, receipt
from core_rig import append, chain, config, read_index_reply
from engine_rig import EngineRig
from proposal_rig import open_producer, stamped
from quorate.errors import Corrupt
from quorate.raft.messages import Ack
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Propose, Read, ReadAnswer
from quorate.state.judge import UNCONDITIONAL
from quorate.storage.layout import segment_name
from quorate.types import Index, NodeId

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from quorate.replica.engine_io import Answer, Effects, Input
    from verification.hand import HandCluster

ENTRIES = 10
SLICE = 3


def follower(reads: int = 100) -> EngineRig:
    """It has ten entries, and does not know yet that they are committed."""
    rig = EngineRig(apply_entries=SLICE, pending_reads=reads)
    rig.hear("n2", append(1, chain(*[1] * ENTRIES)))
    return rig


def test_a_turn_applies_so_many_entries_and_the_rest_in_turns_that_come_at_once() -> None:
    rig = follower()
    engine, applied, more = rig.engine, [], []
    rig.raft.commit(Index(ENTRIES))
    for _ in range(5):
        more.append(engine.turn([], 0).more)
        applied.append(int(engine.applied))
    assert applied == [3, 6, 9, 10, 10]
    assert more == [True, True, True, False, False]


def test_producers_that_entries_change_count_as_well() -> None:
    cluster = led(1, config(apply_entries=8))
    epoch = open_producer(cluster, "p").epoch
    cluster.auto_flush = False
    for number in range(1, 9):
        cluster.turn("n1", [Propose(-number, b"x", 1, None, stamped(epoch, number))])
    engine, before = cluster.engine("n1"), cluster.engine("n1").applied
    engine.core.raft.commit(raft_state(cluster, "n1").log.last_index)
    assert engine.turn([], 0).more
    assert engine.applied - before == 4


def test_receipts_come_with_their_entries() -> None:
    """In the order of the log, and none before its entry is applied."""
    cluster = led(3, config(apply_entries=1))
    tokens = append_many(cluster, "n1", 3)
    for name in ("n2", "n3"):
        cluster.isolate(name)
    for number in range(4):
        cluster.turn("n1", [Propose(-1 - number, b"x", 1, None, UNCONDITIONAL)])
    cluster.flush("n1")
    cluster.heal()
    cluster.run(30)
    offsets = [receipt(cluster, token).offset for token in (*tokens, -1, -2, -3, -4)]
    assert offsets == list(range(7))
    assert list(cluster.answers)[-4:] == [-1, -2, -3, -4]


def answers_of(rig: EngineRig, turns: int) -> list[Answer]:
    return [answer for _ in range(turns) for answer in rig.engine.turn([], 0).answers]


def ask(rig: EngineRig, index: int, lost: int | None = None) -> list[Answer]:
    """A read whose index the leader says, with a commit of all entries in the same turn."""
    rig.turn(Read(7))
    rig.raft.commit(Index(ENTRIES))
    if lost is not None:
        rig.raft.without_body.add(Index(lost))
    return rig.hear("n2", read_index_reply(1, index, boot=5)).answers


def test_a_confirmed_read_waits_until_the_state_has_its_index() -> None:
    rig = follower()
    assert ask(rig, 8) == []
    assert rig.engine.applied == SLICE
    (answer,) = answers_of(rig, 2)
    assert answer == (7, ReadAnswer(Index(9), 0))


def test_a_read_below_a_lost_entry_waits_and_one_that_needs_it_is_refused_at_once() -> None:
    rig = follower()
    assert ask(rig, 8, lost=9) == []
    (answer,) = answers_of(rig, 3)
    assert answer.result == ReadAnswer(Index(8), 0)
    (refused,) = ask(follower(), 9, lost=9)
    assert isinstance(refused.result, Corrupt)
    assert "entry 9 is damaged" in str(refused.result)


def test_reads_that_wait_for_the_state_count_for_the_limit() -> None:
    rig = follower(reads=1)
    assert ask(rig, 8) == []
    (refused,) = rig.engine.turn([Read(8)], 0).answers
    assert "1 reads wait already (limits.pending_reads)" in str(refused.result)


def test_a_retry_is_answered_once_its_entry_is_applied() -> None:
    """Not when it is only committed: its leader applies in slices."""
    cluster = led(1, config(apply_entries=1))
    epoch = open_producer(cluster, "p").epoch
    cluster.auto_flush = False
    for number in range(1, 5):
        cluster.turn("n1", [Propose(-number, b"x", 1, None, stamped(epoch, number))])
    engine = cluster.engine("n1")
    engine.core.raft.commit(raft_state(cluster, "n1").log.last_index)
    retry = Propose(-9, b"x", 1, None, stamped(epoch, 4))
    found = [engine.turn([retry] * (turn == 0), 0) for turn in range(4)]
    tokens = [[answer.token for answer in one.answers] for one in found]
    assert tokens == [[-1], [-2], [-3], [-4, -9]]


def test_entries_below_a_lost_one_stay_in_memory_until_they_are_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk need not give them back in the turn that applies them."""
    cluster = led(3, config(apply_entries=SLICE, log_memory_bytes=0))
    cluster.isolate("n3")
    append_unconfirmed(cluster, 12)
    spoil_body_while_down(cluster, "n2", 12)
    seen = []
    turn = Engine.turn

    def take_turn(engine: Engine, inputs: Iterable[Input], *now: int) -> Effects:
        effects = turn(engine, inputs, *now)
        if engine.node == "n2":
            seen.append((int(engine.applied), int(engine.core.raft.log.first_in_memory)))
        return effects

    monkeypatch.setattr(Engine, "turn", take_turn)
    cluster.run(30)
    assert all(first <= applied + 1 for applied, first in seen if applied < 11)
    assert seen[-1] == (11, 14)  # no entry is applied any more: the disk holds the rest


def append_unconfirmed(cluster: HandCluster, count: int) -> None:
    """Append entries that n2 stores and of which n1 hears nothing."""
    for _ in range(count):
        cluster.propose("n1", b"x" * 100)
        for _ in range(4):
            cluster.take(lambda envelope: isinstance(envelope.message, Ack))
            cluster.deliver_all()
            cluster.flush("n2")
    cluster.take(lambda _: True)


def spoil_body_while_down(cluster: HandCluster, name: str, index: int) -> None:
    node = cluster.nodes[NodeId(name)]
    assert node.store.log is not None
    _, end = node.store.log.segments[0].rows.frame(Index(index))
    cluster.crash(name)
    node.store.disk.spoil(segment_name(1), end - 1, b"\xff")
    cluster.restart(name)
