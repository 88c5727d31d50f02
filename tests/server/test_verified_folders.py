"""``quorate verify`` calls no folder of a log whole that the node refuses to open."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.server.manifest import ManifestFile, check_log, make_log
from quorate.storage.directory import DataDirectory, log_name
from quorate.storage.flusher import Flush
from quorate.storage.layout import VOTE_BYTES, VOTE_COPIES
from quorate.storage.manifest import LogLife, LogState
from quorate.storage.offline.verify import verify
from quorate.storage.recovery.open import open_log
from quorate.storage.vfs import RealVfs
from quorate.types import NodeId, Term
from verification.disk.small import SEGMENT_BYTES, grow, run
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NODE, LOG = NodeId("n1"), 7
FOLDER = f"logs/{log_name(LOG)}"


def start(path: Path) -> None:
    """Start a node on one log, write an entry and stop in order, as ``server/logs`` does."""
    directory = DataDirectory.open(path, "shop", NODE)
    stored = ManifestFile(directory)
    try:
        stored.open({NODE: "127.0.0.1:7401"})
        logs = stored.manifest.logs
        if LOG not in logs:
            make_log(directory, LOG)
            logs[LOG] = LogLife(LogState.MADE, 0, (NODE,), "orders")
            stored.save_now()
        check_log(directory, LOG, "orders")
        vfs, identity = directory.log_vfs(LOG), directory.log_id(LOG)
        plan = open_log(vfs, identity, SEGMENT_BYTES, lambda: 7, least_boot=logs[LOG].boot)
        log, flusher = complete(plan)
        logs[LOG] = logs[LOG]._replace(boot=log.record.boot)
        stored.save_now()
        term = log.record.boot
        run(flusher.plan(Flush(1, (Term(term), NODE), None, grow(log.last, 30, term=term))))
        run(flusher.close(log.last.index))
        log.close()
        vfs.close()
    finally:
        stored.close()
        directory.close()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The data directory of a node that was started twice; beside it, the log's folder between the
    two starts."""
    path = tmp_path / "n1"
    start(path)
    shutil.copytree(path / FOLDER, tmp_path / "old")
    start(path)
    assert verify([path]).whole
    return path


def put_the_copy_back(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.parents[2] / "old", folder)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)


def lose_the_votes(folder: Path) -> None:
    for name in VOTE_COPIES:
        (folder / name).unlink()


def begin_again(folder: Path) -> None:
    """Leave what a first open leaves that is killed."""
    empty(folder)
    (folder / VOTE_COPIES[0]).write_bytes(bytes(VOTE_BYTES))


def spoil_the_votes(folder: Path) -> None:
    for name in VOTE_COPIES:
        (folder / name).write_bytes(b"\xa5" * VOTE_BYTES)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (put_the_copy_back, "the folder is an older copy: its vote record is of boot 1"),
        (begin_again, "the folder is an older copy: its vote record is of boot 0"),
        (shutil.rmtree, "log orders was made here and is missing"),
        (empty, "log orders was made here and its vote record is missing"),
        (lose_the_votes, "log orders was made here and its vote record is missing"),
        (spoil_the_votes, None),
    ],
)
def test_verify_names_each_folder_that_the_node_refuses(
    node: Path, change: Callable[[Path], None], what: str | None
) -> None:
    change(node / FOLDER)
    with pytest.raises(Damaged):
        start(node)
    report = verify([node])
    assert not report.whole
    named = [(damage.file, damage.what) for damage in report.directories[0].damage]
    # Damage within the folder says itself why the node refuses it.
    assert [file for file, _ in named] == ([] if what is None else [FOLDER])
    assert what is None or named[0][1].startswith(what)


def test_verify_names_a_folder_that_the_disk_does_not_give_back(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = RealVfs.names

    def failing(vfs: RealVfs) -> list[str]:
        if VOTE_COPIES[0] in (found := names(vfs)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return found

    monkeypatch.setattr(RealVfs, "names", failing)
    with pytest.raises(Damaged):
        start(node)
    [directory] = verify([node]).directories
    assert [(damage.file, damage.what) for damage in directory.damage] == [
        (FOLDER, "it cannot be read: Input/output error")
    ]
