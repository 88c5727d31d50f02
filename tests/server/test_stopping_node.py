"""A node that is told to stop while it starts, and one whose disk fails while it stops."""

from __future__ import annotations

import errno
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from server_rig import CLUSTER, Cluster, create, in_loop, leader_of, until

from quorate.errors import DiskFailed, InvariantBroken, WrongDirectory
from quorate.net.listener import Listener
from quorate.replica.log_writer import LogWriter
from quorate.replica.opening import plan_opening
from quorate.server import disk_failures
from quorate.server import manifest as manifests
from quorate.server.logs import log_lifecycle
from quorate.server.logs.catalog import catalog_incarnation
from quorate.server.logs.table import TableFile
from quorate.server.manifest import remove_log
from quorate.storage.directory import LOGS, log_name
from quorate.storage.disk_errors import WAIT_FOR_FILES
from quorate.storage.layout import CLEAN
from quorate.storage.manifest import MANIFEST, LogState, Manifest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from quorate.storage.directory import DataDirectory
    from quorate.storage.vfs import Vfs
    from quorate.types import Index


def is_clean(path: Path, incarnation: int) -> bool:
    return (path / "n1" / LOGS / log_name(incarnation) / CLEAN).exists()


def failures(path: Path) -> int:
    manifest = Manifest.decode((path / "n1" / MANIFEST).read_bytes())
    assert manifest is not None
    return manifest.failures


# -- while it starts ---------------------------------------------------------------------------


@in_loop
async def test_a_node_whose_catalog_waits_for_room_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace_file = manifests.replace_manifest

    def full(vfs: Vfs, data: bytes) -> None:
        if b"/catalog" in data:
            raise OSError(errno.ENOSPC, "as told")
        replace_file(vfs, data)

    monkeypatch.setattr(manifests, "replace_manifest", full)
    cluster = Cluster(tmp_path, 1)
    cluster.begin("n1")
    await until(lambda: "the catalog waits" in caplog.text)
    await cluster.stop("n1")
    monkeypatch.undo()
    await cluster.start("n1")
    await cluster.stop("n1")


@in_loop
async def test_a_node_whose_logs_are_being_opened_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log waits for a file that it may open, in the middle of its opening."""
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log, other = await create(cluster, "orders"), await create(cluster, "bills")
    await cluster.stop("n1")
    waits = 0

    def waiting(directory: DataDirectory, group: Any, *rest: Any) -> Generator[str, None, Any]:
        nonlocal waits
        plan = plan_opening(directory, group, *rest)
        if group.incarnation == log:
            yield next(plan)
            while True:
                waits += 1
                yield WAIT_FOR_FILES
        return (yield from plan)

    monkeypatch.setattr("quorate.replica.opening.plan_opening", waiting)
    cluster.begin("n1")
    await until(lambda: waits > 1 and cluster.nodes["n1"].service.replicas.get(other))
    await cluster.stop("n1")
    # What was open by then is closed in good order, and the rest is what a kill leaves.
    assert is_clean(tmp_path, other)
    assert is_clean(tmp_path, catalog_incarnation(CLUSTER))
    assert not is_clean(tmp_path, log)
    monkeypatch.undo()
    await cluster.start("n1")
    async with leader_of(cluster, "orders") as client:
        assert await client.append(log, b"a") == 0
    await cluster.stop("n1")


@in_loop
async def test_the_directory_is_left_after_the_last_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while a start finishes a deletion: the next process must not find it under way."""
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log = await create(cluster, "orders")
    await cluster.stop("n1")
    place = tmp_path / "n1" / MANIFEST
    manifest = Manifest.decode(place.read_bytes())
    assert manifest is not None
    manifest.logs[log] = manifest.logs[log]._replace(state=LogState.DELETING)
    place.write_bytes(manifest.encode())
    began, removed, left = False, False, Event()

    def slow(directory: DataDirectory, incarnation: int) -> None:
        nonlocal began, removed
        began = True
        # Whoever does not wait for this is gone by then.
        left.wait(0.5)
        remove_log(directory, incarnation)
        removed = True

    monkeypatch.setattr("quorate.server.logs.log_lifecycle.remove_log", slow)
    cluster.begin("n1")
    await until(lambda: began)
    node, found = cluster.nodes["n1"], list[bool]()
    leave = node._leave_directory

    def leave_and_look() -> None:
        found.append(removed)
        left.set()
        leave()

    monkeypatch.setattr(node, "_leave_directory", leave_and_look)
    await cluster.stop("n1")
    assert found == [True]


