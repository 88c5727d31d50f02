"""What passes by itself ends no node: no room, and no other file that may be opened."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from server_rig import (
    CLUSTER,
    Cluster,
    WireClient,
    create,
    free_address,
    in_loop,
    leader_of,
    new_log,
    on_any,
    until,
)

from quorate.batch import encode_batch
from quorate.errors import Busy, DiskFailed, NotLeader
from quorate.replica.opening import plan_opening
from quorate.server import manifest as manifests
from quorate.server.logs import log_lifecycle
from quorate.server.logs import replicas as hosting
from quorate.server.logs.catalog import Change, LogFacts, catalog_incarnation, encode_change
from quorate.server.manifest import remove_log
from quorate.storage.manifest import MANIFEST, Manifest
from quorate.types import NodeId
from quorate.wire.calls import CreateLog, DeleteLog, Status

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from typing import Any

    from quorate.storage.directory import DataDirectory
    from quorate.storage.vfs import Vfs

PASSING = [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT]


class Refusals:
    """Opening a log is refused, so often; as from the system, or as by an archive that met it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, busy: bool = False) -> None:
        self.left = 0
        self.log: int | None = None

        def refusing(directory: DataDirectory, group: Any, *rest: Any) -> Generator[str, None, Any]:
            if self.left and self.log in (None, group.incarnation):
                self.left -= 1
                error = OSError(number, "as told")
                if busy:
                    raise Busy("entry 1 cannot be read now") from error
                raise error
            return (yield from plan_opening(directory, group, *rest))

        monkeypatch.setattr("quorate.replica.opening.plan_opening", refusing)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lifecycle, "RETRY_S", 0.01)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("number", PASSING)
@in_loop
async def test_a_log_that_cannot_be_opened_for_now_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, busy: bool
) -> None:
    refusals = Refusals(monkeypatch, number, busy=busy)
    async with Cluster.started(tmp_path, 1) as cluster:
        refusals.left = 3
        log = await create(cluster, "orders")
        assert refusals.left == 0
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"a") == 0


@in_loop
async def test_a_start_without_files_opens_what_it_can_and_the_rest_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals(monkeypatch, errno.EMFILE)
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        await cluster.stop("n1")
        refusals.log, refusals.left = log, 1_000_000
        await cluster.start("n1")
        async with leader_of(cluster, "bills") as client:
            await client.append(other, b"a")
            with pytest.raises(NotLeader, match=r"no room for this log yet: .*as told"):
                await client.append(log, b"a")
            logs = {one.name: one.halted for one in (await client.call(Status())).logs}
            assert logs == {"bills": "", "orders": "BUSY: [Errno 24] as told"}
            await until(lambda: cluster.nodes["n1"]._ready)
            page = cluster.nodes["n1"]._readyz()
            assert page.body == b"ready\nnot open: orders: BUSY: [Errno 24] as told\n"
            refusals.left = 0
            await until(lambda: cluster.nodes["n1"].service.replicas.get(log))
        told = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
        assert [line for line in told if "put off" in line] == [
            "log put off log=orders error=[Errno 24] as told"
        ]


@in_loop
async def test_a_catalog_that_cannot_be_opened_for_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(monkeypatch, errno.EMFILE)
    async with Cluster.started(tmp_path, 1) as cluster:
        await cluster.stop("n1")
        refusals.log, refusals.left = catalog_incarnation(CLUSTER), 3
        await cluster.start("n1")
        assert refusals.left == 0


@in_loop
async def test_what_does_not_pass_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(monkeypatch, errno.EIO)
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    await until(lambda: cluster.nodes["n1"]._ready)
    refusals.left = 1
    async with WireClient.to(cluster.address("n1")) as client:
        making = asyncio.create_task(client.call(CreateLog("orders", new_log(), 10_000)))
        with pytest.raises(DiskFailed, match="as told"):
            await cluster.running.pop("n1")
        await cluster.give_back("n1")
        with pytest.raises((asyncio.CancelledError, NotLeader)):
            await making


@in_loop
async def test_a_deletion_without_files_is_put_off_and_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        refused = list[int]()

        def remove_at_last(directory: DataDirectory, incarnation: int) -> None:
            if len(refused) < 3:
                refused.append(incarnation)
                raise OSError(errno.EMFILE, "as told")
            remove_log(directory, incarnation)

        monkeypatch.setattr("quorate.server.logs.log_lifecycle.remove_log", remove_at_last)
        call = DeleteLog("orders", log.to_bytes(16, "little"), 10_000)
        await on_any(cluster, lambda client: client.call(call))
        assert refused == [log] * 3
        assert not list((tmp_path / "n1" / "logs").glob(f"{log:032x}"))


