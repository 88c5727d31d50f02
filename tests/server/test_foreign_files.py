"""Files that others put into the folder of one log, or do not let the node use: they concern that
log alone."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from server_rig import Cluster, create, in_loop, leader_of, on_any, until

from quorate.errors import DiskFailed
from quorate.server import manifest as manifests
from quorate.server.logs import log_lifecycle
from quorate.storage.directory import LOGS, log_name
from quorate.storage.vfs import RealVfs
from quorate.wire.calls import DeleteLog, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from server_rig import WireClient


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lifecycle, "RETRY_S", 0.01)


def folder(path: Path, log: int) -> Path:
    return path / "n1" / LOGS / log_name(log)


async def delete(cluster: Cluster, name: str, log: int) -> None:
    call = DeleteLog(name, log.to_bytes(16, "little"), 10_000)
    await on_any(cluster, lambda client: client.call(call))


async def halted(cluster: Cluster, name: str) -> str:
    async def ask(client: WireClient) -> str:
        logs = (await client.call(Status())).logs
        return next(one.halted for one in logs if one.name == name)

    return await on_any(cluster, ask)


def put_directory(name: str, place: Path) -> None:
    (place / name).unlink(missing_ok=True)
    (place / name).mkdir()
    (place / name / "content").touch()


def put_pipe(name: str, place: Path) -> None:
    (place / name).unlink(missing_ok=True)
    os.mkfifo(place / name)


# -- opening -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil",
    [
        *(partial(put_directory, name) for name in ("x.new", "spare", "clean", "clean.new")),
        *(partial(put_directory, name) for name in ("vote-a", "0000000000000001.segment")),
        partial(put_pipe, "vote-b"),
    ],
    ids=lambda spoil: f"{spoil.func.__name__} {spoil.args[0]}",
)
@in_loop
async def test_a_file_of_another_kind_stops_the_log_that_it_lies_in(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"a")
        await cluster.stop("n1")
        spoil(folder(tmp_path, log))
        await cluster.start("n1")
        async with leader_of(cluster, "bills") as client:
            assert await client.append(other, b"a") == 0
        assert (await halted(cluster, "orders")).startswith("DAMAGED: ")
        await delete(cluster, "orders", log)
        assert not folder(tmp_path, log).exists()


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, place: Path, number: int) -> None:
    """Let a call of the system fail in one folder."""
    inner, bad = getattr(RealVfs, call), place.stat().st_ino

    def failing(vfs: RealVfs, *arguments: Any) -> Any:
        if os.fstat(vfs._fd).st_ino == bad:
            raise OSError(number, os.strerror(number))
        return inner(vfs, *arguments)

    monkeypatch.setattr(RealVfs, call, failing)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("names", errno.EIO),
        ("names", errno.EUCLEAN),
        ("names", errno.EBADMSG),
        ("names", errno.EACCES),
        ("open", errno.EACCES),
        ("open", errno.EPERM),
        ("unlink", errno.EPERM),
    ],
)
@in_loop
async def test_a_folder_that_is_refused_to_the_node_stops_the_log_that_it_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        await cluster.stop("n1")
        with monkeypatch.context() as patched:
            refuse(patched, call, folder(tmp_path, log), number)
            await cluster.start("n1")
            async with leader_of(cluster, "bills") as client:
                assert await client.append(other, b"a") == 0
            told = await halted(cluster, "orders")
            assert told.startswith("DAMAGED: ")
            assert os.strerror(number) in told
            await cluster.stop("n1")
        await cluster.start("n1")
        assert await halted(cluster, "orders") == ""


@in_loop
async def test_a_manifest_that_is_refused_to_the_node_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written when a log is opened, and is no concern of that log alone."""
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log = await create(cluster, "orders")
    await cluster.stop("n1")

    save = manifests.ManifestFile.save

    async def refuse_boot(file: manifests.ManifestFile) -> None:
        if file.manifest.logs[log].boot == 2:
            raise OSError(errno.EACCES, "as told")
        await save(file)

    monkeypatch.setattr(manifests.ManifestFile, "save", refuse_boot)
    with pytest.raises(DiskFailed, match=r"n1: the manifest: .*as told"):
        await cluster.start("n1")
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


# -- removing ----------------------------------------------------------------------------------


@in_loop
async def test_a_deleted_log_takes_with_it_what_others_put_into_its_folder(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "precious").touch()
        shutil.copytree(folder(tmp_path, log), folder(tmp_path, log) / "copy" / "of")
        (folder(tmp_path, log) / "copy" / "link").symlink_to(outside)
        (folder(tmp_path, log) / "link").symlink_to(outside / "precious")
        put_pipe("pipe", folder(tmp_path, log))
        put_directory("spare", folder(tmp_path, log))
        await delete(cluster, "orders", log)
        assert not folder(tmp_path, log).exists()
        assert (outside / "precious").exists()
        async with leader_of(cluster, "bills") as client:
            assert await client.append(other, b"a") == 0


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EBUSY, errno.ENOTEMPTY])
@in_loop
async def test_a_folder_that_cannot_be_removed_ends_no_node_and_holds_up_no_other_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, next_one = await create(cluster, "orders"), await create(cluster, "bills")
        stuck, remove = folder(tmp_path, log), shutil.rmtree
        stays = True

        def remove_others(path: Path) -> None:
            if stays and path == stuck:
                raise OSError(number, "as told")
            remove(path)

        monkeypatch.setattr("quorate.server.manifest.shutil.rmtree", remove_others)
        await delete(cluster, "orders", log)
        assert stuck.exists()
        assert caplog.text.count("deletion put off log=orders error=") == 1
        await delete(cluster, "bills", next_one)
        assert not folder(tmp_path, next_one).exists()
        # The same name is free, and a start is ready with the folder still in its place.
        await create(cluster, "orders")
        await cluster.stop("n1")
        await cluster.start("n1")
        await until(lambda: cluster.nodes["n1"]._readyz().status == 200)
        assert stuck.exists()
        stays = False
        await until(lambda: not stuck.exists())
        await until(lambda: log not in cluster.nodes["n1"]._stored.manifest.logs)


@in_loop
async def test_a_disk_that_fails_while_a_folder_is_removed_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "as told")

    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log = await create(cluster, "orders")
    monkeypatch.setattr("quorate.server.manifest.shutil.rmtree", fail)
    deleting = asyncio.create_task(cluster.nodes["n1"]._catalog_service.delete("orders", log, 10.0))
    with pytest.raises(DiskFailed, match="as told"):
        await cluster.running.pop("n1")
    deleting.cancel()
    await asyncio.wait([deleting])
    await cluster.give_back("n1")
