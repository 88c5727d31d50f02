"""Planning a range to read, and reading a part of it elsewhere from a replica of choice.

The planner knew that the range is committed. The reader has to make sure that a replica which lags
does not make it look shorter.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from quorate.client.reading import Reader
from quorate.errors import InvalidArgument, Timeout, Trimmed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.client.blocking import Log
    from quorate.client.requests import Begun
    from quorate.client.routing import Route
    from quorate.client.session import Session
    from quorate.wire.requests import Records

__all__ = ["ANY", "LEADER", "ends_of", "read_range"]

# Values of ``read_from`` besides the id of a node.
ANY = "any"
LEADER = "leader"
# Seconds between two requests to the only replica allowed.
PAUSE_S = 0.05


def ends_of(log: Log) -> tuple[int, int]:
    """The first offset that the log keeps and the one after its last record, by one request.

    Linearizable: all acknowledged records lie between them.
    """
    ends = log._client._run(lambda session: session.ends(log._route, barrier=True))
    return ends.first, ends.end


def read_range(
    log: Log, start: int, stop: int, *, read_from: str = ANY, turn: int = 0
) -> Iterator[pa.RecordBatch]:
    """Read the records from ``start`` to before ``stop``, which are known to be committed.

    ANY begins with another replica for every ``turn``, and like LEADER goes on with an undamaged
    one if that is down or behind. A node's id is that replica and no other: the read waits for it.
    """
    # pyarrow is optional, and slow to import.
    from quorate.client.arrow_reading import record_batches_of

    return log._each(_RangeReader(log._route, start, stop, read_from, turn), record_batches_of)


class _RangeReader(Reader):
    def __init__(self, route: Route, start: int, stop: int, read_from: str, turn: int) -> None:
        super().__init__(route, start, stop)
        if read_from not in (ANY, LEADER, *route.nodes):
            raise InvalidArgument(
                f"{read_from!r} is none of {ANY}, {LEADER}, {', '.join(route.nodes)}"
            )
        # A replica that has less answers BEHIND, and another is asked.
        route.saw(stop)
        self._only = read_from if read_from not in (ANY, LEADER) else None
        # The node to ask as long as it answers; None asks the leader, and others in its place.
        self._node: str | None = None
        if read_from == ANY:
            self._node = sorted(route.nodes)[turn % len(route.nodes)]

    async def _fetch(
        self, session: Session, offset: int, left_s: float, begun: Begun | None
    ) -> Records:
        if self._only is not None:
            return await self._fetch_only(session, self._only, offset, left_s, begun)
        if self._node is not None:
            began = session.clock()
            records = await session.fetch_from(
                self._node, self._route, offset, self._bytes, begun=begun, timeout=left_s
            )
            if records is not None:
                return records
            self._node = None
            left_s -= session.clock() - began
        return await session.fetch(self._route, offset, self._bytes, begun=begun, timeout=left_s)

    async def _fetch_only(
        self, session: Session, node: str, offset: int, left_s: float, begun: Begun | None
    ) -> Records:
        """Fetch from ``node`` only: wait while it is behind, or down."""
        name, clock = self._route.name, asyncio.get_running_loop().time
        deadline = clock() + left_s
        ask = partial(
            session.fetch_from, node, self._route, offset, self._bytes, begun=begun, timeout=left_s
        )
        while (records := await ask()) is None:
            # Any node knows an error that no wait changes, such as a log that is gone.
            ends = await session.ends(self._route, barrier=False)
            if offset < ends.first:
                raise Trimmed(f"offset {offset} is gone, {name} begins with {ends.first}")
            if clock() > deadline:
                raise Timeout(
                    f"{node} has not given offset {offset} of {name} in {session.timeout:g} s: the "
                    f"node is down, or its replica behind or damaged; {ANY} reads from another"
                )
            await asyncio.sleep(PAUSE_S)
        return records
