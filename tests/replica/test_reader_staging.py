"""Reading what was staged and published: the stored chunks, with the offsets and the append time of
their publish, whether they are in memory or on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from replica_rig import CONFIG, SMALL, Cluster, append_all, in_loop, until

from quorate.commands import ChunkLabel, Part, Publish, Receipt
from quorate.config import KIB
from quorate.entry import decode_entry
from quorate.entry_body import unpack_batches

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.config import Config
    from quorate.replica.reader import Fetched
    from quorate.replica.replica import Replica

    # A batch, the offset of its first record, and how many it has.
    Placed = tuple[bytes, int, int]

# Chunks leave memory, the publish that comes after them does not.
MIXED = replace(CONFIG, limits=replace(CONFIG.limits, log_memory_bytes=16 * KIB))
CONFIGS = pytest.mark.parametrize("config", [CONFIG, MIXED, SMALL], ids=["memory", "mixed", "disk"])
PARTITIONS, CHUNKS = 5, 40


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def chunk(batch_id: int, partition: int, number: int) -> bytes:
    return b"%d %d %d " % (batch_id, partition, number) + b"x" * 500


def records(number: int) -> int:
    return 1 + number % 3


RECORDS = sum(map(records, range(CHUNKS)))


async def stage_all(replica: Replica, batch_id: int, attempt: int = 1) -> None:
    """Partitions take turns, so that the log has them mixed."""
    for number in range(CHUNKS):
        for partition in range(PARTITIONS):
            label = ChunkLabel("app", uuid(1), batch_id, partition, uuid(attempt), number)
            await replica.operate(label, chunk(batch_id, partition, number), records(number))


async def publish(replica: Replica, batch_id: int, attempt: int = 1) -> Receipt:
    parts = tuple(Part(number, uuid(attempt), CHUNKS, RECORDS) for number in range(PARTITIONS))
    receipt = await replica.operate(Publish("app", batch_id, parts, bytes(32)))
    assert isinstance(receipt, Receipt)
    return receipt


def published(batch_id: int, offset: int) -> list[Placed]:
    """What readers are to find from ``offset`` on."""
    found = []
    for partition in range(PARTITIONS):
        for number in range(CHUNKS):
            found.append((chunk(batch_id, partition, number), offset, records(number)))
            offset += records(number)
    return found


def appended(batches: list[bytes], offset: int) -> list[Placed]:
    return [(batch, offset + place, 1) for place, batch in enumerate(batches)]


def placed(fetched: Fetched) -> list[Placed]:
    """The batches of an answer, where its rows say they are."""
    data = b"".join(fetched.buffers)
    found, position = [], 0
    for offset, count, size, _ in fetched.rows:
        batches = unpack_batches(decode_entry(data[position : position + size]))
        assert sum(many for _, many in batches) == count
        for batch, many in batches:
            found.append((batch, offset, many))
            offset += many
        position += size
    assert position == len(data)
    return found


async def read(replica: Replica, bytes_max: int = 64 * KIB) -> list[Placed]:
    found: list[Placed] = []
    offset = 0
    while offset < replica.end_offset:
        found += placed(await replica.fetch(offset, bytes_max))
        offset = found[-1][1] + found[-1][2]
    return found


@CONFIGS
@in_loop
async def test_readers_see_what_was_published_in_its_order(tmp_path: Path, config: Config) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await cluster.leader()
        before = [b"before %d" % number for number in range(20)]
        after = [b"after %d" % number for number in range(20)]
        await append_all(leader, before)
        await stage_all(leader, 0, attempt=7)
        await stage_all(leader, 0)
        assert await read(leader) == appended(before, 0)
        receipt = await publish(leader, 0)
        assert receipt[:2] == (20, PARTITIONS * RECORDS)
        # What is staged for the next batch stands between the publish and what is appended.
        await stage_all(leader, 1)
        await append_all(leader, after)
        end = 20 + PARTITIONS * RECORDS
        expected = [*appended(before, 0), *published(0, 20), *appended(after, end)]
        for bytes_max in (1, 3 * KIB, 64 * KIB):
            assert await read(leader, bytes_max) == expected
        for offset in range(0, end + 20, 7):
            first = placed(await leader.fetch(offset, 1))
            assert next(one for one in expected if one[1] <= offset < one[1] + one[2]) in first


@CONFIGS
@in_loop
async def test_rows_have_the_offsets_and_the_append_time_of_the_publish(
    tmp_path: Path, config: Config
) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await cluster.leader()
        await stage_all(leader, 0)
        staged_us = leader.engine.state.append_time
        await until(lambda: leader.engine.core.raft.wall_time > staged_us)
        receipt = await publish(leader, 0)
        published_us = leader.engine.state.append_time
        assert published_us > staged_us
        offset = 0
        while offset < receipt.count:
            fetched = await leader.fetch(offset, 8 * KIB)
            assert fetched.rows[0][0] == offset
            assert {row[3] for row in fetched.rows} == {published_us}
            offset = fetched.rows[-1][0] + fetched.rows[-1][1]
        assert await leader.offset_at(published_us) == 0
        assert await leader.offset_at(published_us + 1) == receipt.count


@in_loop
async def test_every_replica_gives_the_same_and_after_a_restart_too(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        leader = await cluster.leader()
        await stage_all(leader, 0)
        await publish(leader, 0)
        await stage_all(leader, 1)
        end = PARTITIONS * RECORDS
        await cluster.reached(end)
        for replica in cluster.of().values():
            assert await read(replica) == published(0, 0)
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        leader = await cluster.leader()
        await publish(leader, 1)
        await cluster.reached(2 * end)
        for replica in cluster.of().values():
            assert await read(replica) == published(0, 0) + published(1, end)
            assert replica.status().staged_bytes == 0


@in_loop
async def test_an_empty_publish_is_passed_over(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        empty = await leader.operate(Publish("app", 0, (), bytes(32)))
        assert isinstance(empty, Receipt)
        assert empty[:2] == (0, 0)
        await append_all(leader, [b"one"])
        assert await read(leader) == [(b"one", 0, 1)]
        assert await leader.offset_at(0) == 0


@in_loop
async def test_chunks_that_left_memory_before_their_publish_are_read_from_disk(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, 1, MIXED) as cluster:
        leader = await cluster.leader()
        await stage_all(leader, 0)
        receipt = await publish(leader, 0)
        in_memory = leader.engine.core.raft.log.first_in_memory
        assert PARTITIONS * CHUNKS // 2 < in_memory <= receipt.index
        for bytes_max in (1, 64 * KIB):
            assert await read(leader, bytes_max) == published(0, 0)


@in_loop
async def test_what_is_staged_between_records_does_not_end_an_answer(tmp_path: Path) -> None:
    """It is passed over, however long it is."""
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        for number in range(20):
            await leader.append(b"%d" % number, 1)
            label = ChunkLabel("app", uuid(1), 0, 0, uuid(1), number)
            await leader.operate(label, b"x" * 6 * KIB, 1)
        fetched = await leader.fetch(0, 5 * KIB)
        assert [batch for batch, _, _ in placed(fetched)] == [b"%d" % one for one in range(20)]
