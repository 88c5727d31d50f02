"""Staging and publishing against a real cluster, whose leader is killed in between."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

import quorate
from quorate.batch import encode_batch
from quorate.client.staging import (
    LastPublish,
    Stager,
    abort_staged,
    last_publication,
    publish_staged,
)
from quorate.commands import ChunkLabel, Part
from quorate.errors import (
    Duplicate,
    Fenced,
    InvalidArgument,
    ReplayMismatch,
    StageExpired,
    TooLarge,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dev_rig import DevCluster
    from quorate.commands import Receipt

APP = "query"
DEADLINE_S = 60


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def digest(number: int = 0) -> bytes:
    return number.to_bytes(32, "little")


class Staging:
    """One log, and the functions of the client with everything filled in. Those that wait do so in
    a thread: some tests kill a leader meanwhile."""

    def __init__(self, cluster: DevCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self._client = quorate.AsyncClient(cluster.endpoints)
        self._blocking = quorate.Client(cluster.endpoints)

    async def __aenter__(self) -> Staging:
        await self._client.__aenter__()
        self.log = await self._client.log(self.name, create=True)
        self.staged = await asyncio.to_thread(self._blocking.log, self.name)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._blocking.close)
        await self._client.__aexit__(*error)

    async def stage(
        self,
        values: list[bytes],
        batch_id: int = 0,
        partition: int = 0,
        attempt: int = 1,
        number: int = 0,
    ) -> bool:
        """Stage one chunk; whether the log needed it."""
        first = ChunkLabel(APP, uuid(1), batch_id, partition, uuid(attempt), 0)
        return await asyncio.to_thread(self.stage_batch, first, encode_batch(values), number)

    def stage_batch(self, first: ChunkLabel, batch: bytes, number: int = 0) -> bool:
        stager = Stager(self.staged, first)
        stager.chunks = number
        stager.send(batch)
        stager.finish()
        assert stager.accepted is not stager.published
        return stager.accepted

    async def publish(
        self,
        batch_id: int,
        *parts: tuple[int, int, int, int],
        of: int = 0,
        fence: str | None = None,
    ) -> Receipt:
        named = [Part(part[0], uuid(part[1]), *part[2:]) for part in parts]
        return await asyncio.to_thread(
            publish_staged, self.staged, APP, batch_id, named, digest(of), fence
        )

    async def abort(self, batch_id: int, attempt: int | None = None) -> int:
        named = uuid(attempt) if attempt is not None else None
        return await asyncio.to_thread(abort_staged, self.staged, APP, batch_id, named)

    async def last(self) -> LastPublish | None:
        return await asyncio.to_thread(last_publication, self.staged, APP)

    async def values(self) -> list[bytes]:
        return [record.value async for record in self.log.read(linearizable=True)]

    async def staged_bytes(self) -> int:
        status = await self._client.status()
        return next(log["staged_bytes"] for log in status["logs"] if log["name"] == self.name)


@pytest.fixture
def staging(cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[Staging]:
    name: str = request.node.name
    yield Staging(cluster, name.replace("_", "-")[:60])


def test_what_is_staged_is_seen_when_it_is_published_and_all_at_once(staging: Staging) -> None:
    async def scenario() -> None:
        async with staging, asyncio.timeout(DEADLINE_S):
            await staging.log.append(b"before")
            assert await staging.stage([b"a", b"b"], partition=1)
            assert await staging.stage([b"c"], partition=0)
            assert await staging.stage([b"d", b"e"], partition=0, number=1)
            assert await staging.values() == [b"before"]
            assert await staging.staged_bytes() > 0
            assert await staging.last() is None
            receipt = await staging.publish(0, (0, 1, 2, 3), (1, 1, 1, 2), of=9)
            assert receipt[:2] == (1, 5)
            assert receipt.synced >= 2
            await staging.log.append(b"after")
            assert await staging.values() == [b"before", b"c", b"d", b"e", b"a", b"b", b"after"]
            assert await staging.staged_bytes() == 0
            assert await staging.last() == LastPublish(0, 1, 5, receipt.index, digest(9))

    asyncio.run(scenario())


def test_published_records_have_the_append_time_of_their_publish(staging: Staging) -> None:
    async def scenario() -> None:
        async with staging, asyncio.timeout(DEADLINE_S):
            await staging.stage([b"a"], partition=0)
            await staging.log.append(b"between")
            await staging.stage([b"b"], partition=1)
            await staging.publish(0, (0, 1, 1, 1), (1, 1, 1, 1))
            records = [record async for record in staging.log.read()]
            times = [record.append_time for record in records]
            assert [record.value for record in records] == [b"between", b"a", b"b"]
            assert times == sorted(times)
            assert times[1] == times[2]

    asyncio.run(scenario())


def test_repeats_are_known_again(staging: Staging) -> None:
    async def scenario() -> None:
        async with staging, asyncio.timeout(DEADLINE_S):
            for _ in range(2):
                assert await staging.stage([b"a"], 5)
            first = await staging.publish(5, (0, 1, 1, 1))
            again = await staging.publish(5, (0, 1, 1, 1))
            assert first[:4] == again[:4]
            # Of another run, with attempts that were never staged.
            assert (await staging.publish(5, (7, 8, 1, 1)))[:4] == first[:4]
            assert not await staging.stage([b"a"], 5, attempt=2)
            with pytest.raises(ReplayMismatch):
                await staging.publish(5, (0, 1, 1, 1), of=1)
            with pytest.raises(ReplayMismatch):
                await staging.publish(5, (0, 1, 1, 2))
            with pytest.raises(Duplicate):
                await staging.publish(4, (0, 1, 1, 1))
            assert await staging.values() == [b"a"]

    asyncio.run(scenario())


def test_what_is_aborted_cannot_be_published(staging: Staging) -> None:
    async def scenario() -> None:
        async with staging, asyncio.timeout(DEADLINE_S):
            await staging.stage([b"a"], attempt=1)
            await staging.stage([b"b"], attempt=2)
            assert await staging.abort(0, attempt=1) == 1
            with pytest.raises(StageExpired):
                await staging.publish(0, (0, 1, 1, 1))
            await staging.publish(0, (0, 2, 1, 1))
            assert await staging.abort(0) == 0
            assert await staging.values() == [b"b"]

    asyncio.run(scenario())


def test_bad_input_is_refused_by_its_name(staging: Staging) -> None:
    async def scenario() -> None:
        async with staging, asyncio.timeout(DEADLINE_S):
            chunk = ChunkLabel(APP, uuid(1), 0, 0, uuid(1), 0)
            with pytest.raises(TooLarge, match="batch_bytes"):
                await asyncio.to_thread(staging.stage_batch, chunk, bytes(9 << 20))
            with pytest.raises(InvalidArgument):
                await asyncio.to_thread(staging.stage_batch, chunk, b"no batch")
            with pytest.raises(InvalidArgument):
                await asyncio.to_thread(publish_staged, staging.staged, APP, 0, [], b"short")
            with pytest.raises(TooLarge, match="65537 chunks, limit 65536"):
                await staging.publish(0, (0, 1, 65_537, 65_537))
            parts = [(number, 1, 1, 1) for number in range(8193)]
            with pytest.raises(StageExpired):
                await staging.publish(0, *parts[1:])
            with pytest.raises(TooLarge, match="rows in 8193 partitions, limit 8192: gather"):
                await staging.publish(0, *parts)
            await staging.log.set_fence("writer", expect=None)
            await staging.stage([b"a"])
            with pytest.raises(Fenced):
                await staging.publish(0, (0, 1, 1, 1))
            await staging.publish(0, (0, 1, 1, 1), fence="writer")

    asyncio.run(scenario())


def test_a_leader_that_is_killed_takes_nothing_with_it(staging: Staging) -> None:
    """Between staging and publish, and again before the publish is repeated."""

    async def scenario() -> None:
        cluster = staging.cluster
        async with staging, asyncio.timeout(DEADLINE_S):
            for batch_id in range(3):
                for number in range(4):
                    values = [b"%d %d" % (batch_id, number)]
                    assert await staging.stage(values, batch_id, number=number)
                await kill_leader(cluster, staging.name)
                receipt = await staging.publish(batch_id, (0, 1, 4, 4))
                assert receipt[:2] == (4 * batch_id, 4)
                await kill_leader(cluster, staging.name)
                again = await staging.publish(batch_id, (0, 1, 4, 4))
                assert again[:4] == receipt[:4]
                assert not await staging.stage([b"late"], batch_id, attempt=9)
            expected = [b"%d %d" % (batch, number) for batch in range(3) for number in range(4)]
            assert await staging.values() == expected

    asyncio.run(scenario())


async def kill_leader(cluster: DevCluster, log: str) -> None:
    """The node comes back by itself; the others go on meanwhile."""
    leader = await asyncio.to_thread(cluster.leader, log)
    cluster.signal(leader, signal.SIGKILL)
