"""Reading a replica: from memory, from disk, at the end and beyond it, and by time."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from replica_rig import (
    CONFIG,
    LOG,
    SMALL,
    Cluster,
    append_all,
    in_loop,
    quiet,
    read_all,
    until,
    values,
)

from quorate.config import KIB
from quorate.errors import (
    Behind,
    Busy,
    Corrupt,
    InvariantBroken,
    NoQuorum,
    NotLeader,
    OffsetOutOfRange,
    QuorateError,
)
from quorate.replica import second_look
from quorate.replica.reader import PEEK_BYTES
from quorate.storage.directory import LOGS, log_name
from quorate.storage.log import SegmentLog
from quorate.storage.vfs import RealVfs
from quorate.types import Index, NodeId

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.config import Config
    from quorate.replica.replica import Replica

N1 = NodeId("n1")
# A cold read reads the index file and some frames.
READS_EACH = 2
BATCHES = [b"%05d " % number + b"x" * 300 for number in range(3000)]


async def filled(cluster: Cluster) -> Replica:
    leader = await cluster.leader()
    await append_all(leader, BATCHES)
    await cluster.reached(len(BATCHES))
    return leader


def files(path: Path, kind: str) -> list[Path]:
    return sorted((path / N1 / LOGS / log_name(LOG)).glob(f"*.{kind}"))


# -- by offset ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, SMALL], ids=["memory", "disk"])
@in_loop
async def test_every_offset_leads_to_the_entry_that_holds_it(
    tmp_path: Path, config: Config
) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await filled(cluster)
        for offset in range(0, len(BATCHES), 37):
            fetched = await leader.fetch(offset, 10 * KIB)
            base, count, *_ = fetched.rows[0]
            assert base <= offset < base + count
            assert (fetched.first_offset, fetched.end_offset) == (0, len(BATCHES))
            found = values(fetched)
            assert found == BATCHES[base : base + len(found)]


@pytest.mark.parametrize("config", [CONFIG, SMALL], ids=["memory", "disk"])
@in_loop
async def test_as_much_as_was_asked_for_and_at_least_one_entry(
    tmp_path: Path, config: Config
) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await filled(cluster)
        for bytes_max in (0, 1, 2 * KIB, 20 * KIB, 64 * KIB):
            fetched = await leader.fetch(1000, bytes_max)
            size = sum(size for _, _, size, _ in fetched.rows)
            assert size <= bytes_max or len(fetched.rows) == 1
            assert size == sum(map(len, fetched.buffers))
        assert len(fetched.rows) > 1


@in_loop
async def test_of_a_disk_nothing_is_read_that_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[memoryview] = []
    frames = SegmentLog.frames

    def counted(log: SegmentLog, start: Index, stop: Index, bytes_max: int) -> list[memoryview]:
        found = frames(log, start, stop, bytes_max)
        read.extend(found)
        return found

    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await filled(cluster)
        monkeypatch.setattr(SegmentLog, "frames", counted)
        for bytes_max in (100 * KIB, 150 * KIB, 200 * KIB):
            read.clear()
            fetched = await leader.fetch(1000, bytes_max)
            assert sum(map(len, fetched.buffers)) > PEEK_BYTES
            assert sum(map(len, read)) == sum(map(len, fetched.buffers))


@in_loop
async def test_what_is_cold_is_read_on_every_replica(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        await filled(cluster)
        assert len(files(tmp_path, "segment")) >= 3
        for replica in cluster.of().values():
            assert await read_all(replica) == BATCHES


@in_loop
async def test_what_was_sealed_before_a_restart_is_read(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        await filled(cluster)
        await cluster.stop(N1)
        await cluster.start(N1)
        leader = await cluster.leader()
        assert await read_all(leader) == BATCHES


@in_loop
async def test_entries_without_records_are_left_out(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        for life in range(5):
            leader = await cluster.leader()
            assert (await leader.append(b"%d" % life, 1)).offset == life
            await cluster.kill(N1)
            await cluster.start(N1)
        leader = await cluster.leader()
        assert leader.status().last > 2 * 5
        for offset in range(5):
            fetched = await leader.fetch(offset, 64 * KIB)
            assert [row[:2] for row in fetched.rows] == [(one, 1) for one in range(offset, 5)]


@in_loop
async def test_readers_follow_while_others_append(tmp_path: Path) -> None:
    """Disk and memory change hands under them, and segments are rolled and sealed."""
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        leader = await cluster.leader()

        async def follow(replica: Replica) -> list[bytes]:
            found: list[bytes] = []
            while len(found) < len(BATCHES):
                fetched = await replica.fetch(len(found), 6 * KIB, wait_s=60)
                found += values(fetched)[len(found) - fetched.rows[0][0] :]
            return found

        follows = [asyncio.ensure_future(follow(one)) for one in cluster.of().values()]
        await append_all(leader, BATCHES)
        for found in await asyncio.gather(*follows):
            assert found == BATCHES


# -- at the end and beyond it ------------------------------------------------------------------


@in_loop
async def test_a_read_at_the_end_waits_for_the_next_record(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        polls = [
            asyncio.ensure_future(one.fetch(0, KIB, wait_s=60))
            for one in cluster.of().values()
            for _ in range(10)
        ]
        await asyncio.sleep(0)
        assert not any(poll.done() for poll in polls)
        await leader.append(b"at last", 1)
        for fetched in await asyncio.gather(*polls):
            assert (values(fetched), fetched.end_offset) == ([b"at last"], 1)


@in_loop
async def test_a_read_that_waited_long_enough_has_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await leader.append(b"a", 1)
        for wait_s in (0, 0.01):
            fetched = await leader.fetch(1, KIB, wait_s)
            assert fetched == (0, 1, [], [])


@in_loop
async def test_a_read_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    config = replace(CONFIG, limits=replace(CONFIG.limits, pending_reads=1))
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await cluster.leader()
        for _ in range(3):
            poll = asyncio.ensure_future(leader.fetch(0, KIB, wait_s=60))
            await asyncio.sleep(0)
            with pytest.raises(Busy, match="pending_reads"):
                await leader.fetch(0, KIB)
            with pytest.raises(Busy, match="pending_reads"):
                await leader.offset_at(0)
            poll.cancel()
            with pytest.raises(asyncio.CancelledError):
                await poll
        await leader.append(b"a", 1)
        assert values(await leader.fetch(0, KIB)) == [b"a"]


@in_loop
async def test_reads_that_were_given_up_count_until_their_thread_is_done(tmp_path: Path) -> None:
    limit = 4
    config = replace(SMALL, limits=replace(SMALL.limits, pending_reads=limit))
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await filled(cluster)
        await quiet(leader)
        faults = cluster.faults(N1)
        faults.may_read.clear()
        for _ in range(limit):
            fetch = asyncio.ensure_future(leader.fetch(0, KIB))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            fetch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetch
        for _ in range(3):
            with pytest.raises(Busy, match="pending_reads"):
                await leader.fetch(0, KIB)
        begun = faults.reads
        faults.may_read.set()
        await until(lambda: not leader._reader._reading)
        # Nobody wants what no thread had begun to read: the two that were begun read on.
        assert faults.reads - begun <= 2 * READS_EACH
        assert values(await leader.fetch(0, KIB))[0] == BATCHES[0]


@in_loop
async def test_a_replica_that_is_behind_the_session_says_so(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader, follower = await cluster.leader(), await cluster.follower()
        cluster.isolate(follower.engine.node)
        await append_all(leader, [b"a", b"b"])
        with pytest.raises(Behind, match="has seen 2") as caught:
            await follower.fetch(0, KIB, wait_s=60, session_end=2)
        assert caught.value.retriable
        assert values(await leader.fetch(0, KIB, session_end=2)) == [b"a", b"b"]
        cluster.cut.clear()
        await cluster.reached(2)
        assert values(await follower.fetch(0, KIB, session_end=2)) == [b"a", b"b"]


@in_loop
async def test_an_offset_past_the_end_is_refused_by_every_replica(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await append_all(await cluster.leader(), [b"a", b"b"])
        for replica in cluster.of().values():
            with pytest.raises(OffsetOutOfRange, match="offset 3 is past the end, 2"):
                await replica.fetch(3, KIB)


@in_loop
async def test_a_replica_that_only_lags_does_not_refuse_an_offset(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader, follower = await cluster.leader(), await cluster.follower()
        cluster.isolate(follower.engine.node)
        await append_all(leader, [b"a", b"b", b"c"])
        with pytest.raises(NoQuorum):
            await follower.fetch(2, KIB)
        cluster.cut.clear()

        async def fetch() -> list[bytes]:
            while True:
                try:
                    return values(await follower.fetch(2, KIB))[-1:]
                except QuorateError as error:
                    assert error.retriable

        assert await fetch() == [b"c"]


@in_loop
async def test_a_stop_waits_for_a_thread_that_reads(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await filled(cluster)
        faults = cluster.faults(N1)
        begun = faults.reads
        faults.may_read.clear()
        fetch = asyncio.ensure_future(leader.fetch(0, KIB))
        await until(lambda: faults.reads > begun)
        fetch.cancel()
        stop = asyncio.ensure_future(cluster.stop(N1))
        await asyncio.sleep(0)
        with pytest.raises(NotLeader):
            await leader.fetch(0, KIB)
        await until(lambda: files(tmp_path, "segment") and _marked(tmp_path))
        assert not stop.done()
        faults.may_read.set()
        await stop


def _marked(path: Path) -> bool:
    return (path / N1 / LOGS / log_name(LOG) / "clean").exists()


# -- disks that fail ---------------------------------------------------------------------------


@in_loop
async def test_a_spoiled_byte_is_never_served(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        leader = await filled(cluster)
        spoilt = cluster.replicas[N1, LOG]
        first = files(tmp_path, "segment")[0]
        # Within a record: what lies at a given byte depends on how appends came together.
        place = first.read_bytes().index(BATCHES[5])
        with first.open("r+b") as file:
            file.seek(place)
            file.write(bytes([BATCHES[5][0] ^ 1]))
        with pytest.raises(Corrupt, match="is not what was written"):
            await read_all(spoilt)
        other = next(one for one in cluster.of().values() if one is not spoilt)
        assert await read_all(other) == BATCHES
        assert cluster.halts == []
        assert (await leader.append(b"goes on", 1)).offset == len(BATCHES)


@in_loop
async def test_what_follows_a_damaged_entry_is_asked_of_others(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await append_all(await cluster.leader(), BATCHES[:500])
        await cluster.reached(500)
        await cluster.stop(N1)
        (only,) = files(tmp_path, "segment")
        data = only.read_bytes()
        only.write_bytes(data.replace(BATCHES[300], bytes(len(BATCHES[300]))))
        spoilt = await cluster.start(N1)
        assert spoilt.status().damaged == 1
        end = spoilt.end_offset
        assert end <= 300
        assert await read_all(spoilt) == BATCHES[:end]
        with pytest.raises(Corrupt, match="ask another"):
            await spoilt.fetch(end, KIB, wait_s=60)
        other = await cluster.leader()
        assert other is not spoilt
        assert await read_all(other) == BATCHES[:500]


@in_loop
async def test_a_log_that_is_not_as_it_must_be_halts_the_replica(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await filled(cluster)
        del leader.engine.core.raft.log._stored._log.segments[1:]  # type: ignore[union-attr]  # a bug
        with pytest.raises(NotLeader, match="halted"):
            await leader.fetch(0, KIB)
        ((_, halt),) = cluster.halts
        assert isinstance(halt, InvariantBroken)


def test_a_directory_is_listed_whole_while_others_list_it(tmp_path: Path) -> None:
    """A reader looks for an index file while a flush looks for the vote record."""
    names = [f"{number:03}" for number in range(300)]
    for name in names:
        (tmp_path / name).touch()
    vfs = RealVfs(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        listed = list(pool.map(lambda _: vfs.names(), range(400)))
    vfs.close()
    assert all(one == names for one in listed)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EIO, Corrupt), (errno.EMFILE, Busy)], ids=["EIO", "EMFILE"]
)
@in_loop
async def test_a_read_that_fails_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[QuorateError]
) -> None:
    """The same entry is read again after a while."""
    monkeypatch.setattr(second_look, "AGAIN_MS", 20)
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await filled(cluster)
        cluster.faults(N1).errors["read"] = number
        with pytest.raises(error):
            await leader.fetch(0, KIB)
        await until(lambda: leader.status().damaged == (number == errno.EIO))
        del cluster.faults(N1).errors["read"]
        await until(lambda: not leader.status().damaged)
        assert await read_all(leader) == BATCHES
        assert cluster.halts == []


# -- by time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, SMALL], ids=["memory", "disk"])
@in_loop
async def test_an_offset_is_found_by_the_time_of_its_append(tmp_path: Path, config: Config) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await filled(cluster)
        log = leader.engine.core.raft.log
        entries = [
            entry for entry in log.entries(Index(1), Index(log.last_index + 1)) if entry.count
        ]
        times = sorted({entry.append_time for entry in entries})
        assert len(times) > 2
        for time in times:
            expected = next(one.base_offset for one in entries if one.append_time >= time)
            assert await leader.offset_at(time) == expected
            after = next(
                (one.base_offset for one in entries if one.append_time > time), len(BATCHES)
            )
            assert await leader.offset_at(time + 1) == after
        assert await leader.offset_at(0) == 0
        assert await leader.offset_at(times[-1] + 1) == len(BATCHES)


@in_loop
async def test_a_log_without_records_has_no_offset_at_any_time(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        assert await leader.offset_at(0) == 0
        assert await leader.offset_at(1 << 62) == 0
