"""No file can be opened for a moment: what needs one waits, and nothing ends."""

from __future__ import annotations

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cluster_rig import append_many, assert_same, envelope, led, raft_state, receipt
from core_rig import ELECTION_TICKS, config
from quorate.errors import Busy, DiskFailed
from quorate.raft.messages import Ack, Append, Compare, Heartbeat, HeartbeatReply, Mismatch
from quorate.raft.output import EventKind, Refusal
from quorate.raft.progress import ProgressState
from quorate.replica.engine_io import FilesAwaited, Room
from quorate.replica.replica import Replica
from quorate.replica.writer import Writer
from quorate.types import GroupId, Index, NodeId, Term
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.raft.messages import Message
    from verification.disk.simulated import SimulatedFile
    from verification.hand import HandCluster

OLD = Index(3)


class Files:
    """Whether segments and index files can be opened."""

    def __init__(self) -> None:
        self.refused = False
        self.refusals = 0


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    state = Files()
    usual = SimulatedDisk.open

    def opens(disk: SimulatedDisk, name: str) -> SimulatedFile:
        if state.refused and name.endswith((".segment", ".index")):
            state.refusals += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        return usual(disk, name)

    monkeypatch.setattr(SimulatedDisk, "open", opens)
    yield state


def sealed() -> HandCluster:
    """n1 leads. All have sealed segments and nothing of them in memory."""
    cluster = led(3, config(log_memory_bytes=0))
    for _ in range(40):
        cluster.propose("n1", bytes(4000))
        cluster.settle()
    cluster.run(20)
    for name in cluster.voters:
        store = cluster.nodes[name].store
        assert store.log is not None
        assert store.flusher is not None
        for _ in range(6):
            for _ in store.flusher.chores(cluster.engine(name).settled):
                pass
        assert store.log.sealed > 10
        assert raft_state(cluster, name).log.first_in_memory > store.log.sealed
    return cluster


def old_messages(cluster: HandCluster) -> list[Message]:
    """What a leader may say about entries that are only in sealed segments."""
    log = raft_state(cluster, "n1").log
    position = log.position(OLD)
    entries = tuple(log.entries(Index(OLD + 1), Index(OLD + 3)))
    return [
        Heartbeat(Term(1), 0, position),
        Compare(Term(1), 1, position),
        Append(Term(1), 1, position, entries, OLD),
    ]


@pytest.mark.parametrize("number", range(3), ids=["heartbeat", "compare", "append"])
@pytest.mark.parametrize("bounded", [False, True], ids=["room", "a bounded disk"])
def test_a_leaders_message_about_an_entry_that_cannot_be_read_now_is_put_aside(
    files: Files, number: int, bounded: bool
) -> None:
    cluster = sealed()
    message = old_messages(cluster)[number]
    if bounded:
        cluster.turn("n2", [Room(1 << 20)])
    cluster.table.clear()
    files.refused = True
    cluster.deliver(envelope(cluster, "n1", "n2", message))
    assert cluster.nodes[NodeId("n2")].halted is None
    assert files.refusals > 0
    assert cluster.table == []
    assert raft_state(cluster, "n2").refused[Refusal.NOT_READABLE] == 1
    files.refused = False
    cluster.deliver(envelope(cluster, "n1", "n2", message))
    assert len(cluster.table) == 1


def test_a_mismatch_needs_no_file_and_the_question_that_follows_waits_for_one(files: Files) -> None:
    cluster = sealed()
    leader = cluster.engine("n1").core.leader
    assert leader is not None
    leader.peer_restarted(NodeId("n2"))
    peer = leader.progress[NodeId("n2")]
    reply = Mismatch(Term(1), peer.number, Index(OLD + 5), OLD, Term(1))
    files.refused = True
    cluster.deliver(envelope(cluster, "n2", "n1", reply))
    assert cluster.nodes[NodeId("n1")].halted is None
    assert files.refusals > 0
    assert (peer.state, peer.next, peer.sent_at) == (ProgressState.COMPARE, OLD, None)
    assert cluster.take(lambda one: type(one.message) is Compare) == []
    files.refused = False
    cluster.tick("n1")
    (asked,) = cluster.take(lambda one: type(one.message) is Compare)
    assert isinstance(asked.message, Compare)
    assert (asked.target, asked.message.prev.index) == ("n2", OLD - 1)


