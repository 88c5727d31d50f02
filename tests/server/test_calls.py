"""The rare requests: what their answers rest on, and what they cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from server_rig import Cluster, WireClient, create, find, in_loop, leader_of

from quorate.commands import PARTS_MAX, Part, Publish
from quorate.config import Server
from quorate.errors import InvalidArgument
from quorate.wire.calls import ListLogs, LogCall, OffsetAt, Status, decode_result, encode_call

if TYPE_CHECKING:
    from pathlib import Path


async def later(client: WireClient, log: int) -> tuple[int, int]:
    """Append until a leader's clock has moved on; its time then, and the offset at that."""
    before = None
    while True:
        offset = await client.append(log, b"more")
        [(_, _, entry)] = (await client.fetch(log, offset)).rows
        if before is not None and entry.append_time > before:
            return entry.append_time, offset
        before = entry.append_time


@in_loop
async def test_a_replica_that_lags_does_not_take_its_end_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        name = log.to_bytes(16, "little")
        leader = (await find(cluster, "orders")).leader
        lagging = next(node for node in cluster.nodes if node != leader)
        async with (
            leader_of(cluster, "orders") as client,
            WireClient.to(cluster.address(lagging)) as other,
        ):
            await client.append(log, b"known")
            assert (await other.call(OffsetAt(name, 0))).offset == 0
            with monkeypatch.context() as cut:
                replicas = cluster.nodes[lagging].service.replicas
                cut.setattr(replicas, "deliver", lambda envelopes: None)
                time, last = await later(client, log)
                asking = asyncio.create_task(other.call(OffsetAt(name, time)))
                await other.call(Status())
            assert (await asking).offset == last


@pytest.mark.parametrize(("call", "made"), [(Status(), "_look"), (ListLogs(), "_found")])
@in_loop
async def test_what_many_ask_for_together_is_made_once(
    call: Any, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        await create(cluster, "orders")
        asked_at_once = Server().waiting_requests
        calls = cluster.nodes["n1"].service.calls
        make, times = getattr(calls, made), 0

        def count(*arguments: object) -> object:
            nonlocal times
            times += 1
            return make(*arguments)

        monkeypatch.setattr(calls, made, count)
        async with WireClient.to(cluster.address("n1")) as client:
            asked = [client.expect() for _ in range(asked_at_once)]
            client.connection.send([encode_call(number, call) for number, _ in asked])
            answers = [decode_result(await future, call) for _, future in asked]
            assert len({repr(answer) for answer in answers}) == 1
            assert times < asked_at_once // 4
            # What happened since is seen.
            await create(cluster, "more")
            assert [one.name for one in (await client.call(call)).logs] == ["more", "orders"]


@in_loop
async def test_a_publish_of_too_many_parts_is_refused_before_they_are_looked_at(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = (await create(cluster, "orders")).to_bytes(16, "little")
        publish = Publish("app", 0, (), bytes(32))
        # No client can make such a publish.
        part = Part(0, bytes(16), 1, 1)
        structs.force_setattr(publish, "parts", (part,) * (PARTS_MAX + 1))
        async with WireClient.to(cluster.address("n1")) as client:
            with pytest.raises(InvalidArgument, match=r"length <= 8192 - at `\$\.parts`"):
                await client.call(LogCall(log, publish))
            assert (await client.call(Status())).id == "n1"
