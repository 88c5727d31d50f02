"""What a replica tells about its disk when its log is opened."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from directory_rig import INCARNATION, START, Writer, log_path, run
from quorate.config import Config
from quorate.entry import make_entry
from quorate.membership import Membership, encode_membership
from quorate.raft.output import EventKind
from quorate.replica.opening import plan_opening
from quorate.state.state import State
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.directory import DataDirectory
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.recovery.result import Recovered
from quorate.storage.vfs import RealFile, RealVfs
from quorate.types import EntryKind, GroupId, Index, NodeId, Term
from verification.disk.store import complete

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from quorate.raft.output import Event


def told(path: Path) -> list[Event]:
    """What the next start of the node in ``path``, alone in its group, reports."""
    directory = DataDirectory.open(path, "shop", "n1")
    group = GroupId("shop", INCARNATION)
    opened = complete(plan_opening(directory, group, Membership((NodeId("n1"),)), Config(), 0))
    opened.close()
    directory.close()
    return opened.engine.core.raft.out.events


def test_a_node_that_lost_its_end_names_the_file_the_bytes_and_the_entries(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.flush(writer.entries(2))
    segment = writer.log.segments[-1]
    name, start = segment_name(segment.number), segment.end - PAGE
    writer.stop(committed=0)
    end = segment.end
    with (log_path(tmp_path / "n1") / name).open("r+b") as file:
        os.pwrite(file.fileno(), bytes(end - start), start)
    unsure, damaged = told(tmp_path / "n1")
    assert (unsure.kind, unsure.index) == (EventKind.UNSURE, 3)
    assert damaged.kind is EventKind.DAMAGED
    assert damaged.detail == (f"{name}, bytes {start} to {end}: entries are lost (entries 4 to 5)")
    assert [event.kind for event in told(tmp_path / "n1")] == [EventKind.UNSURE]


def test_a_node_that_lost_nothing_tells_nothing(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.stop(committed=0)
    assert told(tmp_path / "n1") == []


def test_a_checkpoint_that_the_disk_does_not_give_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    run(writer.flusher.keep(Checkpoint(writer.log.last, State().sections())))
    writer.stop(committed=0)
    real = RealVfs.open

    def refuse(vfs: RealVfs, name: str) -> RealFile:
        if name == CHECKPOINT:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return real(vfs, name)

    monkeypatch.setattr(RealVfs, "open", refuse)
    (damaged,) = told(tmp_path / "n1")
    assert damaged.kind is EventKind.DAMAGED
    assert "the checkpoint cannot be read: [Errno 5] Input/output error" in damaged.detail


def test_blocks_name_a_membership_again_after_the_header_that_named_it_rotted(
    tmp_path: Path,
) -> None:
    """The next header names the entry that stands before it. If it is lost no file names it."""
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(1))
    body = encode_membership(Membership((NodeId("n1"),)))
    entry = make_entry(
        writer.log.last, Term(2), EntryKind.MEMBERSHIP, body, base_offset=3, append_time=START + 2
    )
    writer.flush([entry])
    writer.flush(writer.entries(1, size=40_000))
    sealed, newest = writer.log.segments
    assert sealed.footer is not None
    place = sealed.rows.frame(Index(2))[0] // PAGE * PAGE
    name, committed = segment_name(newest.number), writer.log.last.index
    writer.stop(committed)
    write(tmp_path / "n1", name, 0, b"\xa5" * PAGE)

    # The node is unsure, and then sure again; it goes on in the next segment.
    directory = DataDirectory.open(tmp_path / "n1", "shop", "n1")
    group = GroupId("shop", INCARNATION)
    opened = complete(plan_opening(directory, group, Membership((NodeId("n1"),)), Config(), 0))
    last, time = opened.log.last, START + 4
    noop = make_entry(last, Term(3), EntryKind.NOOP, b"", base_offset=6, append_time=time)
    vote = Term(3), NodeId("n1")
    run(opened.flusher.plan(Flush(1, vote, None, (noop,), noop.index, sure=True)))
    run(opened.flusher.prove(noop.index))
    opened.close()
    directory.close()

    # Long after that the page of the membership entry rots, too.
    write(tmp_path / "n1", segment_name(sealed.number), place, b"\xa5" * PAGE)
    writer = Writer.open(tmp_path / "n1")
    assert (Recovered.of(writer.log).membership, writer.log.record.unsure) == (2, False)
    writer.crash()


def write(path: Path, name: str, place: int, data: bytes) -> None:
    """Let the disk spoil a page of a file of the log."""
    with (log_path(path) / name).open("r+b") as file:
        os.pwrite(file.fileno(), data, place)