def test_a_cluster_that_can_open_no_file_elects_appends_and_feeds_later(files: Files) -> None:
    """n3 was away and needs what is only on disks; leaders change meanwhile."""
    cluster = led(3, config(log_memory_bytes=0))
    cluster.isolate("n3")
    for _ in range(40):
        cluster.propose("n1", bytes(4000))
        cluster.settle()
    cluster.run(20)
    for name in ("n1", "n2"):
        store = cluster.nodes[NodeId(name)].store
        assert store.flusher is not None
        for _ in range(6):
            for _ in store.flusher.chores(cluster.engine(name).settled):
                pass
    files.refused = True
    cluster.heal()
    cluster.run(2 * ELECTION_TICKS)
    assert files.refusals > 0
    leader = cluster.leader()
    assert leader is not None
    token = cluster.propose(leader, b"x")
    cluster.run(ELECTION_TICKS)
    receipt(cluster, token)
    assert [node.halted for node in cluster.nodes.values()] == [None] * 3
    assert raft_state(cluster, "n3").log.last_index == 1
    files.refused = False
    append_many(cluster, leader, 2)
    cluster.run(2 * ELECTION_TICKS)
    assert_same(cluster)


@pytest.mark.parametrize("number", range(3), ids=["heartbeat", "compare", "append"])
@pytest.mark.parametrize("bounded", [False, True], ids=["room", "a bounded disk"])
def test_a_message_about_an_entry_that_the_disk_does_not_give_back_is_answered(
    monkeypatch: pytest.MonkeyPatch, number: int, bounded: bool
) -> None:
    """What is only on disk is committed: a leader has the same, and this node has applied it."""
    cluster = sealed()
    message = old_messages(cluster)[number]
    if bounded:
        cluster.turn("n2", [Room(1 << 20)])
    cluster.table.clear()
    last = raft_state(cluster, "n2").log.last

    def fails(_: SimulatedDisk, name: str) -> SimulatedFile:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    monkeypatch.setattr(SimulatedDisk, "open", fails)
    cluster.deliver(envelope(cluster, "n1", "n2", message))
    assert cluster.nodes[NodeId("n2")].halted is None
    assert raft_state(cluster, "n2").log.last == last
    (answer,) = cluster.table
    assert isinstance(answer.message, HeartbeatReply if number == 0 else Ack)
    if isinstance(answer.message, Ack):
        assert answer.message.match == raft_state(cluster, "n2").committed


def test_an_open_that_finds_no_file_says_what_the_system_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever makes logs waits for files and room, and looks at the cause for that."""
    refused = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def opening(*_: object) -> Iterator[str]:
        yield "look"
        raise Busy("entry 3 cannot be read now") from refused

    monkeypatch.setattr("quorate.replica.opening.plan_opening", opening)
    directory: Any = SimpleNamespace(identity=SimpleNamespace(node="n1"))

    async def open_replica() -> None:
        writer = Writer(threads=1)
        try:
            group = GroupId("c", 1)
            nothing: Any = None
            await Replica.open(
                directory, group, nothing, nothing, writer, nothing, send=nothing, halted=nothing
            )
        finally:
            writer.close()

    with pytest.raises(DiskFailed, match="n1 cannot open log") as told:
        asyncio.run(open_replica())
    assert told.value.__cause__ is refused


def test_a_wait_for_files_is_told_with_what_to_do() -> None:
    cluster = led(3)
    cluster.turn("n1", [FilesAwaited()])
    (told,) = [
        one for one in cluster.nodes[NodeId("n1")].events if one.kind is EventKind.LACKS_FILES
    ]
    assert "raise ulimit -n" in told.detail
