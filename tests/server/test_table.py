"""The catalog's table on disk: a start reads what came after it, or everything if it is bad."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from server_rig import Cluster, WireClient, create, in_loop, new_log, number, on_any, until

from quorate.errors import Damaged, LogNotFound, OffsetMismatch
from quorate.server.logs import catalog as catalogs
from quorate.server.logs import log_lifecycle
from quorate.server.logs.catalog import Catalog, Change, LogFacts, encode_change
from quorate.server.logs.table import TableFile
from quorate.storage.directory import TABLE, DataDirectory
from quorate.storage.offline.verify import verify
from quorate.types import NodeId
from quorate.wire.calls import CreateLog, DeleteLog, ListLogs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory.open(tmp_path / "n1", "shop", "n1") as found:
        yield found


def table() -> Catalog:
    found = Catalog()
    found.apply(encode_change(Change(True, LogFacts("orders", 7, (NodeId("n1"),), 1))))
    return found


# -- the file ----------------------------------------------------------------------------------


def test_what_was_written_is_read(directory: DataDirectory) -> None:
    assert TableFile(directory).read().applied == 0
    for _ in range(2):
        TableFile(directory).write(table().encode())
        file = TableFile(directory)
        assert file.read().encode() == table().encode()
        assert file.applied == 1


def test_a_table_is_no_damage_to_a_data_directory(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "n1", "shop", "n1") as directory:
        TableFile(directory).write(table().encode())
        (directory.path / f"{TABLE}.new").write_bytes(b"half a")
    assert verify([tmp_path / "n1"]).directories[0].damage == []


def test_no_flipped_bit_and_no_part_is_believed(directory: DataDirectory) -> None:
    TableFile(directory).write(table().encode())
    place = directory.path / TABLE
    data = place.read_bytes()
    spoilt = [data[:length] for length in range(len(data))]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        spoilt.append(bytes(flipped))
    for bad in spoilt:
        place.write_bytes(bad)
        file = TableFile(directory)
        assert (file.read().applied, file.applied) == (0, 0)


def test_a_table_of_another_cluster_is_not_believed(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "a", "shop", "n1") as directory:
        TableFile(directory).write(table().encode())
    with DataDirectory.open(tmp_path / "b", "shop2", "n1") as other:
        (other.path / TABLE).write_bytes((tmp_path / "a" / TABLE).read_bytes())
        assert TableFile(other).read().applied == 0


def test_a_write_that_was_cut_off_leaves_the_one_before(directory: DataDirectory) -> None:
    TableFile(directory).write(table().encode())
    (directory.path / f"{TABLE}.new").write_bytes(b"half a")
    assert TableFile(directory).read().applied == 1
    TableFile(directory).write(Catalog().encode())
    assert TableFile(directory).read().applied == 0


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_opened(
    directory: DataDirectory, put: Callable[[Path], None]
) -> None:
    """A pipe would wait for its other end."""
    put(directory.path / TABLE)
    found = list[int]()
    # In a thread that a test can leave behind.
    reading = Thread(target=lambda: found.append(TableFile(directory).read().applied), daemon=True)
    reading.start()
    reading.join(10)
    assert found == [0]


# -- a node ------------------------------------------------------------------------------------


async def delete(cluster: Cluster, name: str, log: int) -> None:
    call = DeleteLog(name, log.to_bytes(16, "little"), 10_000)
    await on_any(cluster, lambda client: client.call(call))


async def churn(cluster: Cluster, rounds: int) -> None:
    for _ in range(rounds):
        await delete(cluster, "job", await create(cluster, "job"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lifecycle, "TABLE_EVERY", 4)


@pytest.mark.usefixtures("often")
@in_loop
async def test_a_start_reads_only_what_came_after_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        await churn(cluster, 3)
        kept = cluster.nodes["n1"]._catalog_service.lifecycle._kept
        await until(lambda: kept.applied >= 4)
        await cluster.stop("n1")
        applied, apply = list[int](), Catalog.apply

        def seen(catalog: Catalog, value: bytes) -> Change | None:
            applied.append(catalog.applied)
            return apply(catalog, value)

        monkeypatch.setattr(Catalog, "apply", seen)
        await cluster.start("n1")
        catalog_service = cluster.nodes["n1"]._catalog_service
        await until(lambda: catalog_service.lifecycle.carried == 7)
        assert applied == [*range(kept.applied, 7)]
        async with WireClient.to(cluster.address("n1")) as client:
            (found,) = (await client.call(ListLogs())).logs
            assert (found.name, number(found.incarnation)) == ("orders", log)
        assert cluster.nodes["n1"].service.replicas.get(log)


@pytest.mark.usefixtures("often")
@in_loop
async def test_a_table_that_is_damaged_costs_nothing_but_time(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        await create(cluster, "orders")
        await churn(cluster, 3)
        await until(lambda: (tmp_path / "n1" / TABLE).exists())
        await cluster.stop("n1")
        (tmp_path / "n1" / TABLE).write_bytes(b"rot")
        await cluster.start("n1")
        async with WireClient.to(cluster.address("n1")) as client:
            assert [one.name for one in (await client.call(ListLogs())).logs] == ["orders"]


@pytest.mark.usefixtures("often")
@in_loop
async def test_a_table_for_which_there_is_no_room_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: TableFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "as told")

    monkeypatch.setattr(TableFile, "write", full)
    async with Cluster.started(tmp_path, 1) as cluster:
        await churn(cluster, 3)
        assert not (tmp_path / "n1" / TABLE).exists()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("aside", [False, True])
@in_loop
async def test_a_directory_in_the_place_of_the_table_ends_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, aside: bool
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        await create(cluster, "orders")
        await cluster.stop("n1")
        place = tmp_path / "n1" / (f"{TABLE}.new" if aside else TABLE)
        (place / "content").mkdir(parents=True)
        await cluster.start("n1")
        await churn(cluster, 5)
        assert caplog.text.count("the catalog's table is not written error=") == 1
        await cluster.stop("n1")
        await cluster.start("n1")
        async with WireClient.to(cluster.address("n1")) as client:
            assert [one.name for one in (await client.call(ListLogs())).logs] == ["orders"]
        # The table is written once its place is free.
        (place / "content").rmdir()
        place.rmdir()
        await churn(cluster, 1)
        await until(lambda: (tmp_path / "n1" / TABLE).is_file())


@in_loop
async def test_a_catalog_that_lost_what_was_carried_out_here_ends_the_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    await cluster.stop("n1")
    ahead = Catalog()
    ahead.applied = 5
    with DataDirectory.open(tmp_path / "n1", "shop", "n1") as directory:
        TableFile(directory).write(ahead.encode())
    await cluster.start("n1")
    with pytest.raises(Damaged, match="has carried out 5 records of the catalog"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


# -- what is forgotten -------------------------------------------------------------------------


@in_loop
async def test_a_log_that_was_deleted_long_ago_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A create that was on its way all the time, while its log was made, deleted and forgotten."""
    monkeypatch.setattr(catalogs, "GONE_MAX", 2)
    async with Cluster.started(tmp_path, 1) as cluster:
        late = CreateLog("job", new_log(), 10_000)
        async with WireClient.to(cluster.address("n1")) as client:
            await on_any(cluster, lambda client: client.call(late))
            await delete(cluster, "job", number(late.incarnation))
            with pytest.raises(LogNotFound):
                await client.call(late)
            for end in (2, 4, 6):
                await client.call(other := CreateLog("job", new_log(), 10_000, end))
                await delete(cluster, "job", number(other.incarnation))
            with pytest.raises(OffsetMismatch, match=r"draw another one at 8$"):
                await client.call(late)
            assert (await client.call(ListLogs())).logs == []
            # One that is drawn now is made.
            await client.call(CreateLog("job", new_log(), 10_000, 8))
