"""A replica whose disk did not give back an entry for a while: nothing is lost for good."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from cluster_rig import append_many, assert_same, led, raft_state
from core_rig import ELECTION_TICKS, append, chain, config
from engine_rig import EngineRig
from quorate.raft.output import EventKind
from quorate.storage.damage import Damage, DiskFinding
from quorate.storage.layout import index_name, segment_name
from quorate.storage.unread import look_again
from quorate.types import Index, NodeId
from verification.disk.simulated import SimulatedFile

if TYPE_CHECKING:
    import pytest

    from quorate.storage.log import SegmentLog
    from verification.hand import HandCluster

# An entry in the first segment, which is sealed.
PLACE = 5
SLICE = 4


class Refusals:
    """Bytes of the first segment of n2 that its disk does not give back."""

    def __init__(self, patched: pytest.MonkeyPatch, cluster: HandCluster) -> None:
        disk = cluster.nodes[NodeId("n2")].store.disk
        usual = SimulatedFile.read
        self.refused: list[tuple[int, int]] = []

        def read(file: SimulatedFile, position: int, length: int) -> bytes:
            if (file._disk, file._name) == (disk, segment_name(1)):
                for start, stop in self.refused:
                    if start < position + length and position < stop:
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
            return usual(file, position, length)

        patched.setattr(SimulatedFile, "read", read)


def log_of(cluster: HandCluster) -> SegmentLog:
    log = cluster.nodes[NodeId("n2")].store.log
    assert log is not None
    return log


def sealed() -> HandCluster:
    """n2 has sealed segments that no checkpoint covers."""
    cluster = led(3, config(apply_entries=SLICE))
    append_many(cluster, "n1", 3)
    for _ in range(60):
        cluster.propose("n1", bytes(2000))
        cluster.run(2)
    node = cluster.nodes[NodeId("n2")]
    for _ in range(6):
        assert node.store.flusher is not None
        for _ in node.store.flusher.chores(cluster.engine("n2").settled):
            pass
    assert log_of(cluster).segments[0].last.index > PLACE + SLICE
    return cluster


def stopped(patched: pytest.MonkeyPatch) -> tuple[HandCluster, Refusals]:
    """n2 has started, and its replay stopped before an entry that could not be read."""
    cluster = sealed()
    refusals = Refusals(patched, cluster)
    frame = log_of(cluster).segments[0].rows.frame(Index(PLACE))
    cluster.crash("n2")
    refusals.refused.append(frame)
    cluster.restart("n2")
    assert cluster.engine("n2").applied == PLACE - 1
    assert not raft_state(cluster, "n2").may_lead
    return cluster, refusals


def give_findings(cluster: HandCluster) -> None:
    findings = log_of(cluster).findings
    cluster.turn("n2", list(findings))
    findings.clear()


def told(cluster: HandCluster) -> list[str]:
    events = cluster.nodes[NodeId("n2")].events
    return [event.detail for event in events if event.kind is EventKind.DAMAGED]


def test_a_replay_goes_on_once_the_disk_gives_the_entry_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, refusals = stopped(monkeypatch)
    give_findings(cluster)
    (detail,) = told(cluster)
    assert f"it cannot be read now: [Errno 5] {os.strerror(errno.EIO)}" in detail
    look_again(log_of(cluster))
    give_findings(cluster)
    cluster.run(ELECTION_TICKS)
    assert cluster.engine("n2").applied == PLACE - 1
    refusals.refused.clear()
    look_again(log_of(cluster))
    give_findings(cluster)
    cluster.run(ELECTION_TICKS)
    assert raft_state(cluster, "n2").may_lead
    assert len(told(cluster)) == 1
    assert_same(cluster)


def test_a_replay_that_goes_on_stops_before_the_next_entry_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, refusals = stopped(monkeypatch)
    refusals.refused.clear()
    _, end = log_of(cluster).segments[0].rows.frame(Index(PLACE + 2))
    disk = cluster.nodes[NodeId("n2")].store.disk
    byte = disk.files[segment_name(1)].content[end - 1]
    disk.spoil(segment_name(1), end - 1, bytes([byte ^ 1]))
    look_again(log_of(cluster))
    give_findings(cluster)
    cluster.run(ELECTION_TICKS)
    assert cluster.engine("n2").applied == PLACE + 1
    assert raft_state(cluster, "n2").without_body == {PLACE + 2}
    assert not raft_state(cluster, "n2").may_lead


def test_a_replay_that_goes_on_waits_for_a_chore_that_looks_at_the_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, refusals = stopped(monkeypatch)
    refusals.refused.clear()
    log, store = log_of(cluster), cluster.nodes[NodeId("n2")].store
    look_again(log)
    # The rows leave memory, and the file that has them is gone.
    log.looks_later = True
    store.disk.lose(index_name(1))
    log.loaded._recent.clear()
    log.segments[0]._seen = None
    give_findings(cluster)
    effects = cluster.engine("n2").turn([], 0)
    assert (cluster.engine("n2").applied, effects.more) == (PLACE - 1, False)
    assert log.wanted
    assert store.flusher is not None
    for _ in store.flusher.chores(cluster.engine("n2").settled):
        pass
    cluster.run(ELECTION_TICKS)
    assert_same(cluster)


def test_a_bad_copy_of_an_entry_in_memory_does_not_stop_the_state() -> None:
    """The state takes the entry from memory, and a peer gets it from there."""
    rig = EngineRig()
    rig.hear("n2", append(1, chain(1, 1, 1)))
    damage = Damage(segment_name(1), 0, 1, Index(2), Index(2), "the body is bad")
    rig.turn(DiskFinding(damage, bad=(Index(2),)))
    assert rig.raft.lost is None
    rig.raft.commit(Index(3))
    rig.engine.turn([], 0)
    assert rig.engine.applied == 3
    rig.turn(DiskFinding(None, bad=(Index(2),)))
    assert rig.raft.without_body == {2}
    rig.turn(DiskFinding(readable=(Index(2),)))
    assert rig.raft.without_body == set()
