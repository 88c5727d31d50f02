"""What a replica tells about its disk when its log is opened."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from directory_rig import INCARNATION, Writer, log_path, run
from quorate.config import Config
from quorate.raft.output import Happening
from quorate.replica.opening import plan_opening
from quorate.state.state import State
from quorate.storage.checkpoint import CHECKPOINT, Checkpoint
from quorate.storage.directory import DataDirectory
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.vfs import RealFile, RealVfs
from quorate.testing.disk.store import complete
from quorate.types import GroupId, NodeId

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from quorate.raft.output import Event


def told(path: Path) -> list[Event]:
    """What the next start of the node in ``path``, alone in its group, reports."""
    directory = DataDirectory.open(path, "shop", "n1")
    group = GroupId("shop", INCARNATION)
    opened = complete(plan_opening(directory, group, (NodeId("n1"),), Config(), 0))
    opened.close()
    directory.close()
    return opened.engine.core.standing.out.events


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
    assert (unsure.happening, unsure.index) == (Happening.UNSURE, 3)
    assert damaged.happening is Happening.DAMAGED
    assert damaged.detail == (f"{name}, bytes {start} to {end}: entries are lost (entries 4 to 5)")
    assert [event.happening for event in told(tmp_path / "n1")] == [Happening.UNSURE]


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
    assert damaged.happening is Happening.DAMAGED
    assert "the checkpoint cannot be read: [Errno 5] Input/output error" in damaged.detail
