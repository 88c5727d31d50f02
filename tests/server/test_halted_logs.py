"""One log that must not go on: it stops on its node, and everything else goes on there."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from server_rig import (
    CLUSTER,
    Cluster,
    SlowOpening,
    WireClient,
    create,
    error_code,
    in_loop,
    leader_of,
    number,
    on_any,
    until,
)

from quorate.entry import HEADER_BYTES
from quorate.errors import (
    Damaged,
    DiskFailed,
    InvariantBroken,
    NotLeader,
    ReplicaHalted,
    StateDiverged,
    WrongDirectory,
)
from quorate.metrics import Exposition
from quorate.server.logs.catalog import catalog_incarnation
from quorate.storage.directory import LOGS, log_name
from quorate.storage.flusher import Flush
from quorate.storage.layout import CLEAN, VOTE_COPIES
from quorate.storage.vfs import RealFile
from quorate.types import Index, NodeId
from quorate.wire.calls import CreateLog, DeleteLog, FindLog, ListLogs, ReadEnds, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.server.logs.replicas import HostedLog, Replicas
    from quorate.wire.calls import LogStatus

HALTS = [Damaged("as told"), InvariantBroken("as told"), StateDiverged("as told")]


def replicas_of(cluster: Cluster, node: str) -> Replicas:
    return cluster.nodes[node].service.replicas


def halt(cluster: Cluster, node: str, log: int, error: ReplicaHalted) -> None:
    """As if a turn of the log's replica had ended with that."""
    hosted = replicas_of(cluster, node).get(log)
    assert hosted is not None
    hosted.replica._halt(error)


def wire(log: int) -> bytes:
    return log.to_bytes(16, "little")


async def status(cluster: Cluster, node: str) -> dict[str, LogStatus]:
    async with WireClient.to(cluster.address(node)) as client:
        return {log.name: log for log in (await client.call(Status())).logs}


def metrics(cluster: Cluster, node: str) -> list[str]:
    """The lines that tell of logs."""
    running = cluster.nodes[node]
    text = Exposition("1.2.3", running.metrics, running._snapshot).text().decode()
    return [line for line in text.splitlines() if "log=" in line]


async def refused_with(client: WireClient, log: int) -> list[str]:
    """What everything that a client may ask of a log is answered with."""
    asked = (
        client.append(log, b"a"),
        client.fetch(log, 0),
        client.call(ReadEnds(wire(log))),
        client.call(ReadEnds(wire(log), barrier=True)),
    )
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all("stopped its replica of log orders" in str(answer) for answer in answers)
    return [error_code(answer) for answer in answers]


# -- while a node runs -------------------------------------------------------------------------


@pytest.mark.parametrize("error", HALTS, ids=lambda one: type(one).__name__)
@in_loop
async def test_a_halt_of_one_log_stops_that_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: ReplicaHalted
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        node = cluster.nodes["n1"]
        await until(lambda: node._ready)
        halt(cluster, "n1", log, error)
        async with WireClient.to(cluster.address("n1")) as client:
            assert await refused_with(client, log) == ["NOT_LEADER"] * 4
            assert await client.append(other, b"a") == 0
            assert len((await client.fetch(other, 0)).rows) == 1
            assert (await client.call(FindLog("orders"))).leader is None
            listed = (await client.call(ListLogs())).logs
            assert [one.name for one in listed] == ["bills", "orders"]
        logs = await status(cluster, "n1")
        assert logs["orders"].halted == f"{error.code}: as told"
        assert logs["bills"].halted == ""
        assert node._readyz().status == 200
        seen = metrics(cluster, "n1")
        damaged = float(isinstance(error, Damaged))
        assert f'quorate_damaged_ranges{{log="orders"}} {damaged}' in seen
        assert 'quorate_replica_halted{log="orders"} 1.0' in seen
        assert 'quorate_replica_halted{log="bills"} 0.0' in seen
        assert not any("is_leader" in line and "orders" in line for line in seen)
        told = [line for line in caplog.records if line.levelno == logging.CRITICAL]
        assert [line.getMessage() for line in told] == [
            f"replica halts log=orders error={error.code}: as told"
        ]


