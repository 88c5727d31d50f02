"""The open files that logs may take: half of what the system allows, on each node and start."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from server_rig import Cluster, WireClient, create, in_loop, new_log, on_any, until

from quorate.batch import encode_batch
from quorate.errors import Busy, NotLeader, OutcomeUnknown
from quorate.server.logs import log_lifecycle
from quorate.server.logs import replicas as hosting
from quorate.server.logs.catalog import Change, LogFacts, encode_change
from quorate.storage.directory import LOGS, log_name
from quorate.types import NodeId
from quorate.wire.calls import CreateLog, DeleteLog, Status

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.logs.replicas import Replicas

# The catalog and two logs of users, at two files each, are half of it.
LOW = 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lifecycle, "RETRY_S", 0.01)


def replicas_of(cluster: Cluster, node: str = "n1") -> Replicas:
    return cluster.nodes[node].service.replicas


async def delete(cluster: Cluster, name: str, log: int) -> None:
    call = DeleteLog(name, log.to_bytes(16, "little"), 10_000)
    await on_any(cluster, lambda client: client.call(call))


@in_loop
async def test_logs_leave_half_of_the_files_to_clients_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        logs = {name: await create(cluster, name) for name in ("one", "two", "three", "four")}
        await cluster.stop("n1")
        monkeypatch.setattr(hosting, "open_files_max", lambda: LOW)
        await cluster.start("n1")
        node, replicas = cluster.nodes["n1"], replicas_of(cluster)
        assert len([*replicas]) == 2
        late = {name for name, log in logs.items() if replicas.get(log) is None}
        await until(lambda: node._ready)
        why = "BUSY: 3 logs are open, as many as a limit of 12 open files allows; raise ulimit -n"
        async with WireClient.to(cluster.address("n1")) as client:
            told = {one.name: one.halted for one in (await client.call(Status())).logs}
            assert {name for name, halted in told.items() if halted.startswith(why)} == late
            page = node._readyz()
            first, last = page.body.decode().splitlines()
            assert (page.status, first) == (200, "ready")
            assert last.startswith("not open: ")
            assert f": {why}" in last
            assert all(name in last for name in late)
            for name in logs:
                assert f"log put off log={name} " in caplog.text or name not in late
            with pytest.raises(NotLeader, match="no room for this log yet: 3 logs are open"):
                await client.append(logs[min(late)], b"a")
        with pytest.raises(Busy, match="as many as a limit of 12 open files allows"):
            await create(cluster, "five")
        # A log that is not open can be deleted, and one that is open makes room for another.
        gone = late.pop()
        await delete(cluster, gone, logs[gone])
        assert not (tmp_path / "n1" / LOGS / log_name(logs[gone])).exists()
        running = next(iter(replicas))
        await delete(cluster, running.name, running.incarnation)
        await until(lambda: replicas.get(logs[min(late)]))
        await until(lambda: node._readyz().body == b"ready\n")
        assert len([*replicas]) == 2


@in_loop
async def test_a_log_for_which_there_are_no_files_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the node that leads the catalog has files for it."""
    async with Cluster.started(tmp_path, 1) as cluster:
        for name in ("one", "two"):
            await create(cluster, name)
        replicas, check = replicas_of(cluster), hosting.Replicas.check_files
        asked = list[int]()

        def check_but_once(one: Replicas) -> None:
            # The first one who asks is the leader of the catalog, which has files elsewhere.
            asked.append(0)
            if len(asked) > 1:
                check(one)

        monkeypatch.setattr(hosting, "open_files_max", lambda: LOW)
        monkeypatch.setattr(hosting.Replicas, "check_files", check_but_once)
        before = {path.name for path in (tmp_path / "n1" / LOGS).iterdir()}
        call = CreateLog("three", new_log(), 500)
        with pytest.raises(OutcomeUnknown):
            await on_any(cluster, lambda client: client.call(call))
        assert {path.name for path in (tmp_path / "n1" / LOGS).iterdir()} == before
        [late] = replicas.late.values()
        assert late.name == "three"
        monkeypatch.setattr(hosting, "open_files_max", lambda: 100 * LOW)
        await until(lambda: len([*replicas]) == 3)


@pytest.mark.parametrize("made", [False, True])
@in_loop
async def test_logs_without_files_keep_the_loop_for_one_step_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    """Nor are they tried again and again: all logs of the node send heartbeats from this loop."""
    count = 40
    async with Cluster.started(tmp_path, 1) as cluster:
        late = [LogFacts(f"late-{one}", 1000 + one, (NodeId("n1"),), 1) for one in range(count)]
        values = [encode_change(Change(True, one)) for one in late]

        async def add() -> None:
            await until(lambda: cluster.nodes["n1"]._ready)
            replica = cluster.nodes["n1"]._catalog_service._replica
            await replica.append(encode_batch(values), len(values))

        if made:
            await add()
            await until(lambda: len([*replicas_of(cluster)]) == count)
            await cluster.stop("n1")
        turn, tried, check = 0, list[int](), hosting.Replicas.check_files

        def counted(replicas: Replicas) -> None:
            tried.append(turn)
            check(replicas)

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        # For the catalog alone.
        monkeypatch.setattr(hosting, "open_files_max", lambda: 4)
        monkeypatch.setattr(hosting.Replicas, "check_files", counted)
        turns = asyncio.create_task(count_turns())
        if made:
            await cluster.start("n1")
        else:
            await add()
        await until(lambda: len(replicas_of(cluster).late) == count)
        await asyncio.sleep(10 * log_lifecycle.RETRY_S)
        assert len(tried) == count
        assert max(Counter(tried).values()) == 1
        # For two logs more.
        monkeypatch.setattr(hosting, "open_files_max", lambda: LOW)
        await until(lambda: len([*replicas_of(cluster)]) == 2)
        await asyncio.sleep(10 * log_lifecycle.RETRY_S)
        assert len(replicas_of(cluster).late) == count - 2
        assert len(tried) <= count + 8
        turns.cancel()
        await asyncio.wait([turns])
