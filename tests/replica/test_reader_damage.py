"""Reading towards a damaged entry: every whole row before it is given, and it alone is refused."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from replica_rig import LOG, SMALL, Cluster, append_all, in_loop, until, values
from test_reader_staging import (
    CHUNKS,
    MIXED,
    PARTITIONS,
    RECORDS,
    appended,
    chunk,
    placed,
    publish,
    published,
    records,
    stage_all,
)

from quorate.config import KIB
from quorate.errors import Busy, Corrupt
from quorate.storage.directory import LOGS, log_name
from quorate.storage.segment import Segment
from quorate.types import Index, NodeId

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.config import Config
    from quorate.errors import QuorateError

N1 = NodeId("n1")
BATCHES = [b"%05d " % number + b"x" * 300 for number in range(600)]


def spoil(path: Path, body: bytes) -> None:
    """Spoil the one frame that holds ``body``."""
    spoilt = 0
    for file in sorted((path / N1 / LOGS / log_name(LOG)).glob("*.segment")):
        with file.open("r+b") as opened:
            data = opened.read()
            if body in data:
                opened.seek(data.index(body))
                opened.write(bytes(len(body)))
                spoilt += 1
    assert spoilt == 1


@pytest.mark.parametrize("bytes_max", [1, 4 * KIB, 100 * KIB])
@in_loop
async def test_whole_rows_before_a_damaged_entry_are_given(tmp_path: Path, bytes_max: int) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        for batch in BATCHES:  # each in an entry of its own
            await leader.append(batch, 1)
        spoil(tmp_path, BATCHES[300])
        found, offset = [], 0
        while offset < 300:
            fetched = await leader.fetch(offset, bytes_max)
            found += values(fetched)
            offset = fetched.rows[-1][0] + fetched.rows[-1][1]
        assert found == BATCHES[:300]
        with pytest.raises(Corrupt):
            await leader.fetch(300, bytes_max)
        await until(lambda: leader.status().damaged == 1)
        assert values(await leader.fetch(301, 1 << 20)) == BATCHES[301:]


@pytest.mark.parametrize("config", [MIXED, SMALL], ids=["mixed", "disk"])
@pytest.mark.parametrize("bad", [0, CHUNKS - 3, CHUNKS + 5])
@in_loop
async def test_chunks_before_a_damaged_one_are_given(
    tmp_path: Path, config: Config, bad: int
) -> None:
    async with Cluster(tmp_path, 1, config) as cluster:
        leader = await cluster.leader()
        before = [b"before %d" % number for number in range(3)]
        await append_all(leader, before)
        await stage_all(leader, 0)
        # Too much for the memory of a mixed one: all chunks are on disk.
        await publish(leader, 0)
        partition, number = divmod(bad, CHUNKS)
        spoil(tmp_path, chunk(0, partition, number))
        expected = [*appended(before, 0), *published(0, 3)]
        refused = expected[3 + bad][1]
        found, offset = [], 0
        while offset < refused:
            found += placed(await leader.fetch(offset, 1 << 20))
            offset = found[-1][1] + found[-1][2]
        assert found == expected[: 3 + bad]
        with pytest.raises(Corrupt):
            await leader.fetch(refused, 1 << 20)
        after = placed(await leader.fetch(refused + records(number), 1 << 20))
        assert after == expected[4 + bad :]


@in_loop
async def test_a_row_in_memory_before_a_damaged_chunk_is_given(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, MIXED) as cluster:
        leader = await cluster.leader()
        await stage_all(leader, 0)
        await append_all(leader, [b"in memory"])
        await publish(leader, 0)
        spoil(tmp_path, chunk(0, 0, 0))
        assert placed(await leader.fetch(0, 1 << 20)) == appended([b"in memory"], 0)
        with pytest.raises(Corrupt):
            await leader.fetch(1, 1 << 20)
        rest = placed(await leader.fetch(1 + records(0), 1 << 20))
        assert rest == published(0, 1)[1:]
        assert leader.end_offset == 1 + PARTITIONS * RECORDS


@in_loop
async def test_a_damaged_entry_that_holds_no_record_is_passed_over(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        await append_all(leader, [b"before"])
        await stage_all(leader, 0)
        await append_all(leader, [b"after"])
        spoil(tmp_path, chunk(0, 2, 7))
        assert values(await leader.fetch(0, 1 << 20)) == [b"before", b"after"]


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EIO, Corrupt), (errno.EMFILE, Busy)], ids=["EIO", "EMFILE"]
)
@in_loop
async def test_whole_rows_before_a_page_that_cannot_be_read_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[QuorateError]
) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        for batch in BATCHES[:200]:
            await leader.append(batch, 1)
        bad = leader._reader._log.index_at_offset(100)
        frames = Segment.frames

        def failing(segment: Segment, start: Index, stop: Index) -> list[memoryview]:
            if start <= bad < stop:
                raise OSError(number, "no answer")
            return frames(segment, start, stop)

        monkeypatch.setattr(Segment, "frames", failing)
        assert values(await leader.fetch(50, 1 << 20)) == BATCHES[50:100]
        with pytest.raises(error):
            await leader.fetch(100, 1 << 20)
        assert cluster.halts == []
