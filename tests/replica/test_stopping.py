"""A clean stop amid appends: what is logged gets its answer, what is not goes elsewhere."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replica_rig import (
    CLUSTER,
    LOG,
    SMALL,
    Cluster,
    FaultyDirectory,
    in_loop,
    quiet,
    read_all,
    until,
)

from quorate.errors import NotLeader, OutcomeUnknown
from quorate.membership import Membership
from quorate.replica import writer as writers
from quorate.replica.replica import Replica
from quorate.replica.writer import Writer
from quorate.storage.directory import LOGS, log_name
from quorate.storage.disk_errors import WAIT_FOR_FILES
from quorate.storage.layout import CLEAN
from quorate.types import GroupId, NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.commands import Receipt

N1 = NodeId("n1")


async def appending(cluster: Cluster) -> tuple[Replica, asyncio.Future[Receipt]]:
    """The only node, and an append that its disk is not done with."""
    leader = await cluster.leader()
    await quiet(leader)
    faults = cluster.faults(N1)
    begun = faults.syncs
    faults.may_sync.clear()
    append = asyncio.ensure_future(leader.append(b"a", 1))
    await until(lambda: faults.syncs > begun)
    return leader, append


@in_loop
async def test_an_append_that_is_logged_is_answered_before_a_stop(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader, append = await appending(cluster)
        stop = asyncio.ensure_future(cluster.stop(N1))
        await asyncio.sleep(0)
        with pytest.raises(NotLeader, match="stopping"):
            await leader.append(b"b", 1)
        assert (leader.leader, leader.serves) == (None, False)
        cluster.faults(N1).may_sync.set()
        assert (await append).offset == 0
        await stop
        await cluster.start(N1)
        assert await read_all(await cluster.leader()) == [b"a"]


@in_loop
async def test_a_leader_that_stops_waits_for_the_others(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        name, last = leader.engine.node, leader.status().last
        cluster.isolate(name)
        append = asyncio.ensure_future(leader.append(b"a", 1))
        await until(lambda: leader.status().last > last)
        stop = asyncio.ensure_future(leader.close())
        await asyncio.sleep(0)
        cluster.cut.clear()
        assert (await append).offset == 0
        await stop
        await cluster.stop(name)
        assert await read_all(await cluster.leader()) == [b"a"]


@in_loop
async def test_a_disk_that_fails_during_a_stop_leaves_no_mark(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        _, append = await appending(cluster)
        faults = cluster.faults(N1)
        stop = asyncio.ensure_future(cluster.stop(N1))
        await asyncio.sleep(0)
        faults.errors["sync"] = errno.EIO
        faults.may_sync.set()
        with pytest.raises(OutcomeUnknown):
            await append
        await stop
        assert [name for name, _ in cluster.halts] == [N1]
        assert not (tmp_path / N1 / LOGS / log_name(LOG) / CLEAN).exists()


def files_in(place: Path) -> list[str]:
    """What this process has open there."""
    found = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return [one for one in found if one.startswith(str(place))]


@in_loop
async def test_a_log_that_is_open_too_late_for_a_stop_is_closed(tmp_path: Path) -> None:
    writer, readers = Writer(1), ThreadPoolExecutor(1)
    directory = FaultyDirectory.open(tmp_path, CLUSTER, N1)
    assert isinstance(directory, FaultyDirectory)
    directory.faults.may_sync.clear()
    opening = asyncio.ensure_future(
        Replica.open(
            directory, GroupId(CLUSTER, LOG), Membership((N1,)), SMALL, writer, readers,
            send=lambda _: None, halted=lambda _: None,
        )
    )  # fmt: skip
    await until(lambda: directory.faults.syncs)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert opening.cancelled()
    assert files_in(tmp_path / LOGS)
    directory.faults.may_sync.set()
    writer.close()
    assert files_in(tmp_path / LOGS) == []
    readers.shutdown()
    directory.close()


@in_loop
async def test_a_plan_that_waits_for_files_rests_between_its_tries_and_can_be_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "FILES_S", 60)
    writer, tries, closed = Writer(1), 0, False

    def without_files() -> Generator[str, None, None]:
        nonlocal tries, closed
        try:
            while True:
                tries += 1
                yield WAIT_FOR_FILES
        finally:
            closed = True

    work = asyncio.ensure_future(writer.carry_out(without_files()))
    await until(lambda: tries)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    writer.close()
    assert (tries, closed) == (1, True)


@in_loop
async def test_a_plan_that_waits_for_files_lets_the_plans_of_other_logs_come_between() -> None:
    """One of them may close a file."""
    writer, began, closed = Writer(1), False, False

    def without_files() -> Generator[str, None, str]:
        nonlocal began
        began = True
        while not closed:
            yield WAIT_FOR_FILES
        return "opened"

    def close_one() -> Generator[str, None, str]:
        nonlocal closed
        yield "close a file"
        closed = True
        return "closed"

    async with asyncio.timeout(10):
        opening = asyncio.ensure_future(writer.carry_out(without_files()))
        await until(lambda: began)
        assert await writer.carry_out(close_one()) == "closed"
        assert await opening == "opened"
    writer.close()


@in_loop
async def test_a_plan_that_is_given_up_behind_the_end_of_the_threads_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, closed, begin_later = Writer(1), False, Writer.begin_later
    waits, ending = threading.Event(), threading.Event()

    def without_files() -> Generator[str, None, None]:
        nonlocal closed
        try:
            while True:
                yield WAIT_FOR_FILES
        finally:
            closed = True

    def begin_too_late(one: Writer, work: Callable[[], None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            waits.set()
            ending.wait()
        begin_later(one, work)

    monkeypatch.setattr(Writer, "begin_later", begin_too_late)
    work = asyncio.ensure_future(writer.carry_out(without_files()))
    await until(waits.is_set)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    threading.Timer(0.1, ending.set).start()
    writer.close()
    assert closed
