"""Planning a range to read, and reading a part of it elsewhere from a replica of choice.

The planner knew that the range is committed. The reader has to make sure that a replica which lags
does not make it look shorter.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorate.client.read.reading import Reader
from quorate.errors import InvalidArgument, Timeout, Trimmed

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.client.blocking import Log
    from quorate.client.read.reading import ReplicaChoice
    from quorate.client.routing import Route
    from quorate.client.session import Session

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
    from quorate.client.read.arrow import record_batches_of

    replicas = _choice(log._route, read_from, turn)
    reader = Reader(log._route, start, stop, replicas=replicas)
    # A replica that has less answers BEHIND, and another is asked.
    log._route.saw(stop)
    return log._each(reader, record_batches_of)


def _choice(route: Route, read_from: str, turn: int) -> ReplicaChoice:
    if read_from == LEADER:
        return _FromReplica(None)
    if read_from == ANY:
        return _FromReplica(sorted(route.nodes)[turn % len(route.nodes)])
    if read_from in route.nodes:
        return _OnlyReplica(route, read_from)
    raise InvalidArgument(f"{read_from!r} is none of {ANY}, {LEADER}, {', '.join(route.nodes)}")


class _FromReplica:
    """One replica as long as it answers, then the leader; None is the leader from the beginning."""

    def __init__(self, replica: str | None) -> None:
        self._replica = replica

    def replica(self, *, more: bool) -> str | None:
        return self._replica

    async def failed(self, session: Session, offset: int, deadline: float) -> bool:
        self._replica = None
        return False


class _OnlyReplica:
    """One replica and no other: the reader waits while it is behind, or down."""

    def __init__(self, route: Route, replica: str) -> None:
        self._route = route
        self._replica = replica

    def replica(self, *, more: bool) -> str:
        return self._replica

    async def failed(self, session: Session, offset: int, deadline: float) -> bool:
        name = self._route.name
        # Any node knows an error that no wait changes, such as a log that is gone.
        ends = await session.ends(self._route, barrier=False)
        if offset < ends.first:
            raise Trimmed(f"offset {offset} is gone, {name} begins with {ends.first}")
        if asyncio.get_running_loop().time() > deadline:
            raise Timeout(
                f"{self._replica} has not given offset {offset} of {name} in "
                f"{session.timeout:g} s: the node is down, or its replica behind or damaged; "
                f"{ANY} reads from another"
            )
        await asyncio.sleep(PAUSE_S)
        return True
