"""The engine and its state: what is applied, kept on disk, started from, and left to the disk."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from cluster_rig import append_many, happened, led, log_of, raft_state, read_answer, receipt
from core_rig import ELECTION_TICKS, append, config, end, heartbeat
from engine_rig import BOOT, GROUP, EngineRig
from proposal_rig import open_producer, opening, operate, propose, stamped
from quorate.commands import SetFence
from quorate.entry import make_entry
from quorate.raft.messages import Envelope
from quorate.raft.output import EventKind
from quorate.replica.engine_io import Deliver
from quorate.state.checkpoint import encode_sections
from quorate.state.operations import encode_operation
from quorate.state.state import State
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from quorate.storage.recovery.result import Recovered
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Term
from verification.disk.simulated import SimulatedDisk, SimulatedFile
from verification.disk.small import IDENTITY
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.entry import Entry
    from quorate.state.checkpoint import StateFields
    from quorate.state.operations import Operation
    from verification.disk.store import Store
    from verification.hand import HandCluster

DAY_US = 24 * 3600 * 1_000_000


def store_of(cluster: HandCluster, name: str) -> Store:
    return cluster.nodes[NodeId(name)].store


def tend(cluster: HandCluster, name: str) -> None:
    """Do chores until there are none, and keep the state if that is due: as a writer does."""
    engine, store = cluster.engine(name), store_of(cluster, name)
    assert store.flusher is not None
    assert store.log is not None
    while list(store.flusher.chores(engine.settled)):
        pass
    checkpoint = engine.checkpoint(store.log.sealed)
    if checkpoint is not None:
        complete(store.flusher.keep(checkpoint))  # type: ignore[arg-type]  # a generator


def with_a_sealed_segment(cluster: HandCluster, name: str = "n1") -> None:
    """Append until ``name`` has sealed a segment, and keep its state."""
    log = store_of(cluster, name).log
    assert log is not None
    while not log.sealed:
        append_many(cluster, "n1", 5)
        cluster.run(1)
        tend(cluster, name)


# -- applying ----------------------------------------------------------------------------------


def operations(*given: Operation) -> list[Entry]:
    """A noop of term 1, and an entry for each operation."""
    entries = [make_entry(ORIGIN, Term(1), EntryKind.NOOP)]
    for operation in given:
        kind, body = encode_operation(operation)
        entries.append(make_entry(end(entries), Term(1), kind, body))
    return entries


def test_what_a_leader_logged_is_applied_whatever_the_own_limits_say() -> None:
    """They may differ between nodes: the leader has asked its own."""
    rig = EngineRig(producers=1)
    entries = operations(opening("p"), opening("q"), opening("r"))
    rig.hear("n2", append(1, entries, committed=len(entries)))
    assert rig.engine.applied == 4
    assert [one.name for one in rig.engine.state.producers] == ["p", "q", "r"]


def test_no_clock_of_this_node_has_a_say_in_what_is_applied() -> None:
    rig = EngineRig()
    entries = operations(opening("p"), SetFence("f", None))
    rig.hear("n2", append(1, entries[:2], committed=2))
    rig.hear("n2", append(1, entries[2:], prev=end(entries[:2])))
    committed = Envelope(GROUP, NodeId("n2"), NodeId("n1"), BOOT, heartbeat(1, end(entries)))
    rig.engine.turn([Deliver(committed)], 0, 1000 * DAY_US)
    assert rig.engine.applied == 3
    assert len(rig.engine.state.producers) == 1


# -- checkpoints -------------------------------------------------------------------------------


def test_a_checkpoint_is_due_once_for_every_sealed_segment() -> None:
    cluster = led(1)
    engine = cluster.engine("n1")
    assert engine.checkpoint(Index(0)) is None
    append_many(cluster, "n1", 4)
    kept = engine.checkpoint(Index(3))
    assert kept is not None
    assert kept.position == raft_state(cluster, "n1").log.last
    assert State.decode(kept.sections) == engine.state
    append_many(cluster, "n1", 4)
    assert engine.checkpoint(Index(3)) is None
    assert engine.checkpoint(Index(5)) is None, "the newest one has all that was sealed since"
    again = engine.checkpoint(Index(6))
    assert again is not None
    assert again.position.index == 9


def test_a_checkpoint_is_of_the_state_as_it_was_when_it_was_due() -> None:
    """Its sections are made while the log goes on."""
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    append_many(cluster, "n1", 4)
    kept = cluster.engine("n1").checkpoint(Index(3))
    assert kept is not None
    before = cluster.engine("n1").state.copy()
    for sequence in range(1, 20):
        propose(cluster, stamped(epoch, sequence))
    assert cluster.engine("n1").state != before
    assert State.decode(kept.sections) == before


def test_the_loop_makes_no_section_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """It only copies the state. A thread of the disk makes each section when it writes it."""
    made: list[bytes] = []

    def counted(contents: StateFields, digest: Callable[[], int]) -> Iterator[bytes]:
        for section in encode_sections(contents, digest):
            made.append(section)
            yield section

    monkeypatch.setattr("quorate.state.state.encode_sections", counted)
    cluster = led(1)
    open_producer(cluster, "p")
    append_many(cluster, "n1", 4)
    kept = cluster.engine("n1").checkpoint(Index(3))
    assert kept is not None
    assert not made
    sections = [len(made) for _ in kept.pieces(IDENTITY)]
    assert sections == [0, 1, 2, 3, 3]  # the head of the file, three sections and the end


def test_a_checkpoint_never_knows_more_than_the_log_beside_it() -> None:
    """The followers' disks commit an entry that the leader's has not written yet."""
    cluster = led(3)
    cluster.auto_flush = False
    cluster.propose("n1", b"x")
    while cluster.engine("n1").applied < 2:
        for name in ("n2", "n3"):
            cluster.flush(name)
        cluster.deliver_all()
        cluster.tick()
    assert raft_state(cluster, "n1").persisted == 1
    assert cluster.engine("n1").checkpoint(Index(1)) is None
    cluster.flush("n1")
    kept = cluster.engine("n1").checkpoint(Index(1))
    assert kept is not None
    assert kept.position.index == 2


def test_a_replica_starts_from_its_checkpoint_and_has_the_same_state() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    propose(cluster, stamped(epoch, 1))
    with_a_sealed_segment(cluster)
    propose(cluster, stamped(epoch, 2))
    operate(cluster, SetFence("f", None))
    before = cluster.engine("n1").state.copy()
    cluster.crash("n1")
    assert CHECKPOINT in store_of(cluster, "n1").disk.files
    cluster.restart("n1")
    engine = cluster.engine("n1")
    assert engine.applied >= 2
    assert engine.state.producers.get("p") is not None, "known before anybody leads"
    cluster.run(4 * ELECTION_TICKS)
    # Those of the noop of the new term.
    before.append_time, before.age = engine.state.append_time, engine.state.age
    assert engine.state == before
    again = propose(cluster, stamped(epoch, 1))
    assert receipt(cluster, again).offset == 0


def test_entries_before_a_checkpoint_are_neither_read_nor_kept_in_memory() -> None:
    cluster = led(1)
    with_a_sealed_segment(cluster)
    applied = cluster.engine("n1").applied
    cluster.crash("n1")
    recovered = store_of(cluster, "n1").open()
    assert recovered.checkpoint is not None
    assert recovered.committed == recovered.checkpoint.position.index == applied
    assert len(recovered.entries) == 0


@pytest.mark.parametrize("how", ["gone", "flipped", "short"])
def test_without_a_checkpoint_that_counts_the_log_is_replayed(how: str) -> None:
    cluster = led(1)
    with_a_sealed_segment(cluster)
    records = cluster.engine("n1").state.end
    cluster.crash("n1")
    disk = store_of(cluster, "n1").disk
    data = bytes(disk.files[CHECKPOINT].content)
    if how == "gone":
        disk.lose(CHECKPOINT)
    elif how == "flipped":
        disk.spoil(CHECKPOINT, len(data) - 1, bytes([data[-1] ^ 1]))
    else:
        disk.shorten(CHECKPOINT, len(data) - 1)
    recovered = store_of(cluster, "n1").open()
    assert recovered.checkpoint is None
    cluster.restart("n1")
    cluster.run(4 * ELECTION_TICKS)
    assert cluster.engine("n1").state.end == records > 0


def refuse_reads(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """The file has a sector that the disk does not give back, or cannot be read for now."""
    real = SimulatedFile.read

    def read(file: SimulatedFile, position: int, length: int) -> bytes:
        if file._name == name:
            raise OSError(number, os.strerror(number))
        return real(file, position, length)

    monkeypatch.setattr(SimulatedFile, "read", read)


def test_a_checkpoint_that_the_disk_does_not_give_back_is_damage_and_the_log_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = led(1)
    with_a_sealed_segment(cluster)
    records = cluster.engine("n1").state.end
    cluster.crash("n1")
    store = store_of(cluster, "n1")
    with monkeypatch.context() as patched:
        refuse_reads(patched, CHECKPOINT, errno.EIO)
        assert store.open().checkpoint is None
        assert store.log is not None
        (damage,) = store.log.damage
        assert (damage.file, damage.entries) == (CHECKPOINT, 0)
        assert damage.what.startswith("the checkpoint cannot be read: [Errno 5]")
        cluster.restart("n1")
        cluster.run(4 * ELECTION_TICKS)
    assert cluster.engine("n1").state.end == records > 0
    kept = Checkpoint(raft_state(cluster, "n1").log.last, cluster.engine("n1").state.sections())
    assert store.flusher is not None
    complete(store.flusher.keep(kept))  # type: ignore[arg-type]  # a generator
    assert store.open().checkpoint is not None, "the next one takes its place"


def test_a_checkpoint_that_cannot_be_read_for_now_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = led(1)
    with_a_sealed_segment(cluster)
    cluster.crash("n1")
    store = store_of(cluster, "n1")
    with monkeypatch.context() as patched:
        refuse_reads(patched, CHECKPOINT, errno.EMFILE)
        with pytest.raises(OSError, match="Too many open files"):
            store.open()
    assert store.open().checkpoint is not None


@pytest.mark.parametrize("how", ["a section more", "a section less", "of a later release"])
def test_a_checkpoint_that_cannot_be_decoded_is_none_and_the_log_is_replayed(how: str) -> None:
    """Its checksums are right: other software wrote it."""
    cluster = led(1)
    open_producer(cluster, "p")
    with_a_sealed_segment(cluster)
    before = cluster.engine("n1").state.copy()
    cluster.crash("n1")
    disk, identity = store_of(cluster, "n1").disk, store_of(cluster, "n1").identity
    kept = read_checkpoint(disk, identity)
    assert kept is not None
    sections = [*kept.sections]
    if how == "a section more":
        sections.append(b"unknown!")
    elif how == "a section less":
        sections.pop()
    else:
        sections[0] = sections[0][:1] + b"\x63" + sections[0][2:]
    file = b"".join(Checkpoint(kept.position, sections).pieces(identity))
    disk.spoil(CHECKPOINT, 0, file)
    disk.shorten(CHECKPOINT, len(file))
    recovered = store_of(cluster, "n1").open()
    assert recovered.checkpoint is not None
    cluster.restart("n1")
    engine = cluster.engine("n1")
    assert engine.applied == kept.position.index
    assert engine.state == before
    cluster.tick("n1")
    (told,) = happened(cluster, "n1", EventKind.DAMAGED)
    assert told.index == kept.position.index
    assert told.detail.startswith("unusable checkpoint: ")
    assert told.detail.endswith("; the log was replayed from its beginning")


def test_every_flipped_bit_of_a_checkpoint_is_noticed() -> None:
    position = led(1).engine("n1").core.raft.log.last
    sections = [*State().sections(), b"one more"]
    pieces = [*Checkpoint(position, sections).pieces(IDENTITY)]
    data = b"".join(pieces)
    assert read(data) == Checkpoint(position, sections)
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        assert read(bytes(spoiled)) is None
    for size in range(len(data)):
        assert read(data[:size]) is None
    for order in ([0, 2, 1, 3, 4], [0, 1, 3, 4], [0, 1, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 4]):
        assert read(b"".join(pieces[place] for place in order)) is None


def read(data: bytes) -> Checkpoint | None:
    """What a file with these bytes is read as."""
    disk = SimulatedDisk()
    disk.create(CHECKPOINT).write(0, [data])
    return read_checkpoint(disk, IDENTITY)


def test_what_a_disk_proves_to_be_committed_is_applied_before_anybody_leads() -> None:
    cluster = led(3)
    append_many(cluster, "n1", 5)
    cluster.run(2)
    for name in cluster.voters:
        store = store_of(cluster, name)
        assert store.flusher is not None
        complete(store.flusher.prove(cluster.engine(name).settled))  # type: ignore[arg-type]
        cluster.crash(name)
    cluster.restart("n2")
    assert cluster.engine("n2").applied == 6
    assert cluster.engine("n2").state.end == 5


def test_a_commit_that_the_disk_names_counts_only_as_far_as_the_log_goes() -> None:
    """A block was torn after its head: it names entries that it does not hold."""
    cluster = led(1)
    append_many(cluster, "n1", 3)
    store = store_of(cluster, "n1")
    assert store.log is not None
    store.log.segments[-1].committed = Index(99)
    recovered = Recovered.of(store.log)
    assert recovered.committed == store.log.last.index == 4


# -- the window --------------------------------------------------------------------------------


def test_what_is_applied_and_on_disk_leaves_memory_and_can_still_be_sent() -> None:
    cluster = led(3, config(log_memory_bytes=0))
    cluster.isolate("n3")
    append_many(cluster, "n1", 30)
    log = raft_state(cluster, "n1").log
    assert log.first_in_memory == 32
    assert log.window_bytes == 0
    cluster.heal()
    cluster.run(ELECTION_TICKS)
    assert cluster.engine("n3").applied == 31
    assert log_of(cluster, "n3") == log_of(cluster, "n1")


def test_what_is_only_applied_stays_in_memory() -> None:
    """The leader's own disk has not written it: nobody else could give it back."""
    cluster = led(3, config(log_memory_bytes=0))
    cluster.auto_flush = False
    tokens = [cluster.propose("n1", b"x") for _ in range(3)]
    for _ in range(30):
        for name in ("n2", "n3"):
            cluster.flush(name)
        cluster.deliver_all()
    log = raft_state(cluster, "n1").log
    assert all(receipt(cluster, token).synced == 2 for token in tokens)
    assert raft_state(cluster, "n1").persisted == 1
    assert log.first_in_memory == 2
    cluster.flush("n1")
    cluster.flush("n1")
    assert log.first_in_memory == 5


def test_what_is_only_on_disk_stays_in_memory() -> None:
    """It may be truncated yet."""
    cluster = led(3, config(log_memory_bytes=0))
    cluster.isolate("n1")
    for _ in range(3):
        cluster.propose("n1", b"x")
    assert raft_state(cluster, "n1").persisted == 4
    assert raft_state(cluster, "n1").log.first_in_memory == 2
    cluster.run(4 * ELECTION_TICKS)
    cluster.heal()
    cluster.run(4 * ELECTION_TICKS)
    assert log_of(cluster, "n1") == log_of(cluster, "n2")


def test_reads_and_restarts_work_with_nothing_in_memory() -> None:
    cluster = led(1, config(log_memory_bytes=0))
    append_many(cluster, "n1", 20)
    cluster.crash("n1")
    cluster.restart("n1")
    cluster.run(4 * ELECTION_TICKS)
    token = cluster.read("n1")
    cluster.run(1)
    assert read_answer(cluster, token).end_offset == 20
