"""A reader is never shown what a leader has logged and nobody has committed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from replica_rig import Cluster, append_all, in_loop, until, values

from quorate.config import KIB
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = [b"committed %d" % number for number in range(10)]


@in_loop
async def test_what_is_logged_and_not_committed_is_not_read(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await append_all(leader, COMMITTED)
        cluster.isolate(leader.engine.node)
        lost = asyncio.ensure_future(leader.append(b"lost", 1))
        log = leader.engine.core.raft.log
        await until(lambda: log.last_index > leader.engine.applied)
        fetched = await leader.fetch(0, 64 * KIB)
        assert values(fetched) == COMMITTED
        assert fetched.end_offset == len(COMMITTED)
        assert (await leader.fetch(len(COMMITTED), 64 * KIB)).rows == []
        cluster.cut.clear()
        with suppress(QuorateError):
            await lost