@in_loop
async def test_the_others_go_on_with_a_log_that_halted_here(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"before")
        leader = replicas_of(cluster, "n1").get(log)
        assert leader is not None
        halted = str(leader.replica.leader)
        halt(cluster, halted, log, Damaged("as told"))
        strays = cluster.nodes[halted].metrics.stray_messages
        early = replicas_of(cluster, halted)._early
        early.clear()
        # Another one leads: this one neither votes nor answers, nor does it say that it leads.
        assert await on_any(cluster, lambda client: client.append(log, b"after")) == 1
        # Messages for it are counted, and not kept for a replica that is never opened.
        await until(lambda: cluster.nodes[halted].metrics.stray_messages > strays + 5)
        assert not [one for one in early if one.group.incarnation == log]
        async with WireClient.to(cluster.address(halted)) as client:
            with pytest.raises(NotLeader, match=r"ask another node$"):
                await client.append(log, b"never")


@in_loop
async def test_a_stop_marks_all_logs_clean_but_the_one_that_halted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log, other = await create(cluster, "orders"), await create(cluster, "bills")
    halt(cluster, "n1", log, Damaged("as told"))
    await cluster.stop("n1")
    logs = tmp_path / "n1" / LOGS
    assert not (logs / log_name(log) / CLEAN).exists()
    assert (logs / log_name(other) / CLEAN).exists()
    # It is tried again with the next start.
    await cluster.start("n1")
    assert replicas_of(cluster, "n1").get(log)
    await cluster.stop("n1")


@in_loop
async def test_a_halted_log_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        halt(cluster, "n1", log, Damaged("as told"))
        async with WireClient.to(cluster.address("n1")) as client:
            # It exists: a repeat of its making is a success, whoever serves it.
            await client.call(CreateLog("orders", wire(log), 5_000))
            await client.call(DeleteLog("orders", wire(log), 10_000))
            assert not (tmp_path / "n1" / LOGS / log_name(log)).exists()
            assert await status(cluster, "n1") == {}
            again = number(
                (await client.call(CreateLog("orders", b"again" + bytes(11), 9_000))).incarnation
            )
            assert await client.append(again, b"a") == 0