@in_loop
async def test_the_directory_is_left_after_the_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, written, left, write = Event(), Event(), Event(), TableFile.write

    def slow(file: TableFile, table: bytes) -> None:
        began.set()
        # A stop that does not wait for this is over by then.
        left.wait(0.5)
        write(file, table)
        written.set()

    monkeypatch.setattr(log_lifecycle, "TABLE_EVERY", 1)
    monkeypatch.setattr(TableFile, "write", slow)
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    await create(cluster, "orders")
    await until(began.is_set)
    node, found = cluster.nodes["n1"], list[bool]()
    leave = node._leave_directory

    def leave_and_look() -> None:
        found.append(written.is_set())
        left.set()
        leave()

    monkeypatch.setattr(node, "_leave_directory", leave_and_look)
    await cluster.stop("n1")
    assert found == [True]


# -- halts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@in_loop
async def test_a_disk_that_fails_when_it_is_called_sound_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(disk_failures, "SOUND_S", 0.0)
    monkeypatch.setattr(disk_failures, "FAILURE_WAIT_S", 0.0)
    replace_file, failed = manifests.replace_manifest, list[bytes]()

    def failing(vfs: Vfs, data: bytes) -> None:
        if b"failures 0" in data and not failed:
            failed.append(data)
            raise OSError(number, "as told")
        replace_file(vfs, data)

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    cluster.nodes["n1"].disk_failures.remember()
    await cluster.stop("n1")
    monkeypatch.setattr(manifests, "replace_manifest", failing)
    if number == errno.EIO:
        with pytest.raises(DiskFailed, match="n1: the manifest"):
            await cluster.start("n1")
            await cluster.running["n1"]
        return
    await cluster.start("n1")
    await until(lambda: bool(failed))
    # The next change writes it.
    await create(cluster, "orders")
    await cluster.stop("n1")
    assert failures(tmp_path) == 0


@in_loop
async def test_a_halt_ends_the_node_whatever_goes_wrong_with_its_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Listener) -> None:
        raise RuntimeError("as told")

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    with monkeypatch.context() as patched:
        patched.setattr(Listener, "abort", broken)
        with pytest.raises(RuntimeError, match="as told"):
            cluster.nodes["n1"].halt(WrongDirectory("an older copy"))
    with pytest.raises(WrongDirectory, match="an older copy"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


@in_loop
async def test_a_halt_is_told_also_if_the_node_stops_already(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    node = cluster.nodes["n1"]
    node.stop()
    node.halt(WrongDirectory("the first"))
    node.halt(InvariantBroken("the second"))
    with pytest.raises(WrongDirectory, match="the first"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


@in_loop
async def test_a_disk_that_fails_during_a_stop_is_told_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[LogWriter](), LogWriter.close

    async def failing(work: LogWriter, settled: Index) -> None:
        closed.append(work)
        if len(closed) == 1:
            raise OSError(errno.EIO, "as told")
        await close(work, settled)

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log = await create(cluster, "orders")
    monkeypatch.setattr(LogWriter, "close", failing)
    node = cluster.nodes["n1"]
    node.stop()
    with pytest.raises(DiskFailed, match="n1: a replica did not stop in order"):
        await cluster.running.pop("n1")
    # All the others are closed as ever.
    assert is_clean(tmp_path, log) != is_clean(tmp_path, catalog_incarnation(CLUSTER))
    # As `quorate serve` does.
    node.disk_failures.remember()
    assert failures(tmp_path) == 1
    node._leave_directory()


@in_loop
async def test_a_stop_without_room_for_its_marks_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(work: LogWriter, settled: Index) -> None:
        raise OSError(errno.ENOSPC, "as told")

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    with monkeypatch.context() as patched:
        patched.setattr(LogWriter, "close", full)
        await cluster.stop("n1")
    assert failures(tmp_path) == 0
    await cluster.start("n1")
    await cluster.stop("n1")
