"""An operator lowers limits: what was appended before is larger than what is allowed now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from replica_rig import CONFIG, SMALL, Cluster, append_all, in_loop, read_all

from quorate.config import KIB

if TYPE_CHECKING:
    from pathlib import Path

LARGE = [bytes([number]) * 60 * KIB for number in range(20)]
LOWERED = replace(SMALL, storage=replace(SMALL.storage, segment_bytes=64 * KIB))


@in_loop
async def test_a_node_with_lower_limits_catches_up_with_what_was_appended_before(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, config=CONFIG) as cluster:
        leader = await cluster.leader()
        name = (await cluster.follower()).engine.node
        await cluster.kill(name)
        for batch in LARGE:
            await append_all(leader, [batch])
        cluster.config = LOWERED
        behind = await cluster.start(name)
        await cluster.reached(len(LARGE))
        assert await read_all(behind, bytes_max=KIB) == LARGE
        # Spares are no larger than they must be again.
        assert behind._opened.log.segments[-1].header.capacity <= 128 * KIB
        assert cluster.halts == []