@in_loop
async def test_a_disk_that_failed_ends_the_node_whichever_log_found_out(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log = await create(cluster, "orders")
    halt(cluster, "n1", log, DiskFailed("as told"))
    with pytest.raises(DiskFailed, match="as told"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


@in_loop
async def test_a_halt_of_the_catalog_ends_the_node(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    replicas_of(cluster, "n1").catalog._halt(Damaged("as told"))
    with pytest.raises(Damaged, match="as told"):
        await cluster.running.pop("n1")
    await cluster.give_back("n1")


@in_loop
async def test_nothing_leaves_a_node_that_halts_while_its_logs_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog takes part by then: it would vote, and could be elected."""
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        await until(lambda: replicas_of(cluster, "n3").get(log))
        await cluster.stop("n3")
        opening = SlowOpening(monkeypatch, log)
        cluster.begin("n3")
        await until(lambda: opening.began)
        node, peers = cluster.nodes["n3"], [cluster.nodes["n1"], cluster.nodes["n2"]]
        await until(lambda: all(peer._linked(NodeId("n3")) for peer in peers))
        node.halt(WrongDirectory("as told"))
        with pytest.raises(WrongDirectory, match="as told"):
            await cluster.running.pop("n3")
        await until(lambda: not any(peer._linked(NodeId("n3")) for peer in peers))
        assert not any(node._linked(NodeId(peer)) for peer in ("n1", "n2"))
        with pytest.raises(ConnectionRefusedError):
            async with WireClient.to(cluster.address("n3")):
                pass
        await cluster.give_back("n3")


def spoil_header(place: Path, body: bytes) -> None:
    """Of the entry whose body this is."""
    first = min(place.glob("*.segment"))
    with first.open("r+b") as file:
        file.seek(file.read().index(body) - HEADER_BYTES)
        file.write(bytes(HEADER_BYTES))


@in_loop
async def test_a_truncation_behind_a_damaged_header_stops_that_log_only(tmp_path: Path) -> None:
    """It looks up where the log will end, and finds what the disk spoiled."""
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        async with leader_of(cluster, "orders") as client:
            for number in range(3):
                await client.append(log, b"number %d" % number)
        hosted = replicas_of(cluster, "n1").get(log)
        assert hosted is not None
        await until(lambda: not hosted.replica._disk.busy)
        entry = hosted.replica._reader._log.index_at_offset(1)
        spoil_header(tmp_path / "n1" / LOGS / log_name(log), hosted_body(hosted, entry))
        hosted.replica._disk.flush(Flush(99, truncate_from=Index(entry + 1)), Index(0))
        await until(lambda: log in replicas_of(cluster, "n1").down)
        down = replicas_of(cluster, "n1").down[log]
        assert isinstance(down.halt, Damaged)
        assert f"entry {entry} at byte" in down.reason
        async with leader_of(cluster, "bills") as client:
            assert await client.append(other, b"a") == 0


def hosted_body(hosted: HostedLog, entry: int) -> bytes:
    (found,) = hosted.replica._reader._log.entries(Index(entry), Index(entry + 1))
    return bytes(found.body)


@in_loop
async def test_an_older_copy_of_the_folder_of_a_log_stops_that_log(tmp_path: Path) -> None:
    """It would vote without what it voted and acknowledged since. The other logs go on."""
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "bills")
        await cluster.stop("n1")
        folder, copy = tmp_path / "n1" / LOGS / log_name(log), tmp_path / "copy"
        shutil.copytree(folder, copy)
        # A copy of a stopped node is the node: here it is started once more.
        await cluster.start("n1")
        async with leader_of(cluster, "orders") as client:
            await client.append(log, b"a")
        await cluster.stop("n1")
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        for _ in range(2):
            await cluster.start("n1")
            async with leader_of(cluster, "bills") as client:
                await client.append(other, b"a")
            halted = (await status(cluster, "n1"))["orders"].halted
            assert halted.startswith("DAMAGED: the folder of this log is an older copy: its vote")
            assert "is of boot 1, and the log was opened with boot 2 here; never put" in halted
            await cluster.stop("n1")
        await cluster.start("n1")


@in_loop
async def test_a_log_whose_disk_does_not_give_its_bytes_is_skipped_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log, other = await create(cluster, "orders"), await create(cluster, "bills")
    await cluster.stop("n1")
    read, bad = RealFile.read, tmp_path / "n1" / LOGS / log_name(log)

    def failing(file: RealFile, position: int, length: int) -> bytes:
        if Path(f"/proc/self/fd/{file._fd}").readlink().parent == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, position, length)

    with monkeypatch.context() as patched:
        patched.setattr(RealFile, "read", failing)
        await cluster.start("n1")
        async with leader_of(cluster, "bills") as client:
            await client.append(other, b"a")
        halted = (await status(cluster, "n1"))["orders"].halted
        assert halted.startswith("DAMAGED: no copy of the vote record can be read")
        await cluster.stop("n1")
    await cluster.start("n1")
    async with leader_of(cluster, "orders") as client:
        await client.append(log, b"a")
    await cluster.stop("n1")


# -- at a start --------------------------------------------------------------------------------


def lose_directory(place: Path) -> None:
    shutil.rmtree(place)


def spoil_votes(place: Path) -> None:
    for name in VOTE_COPIES:
        (place / name).write_bytes(b"rot" * 50)


def spoil_first_segment(place: Path) -> None:
    first = min(place.glob("*.segment"))
    data = bytearray(first.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    first.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lose_directory, "DAMAGED: log orders was made here and"),
        (spoil_votes, "DAMAGED: no copy of the vote record can be read"),
        (spoil_first_segment, "DAMAGED: entries are lost on this disk"),
    ],
)
@in_loop
async def test_a_log_that_cannot_be_opened_is_skipped(
    tmp_path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    log, other = await create(cluster, "orders"), await create(cluster, "bills")
    async with leader_of(cluster, "orders") as client:
        for _ in range(25):
            await client.append(log, bytes(60_000))
    await cluster.stop("n1")
    place = tmp_path / "n1" / LOGS / log_name(log)
    spoil(place)
    (place / CLEAN).unlink(missing_ok=True)
    for _ in range(2):
        await cluster.start("n1")
        async with leader_of(cluster, "bills") as client:
            await client.append(other, b"a")
            assert await refused_with(client, log) == ["NOT_LEADER"] * 4
        assert (await status(cluster, "n1"))["orders"].halted.startswith(told)
        await cluster.stop("n1")
        # Nothing is made anew, and nothing is called clean.
        assert place.exists() == (spoil is not lose_directory)
        assert not (place / CLEAN).exists()
    await cluster.start("n1")
    call = DeleteLog("orders", wire(log), 10_000)
    await on_any(cluster, lambda client: client.call(call))
    assert not place.exists()
    assert (await status(cluster, "n1")).keys() == {"bills"}
    await cluster.stop("n1")


@in_loop
async def test_a_catalog_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start("n1")
    await cluster.stop("n1")
    shutil.rmtree(tmp_path / "n1" / LOGS / log_name(catalog_incarnation(CLUSTER)))
    with pytest.raises(Damaged, match="log /catalog was made here"):
        await cluster.start("n1")
    await cluster.give_back("n1")
