"""What a client may do to a node: every request has its answer, and nobody keeps others out."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest
from server_rig import CONFIG, Cluster, WireClient, create, in_loop, outcomes, tasks_of, until

from quorate.batch import Batch, encode_batch
from quorate.config import KIB, MIB, NetworkLimits, Server
from quorate.errors import (
    Behind,
    InvalidArgument,
    LogNotFound,
    OffsetOutOfRange,
    TooLarge,
)
from quorate.server.sessions import batch_checker
from quorate.wire.calls import AwaitCatalog, FindLog, ListLogs, ReadEnds, Status
from quorate.wire.frames import FrameKind, encode_frame

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.logs.replicas import HostedLog
    from quorate.server.sessions.answers import AnswerBuffer
    from quorate.server.sessions.client_limits import Pending
    from quorate.server.sessions.service import Service

BATCH_BYTES = CONFIG.limits.batch_bytes


def service_of(cluster: Cluster) -> Service:
    return cluster.nodes["n1"].service


def pending(cluster: Cluster) -> Pending:
    return service_of(cluster).limits.total


def buffers(cluster: Cluster) -> set[AnswerBuffer]:
    """One for each client."""
    return service_of(cluster).answers.buffers


# -- appends -----------------------------------------------------------------------------------


@in_loop
async def test_answers_of_one_turn_leave_together(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            futures = [client.begin_append(log, [b"a", b"b"]) for _ in range(100)]
            receipts = await asyncio.gather(*futures)
            offsets = [one.base_offset + one.rows[0][2] for one in receipts]
            assert offsets == list(range(0, 200, 2))
            assert {one.rows[0][3] for one in receipts} == {2}
            assert sum(client.receipt_rows) == 100
            assert len(client.receipt_rows) < 50


@in_loop
async def test_neighbours_keep_their_order_whatever_is_between_them(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log, other = await create(cluster, "orders"), await create(cluster, "other")
        async with WireClient.to(cluster.address("n1")) as client:
            futures = [
                client.begin_append(log, [b"a", b"b"]),
                client.begin_append(log, [b"c"]),
                client.begin_batch(log, b"no batch at all"),
                client.begin_append(log, [b"d"]),
                client.begin_append(other, [b"elsewhere"]),
                client.begin_append(log, [b"e"], expect_offset=4),
                client.begin_append(log, [b"f"], expect_offset=4),
                client.begin_append(log, [b"g"]),
                client.begin_append(log, [b"h"]),
            ]
            codes = await outcomes(futures)
            assert codes == [
                "OK",
                "OK",
                "INVALID_ARGUMENT",
                *["OK"] * 3,
                "OFFSET_MISMATCH",
                *["OK"] * 2,
            ]
            done = [future.result() for future in futures if future.exception() is None]
            offsets = [one.base_offset + one.rows[0][2] for one in done]
            assert offsets == [0, 2, 3, 0, 4, 5, 6]
            records = await client.fetch(log, 0)
            batches = [batch for _, _, entry in records.rows for batch, _ in entry.batches()]
            found = [record.value for batch in batches for record in Batch.parse(batch)]
            assert found == [b"a", b"b", b"c", b"d", b"e", b"g", b"h"]
        assert pending(cluster).appends == 0
        assert pending(cluster).append_bytes == 0


@in_loop
async def test_what_a_client_left_behind_when_it_went_is_not_counted_for_ever(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        for _ in range(20):
            async with WireClient.to(cluster.address("n1")) as client:
                for _ in range(50):
                    client.begin_append(log, [b"a"])
                await asyncio.sleep(0)
                client.connection.abort()
        async with WireClient.to(cluster.address("n1")) as client:
            await client.append(log, b"last")
        assert pending(cluster).appends == 0
        assert pending(cluster).append_bytes == 0


@in_loop
async def test_what_is_wrong_with_a_batch_is_said_and_costs_nothing_else(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1, record_bytes=1000) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            for batch, kind, message in (
                (b"", InvalidArgument, "batch"),
                (b"no batch at all", InvalidArgument, "batch"),
                (encode_batch([b"a"])[:-8], InvalidArgument, "batch"),
                (bytes(BATCH_BYTES + 1), TooLarge, r"limit 65536 \(limits.batch_bytes\)"),
                (encode_batch([b"a", b"x" * 1001]), TooLarge, r"limit 1000 \(limits.record_bytes"),
                (
                    encode_batch([b"a"], keys=[b"x" * 990], headers=[[("name", b"content")]]),
                    TooLarge,
                    "record of 1002 bytes",
                ),
            ):
                with pytest.raises(kind, match=message):
                    await client.begin_batch(log, batch)
            # Long, but no record of it is.
            assert await client.append(log, *([b"x" * 999] * 50)) == 0
            assert await client.append(log, b"", b"") == 50
        assert pending(cluster).append_bytes == 0


def test_a_record_that_is_too_long_is_found_wherever_it_is() -> None:
    random = Random(1)
    for _ in range(300):
        count, limit = random.randrange(1, 20), random.randrange(40)
        values = [random.randbytes(random.randrange(30)) for _ in range(count)]
        keys = [random.choice([None, b"", b"key"]) for _ in range(count)]
        headers = [[("name", b"12345")] * random.randrange(3) for _ in range(count)]
        sizes = [
            len(value) + len(key or b"") + 9 * len(pairs)
            for value, key, pairs in zip(values, keys, headers, strict=True)
        ]
        batch = Batch.parse(encode_batch(values, keys=keys, headers=headers))
        found: int | None = batch_checker._too_long(batch, limit)
        assert found in [one for one in sizes if one > limit] or found is None
        assert (found is None) == (max(sizes) <= limit)


@in_loop
async def test_over_a_limit_appends_are_busy_and_the_others_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1, server=Server(client_appends=8)) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            looks = 0
            batches = service_of(cluster).batches
            count_records = batches.count_records

            def count_looks(data: bytes) -> int:
                nonlocal looks
                looks += 1
                return count_records(data)

            monkeypatch.setattr(batches, "count_records", count_looks)
            futures = [client.begin_append(log, [b"a"]) for _ in range(500)]
            codes = await outcomes(futures)
            assert set(codes) == {"OK", "BUSY"}
            assert looks <= 3 * 500, "nobody makes a node look at the same bytes again and again"
            assert await client.append(log, b"b") == codes.count("OK")


@in_loop
async def test_nobody_takes_all_room_for_himself(tmp_path: Path) -> None:
    server = Server(client_append_bytes=4 * BATCH_BYTES)
    async with Cluster.started(tmp_path, 1, server=server) as cluster:
        log = await create(cluster, "orders")
        batch = [b"x" * (BATCH_BYTES - 1000)]
        async with (
            WireClient.to(cluster.address("n1")) as greedy,
            WireClient.to(cluster.address("n1")) as modest,
        ):
            futures = [greedy.begin_append(log, batch) for _ in range(100)]
            assert await modest.append(log, b"a") >= 0
            assert set(await outcomes(futures)) <= {"OK", "BUSY", "DISK_FULL"}


@in_loop
async def test_appends_to_a_log_that_is_not_known_yet_count_while_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(client_append_bytes=4 * BATCH_BYTES)
    async with Cluster.started(tmp_path, 1, server=server) as cluster:
        found = asyncio.Event()

        async def hosted(incarnation: int) -> HostedLog:
            await found.wait()
            raise LogNotFound("as told")

        monkeypatch.setattr(service_of(cluster).catalog_service, "hosted", hosted)
        batch = [b"x" * (BATCH_BYTES - 1000)]
        async with WireClient.to(cluster.address("n1")) as client:
            futures = [client.begin_append(77, batch) for _ in range(20)]
            await client.call(Status())
            assert 0 < pending(cluster).append_bytes <= 4 * BATCH_BYTES
            found.set()
            codes = await outcomes(futures)
            assert set(codes) == {"LOG_NOT_FOUND", "BUSY"}
            found.clear()
            client.begin_append(77, batch)
            await until(lambda: pending(cluster).appends)
        # What one waits for who is gone is given up.
        await until(lambda: not pending(cluster).appends)
        assert pending(cluster).append_bytes == 0


@in_loop
async def test_whoever_waits_has_his_turn(tmp_path: Path) -> None:
    """One frame in a pass of the loop: all have to wait, and all are served."""
    async with Cluster.started(tmp_path, 1, server=Server(pass_frames=1)) as cluster:
        log = await create(cluster, "orders")
        clients = [WireClient.to(cluster.address("n1")) for _ in range(3)]
        async with clients[0] as first, clients[1] as second, clients[2] as third:
            appends = [
                client.begin_append(log, [b"a"]) for client in (first, second) for _ in range(100)
            ]
            for _ in range(20):
                assert (await third.call(Status())).id == "n1"
            assert await outcomes(appends) == ["OK"] * 200
            assert (await third.call(ReadEnds(log.to_bytes(16, "little")))).end == 200


# -- reads -------------------------------------------------------------------------------------


@in_loop
async def test_a_read_at_the_end_waits_for_the_next_record(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            assert (await client.fetch(log, 0)).rows == []
            waiting = asyncio.create_task(client.fetch(log, 0, wait_ms=60_000))
            await client.call(Status())
            assert not waiting.done()
            await client.append(log, b"a")
            assert [row[:2] for row in (await waiting).rows] == [(0, 1)]


@in_loop
async def test_a_read_says_why_it_cannot_be(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            await client.append(log, b"a")
            for error, ask in (
                (OffsetOutOfRange, client.fetch(log, 2)),
                (Behind, client.fetch(log, 0, session_end=2)),
                (LogNotFound, client.fetch(log + 1, 0)),
                (LogNotFound, client.append(log + 1, b"a")),
                (LogNotFound, client.call(FindLog("other"))),
                (LogNotFound, client.call(ReadEnds(bytes(16)))),
                (InvalidArgument, client.call(AwaitCatalog(0, 1))),
            ):
                with pytest.raises(error):
                    await ask
            assert await client.append(log, b"b") == 1


@in_loop
async def test_a_client_that_goes_leaves_nothing_waiting(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            waiting = [asyncio.create_task(client.fetch(log, 0, wait_ms=60_000)) for _ in range(10)]
            await client.call(Status())
            assert len(buffers(cluster)) == 1
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: not buffers(cluster))
        # Its reads are not among what the node still does: `in_loop` looks.


@in_loop
async def test_reads_that_wait_are_bounded(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1, server=Server(waiting_requests=4)) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            waiting = [asyncio.create_task(client.fetch(log, 0, wait_ms=60_000)) for _ in range(10)]
            async with WireClient.to(cluster.address("n1")) as other:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert await other.append(log, b"a") == 0
            codes = await outcomes(waiting)
            assert codes.count("BUSY") == 6
            assert codes.count("OK") == 4


@in_loop
async def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with (
            WireClient.to(cluster.address("n1")) as deaf,
            WireClient.to(cluster.address("n1")) as other,
        ):
            for _ in range(20):
                await other.append(log, b"x" * 50_000)
            await deaf.call(Status())
            deaf.connection.pause_reading()
            waiting = [asyncio.create_task(deaf.fetch(log, 0)) for _ in range(100)]
            await until(lambda: any(one.clogged for one in buffers(cluster)))
            assert await other.append(log, b"y") == 20
            deaf.connection.resume_reading()
            codes = await outcomes(waiting)
            assert set(codes) == {"OK"}


# Of a connection with which a test is done soon: a hundred reads are far more than it keeps.
NARROW = NetworkLimits(
    write_pause_bytes=64 * KIB, write_buffer_bytes=2 * MIB, peer_buffer_bytes=64 * KIB
)


@in_loop
async def test_many_reads_of_one_connection_wait_for_each_other(tmp_path: Path) -> None:
    """What they are given together is more than a connection keeps, and it does not end."""
    async with Cluster.started(tmp_path, 1, network=NARROW) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            for _ in range(20):
                await client.append(log, b"x" * 50_000)
            client.connection.pause_reading()
            reads = [asyncio.create_task(client.fetch(log, 0)) for _ in range(100)]
            await until(lambda: any(one.clogged for one in buffers(cluster)))
            client.connection.resume_reading()
            beside = client.begin_append(log, [b"beside"])
            assert set(await outcomes(reads)) == {"OK"}
            assert (await beside).base_offset == 20
            assert not client.ended.done()
            [one] = buffers(cluster)
            assert one.unsent == 0


@in_loop
async def test_reads_for_which_no_room_comes_are_busy(tmp_path: Path) -> None:
    """Whoever does not read for long is told so, and its connection lives."""
    server = Server(room_wait_ms=50)
    async with Cluster.started(tmp_path, 1, network=NARROW, server=server) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            for _ in range(20):
                await client.append(log, b"x" * 50_000)
            client.connection.pause_reading()
            reads = [asyncio.create_task(client.fetch(log, 0)) for _ in range(100)]
            [one] = buffers(cluster)
            await until(lambda: one.clogged)
            await until(lambda: not tasks_of(one))
            client.connection.resume_reading()
            codes = await outcomes(reads)
            assert set(codes) == {"OK", "BUSY"}
            assert (await client.fetch(log, 0)).end_offset == 20


# -- frames that make no sense -----------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(FrameKind.RECEIPTS, b""),
        encode_frame(FrameKind.PEER, bytes(4)),
        encode_frame(FrameKind.HELLO, b""),
        encode_frame(FrameKind.APPEND, b"abc"),
        encode_frame(FrameKind.CALL, b""),
        b"not a frame at all, but long enough to be one",
    ],
)
@in_loop
async def test_a_frame_without_sense_ends_its_connection_only(frame: bytes, tmp_path: Path) -> None:
    async with (
        Cluster.started(tmp_path, 1) as cluster,
        WireClient.to(cluster.address("n1")) as mad,
        WireClient.to(cluster.address("n1")) as other,
    ):
        mad.connection.send([frame])
        await mad.ended
        assert (await other.call(ListLogs())).logs == []


@in_loop
async def test_a_request_without_sense_is_answered(tmp_path: Path) -> None:
    async with (
        Cluster.started(tmp_path, 1) as cluster,
        WireClient.to(cluster.address("n1")) as client,
    ):
        for kind in (FrameKind.APPEND, FrameKind.FETCH, FrameKind.CALL):
            number, future = client.expect()
            body = number.to_bytes(4, "little") + b"\xc1"
            client.connection.send([encode_frame(kind, body)])
            with pytest.raises(InvalidArgument):
                await future
        assert (await client.call(Status())).id == "n1"