@in_loop
async def test_the_files_of_a_log_that_may_be_recorded_are_not_removed_before_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that finds no files of a log that is made says that they are damaged."""
    replace_file = manifests.replace_manifest
    removed: list[bool] = []

    def failing(vfs: Vfs, data: bytes) -> None:
        # As when a change of something else is saved right behind the one that failed.
        replace_file(vfs, data)
        if b" orders" in data:
            raise OSError(errno.ENOSPC, "as told")

    def look_and_remove(directory: DataDirectory, incarnation: int) -> None:
        removed.append(b" orders" in (tmp_path / "n1" / MANIFEST).read_bytes())
        remove_log(directory, incarnation)

    async with Cluster.started(tmp_path, 1) as cluster:
        await until(lambda: cluster.nodes["n1"]._ready)
        monkeypatch.setattr(manifests, "replace_manifest", failing)
        monkeypatch.setattr("quorate.server.logs.log_lifecycle.remove_log", look_and_remove)
        log = new_log()
        async with WireClient.to(cluster.address("n1")) as client:
            making = asyncio.create_task(client.call(CreateLog("orders", log, 10_000)))
            plan = cluster.nodes["n1"]._catalog_service.lifecycle._plan
            await until(lambda: plan.may_be_recorded)
            await client.call(DeleteLog("orders", log, 10_000))
            await asyncio.gather(making, return_exceptions=True)
        assert removed == [False]


@in_loop
async def test_failing_steps_that_outlast_the_pause_starve_no_other_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lifecycle, "TABLE_EVERY", 1)
    tried = set[int]()

    def full(directory: DataDirectory, incarnation: int) -> None:
        tried.add(incarnation)
        time.sleep(log_lifecycle.RETRY_S / 2)
        raise OSError(errno.ENOSPC, "as told")

    async with Cluster.started(tmp_path, 1) as cluster:
        big = await create(cluster, "big")
        late = [LogFacts(f"late-{one}", one, (NodeId("n1"),), 1) for one in range(1, 9)]
        values = [encode_change(Change(True, one)) for one in late]
        monkeypatch.setattr(hosting, "make_log", full)
        # As records of a leader whose own disk has room.
        await cluster.nodes["n1"]._catalog_service._replica.append(
            encode_batch(values), len(values)
        )
        async with asyncio.timeout(10):
            await until(lambda: tried == {one.incarnation for one in late})
            # The removal that would free the disk.
            call = DeleteLog("big", big.to_bytes(16, "little"), 10_000)
            await on_any(cluster, lambda client: client.call(call))
            assert not list((tmp_path / "n1" / "logs").glob(f"{big:032x}"))
            # The table is kept when all steps were tried.
            kept = cluster.nodes["n1"]._catalog_service.lifecycle._kept
            await until(lambda: kept.applied == len(late) + 2)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@in_loop
async def test_a_log_speaks_only_with_a_boot_that_could_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No file for the manifest: that passes, unlike a full disk, and the log is opened again."""
    replace_file, refused = manifests.replace_manifest, list[int]()

    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        await cluster.stop("n1")

        def failing(vfs: Vfs, data: bytes) -> None:
            found = Manifest.decode(data)
            assert found is not None
            if found.logs[log].boot > 1 and len(refused) < 3:
                refused.append(found.logs[log].boot)
                raise OSError(number, "as told")
            replace_file(vfs, data)

        monkeypatch.setattr(manifests, "replace_manifest", failing)
        await cluster.start("n1")
        replicas = cluster.nodes["n1"].service.replicas
        await until(lambda: replicas.get(log))
        assert refused == [2, 3, 4]
        noted = Manifest.decode((tmp_path / "n1" / MANIFEST).read_bytes())
        assert noted is not None
        assert noted.logs[log].boot == 5
        async with leader_of(cluster, "orders") as client:
            assert await client.append(log, b"a") == 0


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize(
    "call",
    [
        "quorate.server.manifest.RealVfs",
        "quorate.storage.directory._sync",
        "quorate.net.listener._listen",
        "quorate.server.node.HttpServer.start",
    ],
)
@in_loop
async def test_a_start_that_finds_no_room_or_no_file_says_so_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Before the catalog is open nothing is waited for: nothing was promised yet."""

    def refuse(*_: object) -> None:
        raise OSError(number, "as told")

    cluster = Cluster(tmp_path, 1, http=free_address())
    with monkeypatch.context() as patch:
        patch.setattr(call, refuse)
        with pytest.raises(Busy, match=r"n1 cannot start: .*as told; see that its disk has room"):
            await cluster.start("n1")
    # A process that ended holds no lock and no port.
    with suppress(AttributeError):
        cluster.nodes["n1"]._directory.close()
    await cluster.nodes["n1"]._http.close()
    await cluster.start("n1")
    await cluster.stop("n1")
