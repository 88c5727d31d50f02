"""A cluster, as a plan sees it: which logs there are, where they end, how large their records are.

The driver uses this. It keeps the incarnation in which it first found a log: a log that is deleted
and made again is an error, so a read never gets another log's records.
"""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.read.ranges import ANY, LEADER, ends_of
from quorate.errors import InvalidArgument, LogNotFound
from quorate.spark.read.options import is_pattern
from quorate.spark.read.planning import LogExtent, recreated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from quorate.client.blocking import Log
    from quorate.spark.cluster_address import ClusterAddress

__all__ = ["ClusterLog", "ClusterLogs"]

# The sample that tells the size of records: the number of places in the log, and the most bytes and
# batches that are read at each. The search for the offset at which a byte limit is reached samples
# from place to place, each twice as far away.
SAMPLES = 3
SAMPLE_BYTES = 256 << 10
SAMPLE_BATCHES = 64


class ClusterLogs:
    """The logs of a cluster, found by name or pattern."""

    def __init__(self, cluster: ClusterAddress) -> None:
        self._client = cluster.client()
        self._met: dict[str, ClusterLog] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The log names that ``wanted`` stands for now, sorted; a plain name stands for itself."""
        found = {name for name in wanted if not is_pattern(name)}
        patterns = [name for name in wanted if is_pattern(name)]
        if patterns:
            listed = self._client.logs()
            found |= {name for name in listed for one in patterns if fnmatchcase(name, one)}
        return sorted(found)

    def find(self, name: str) -> ClusterLog:
        """The log of that name, in the incarnation first found. Raises LogNotFound."""
        if name not in self._met:
            self._met[name] = ClusterLog(self._client.log(name))
        return self._met[name]

    def forget(self, name: str) -> None:
        """Forget a log that is gone; a later log of the same name is another log."""
        self._met.pop(name, None)

    def all(self, wanted: Sequence[str]) -> list[ClusterLog]:
        """All logs of a batch. Raises LogNotFound if there is none."""
        names = self.names(wanted)
        if not names:
            raise LogNotFound(f"no log is called {', '.join(wanted)}")
        return [self.find(name) for name in names]

    def check_node(self, node: str) -> None:
        """Raise InvalidArgument if ``readFrom`` names no node of the cluster."""
        if node in (ANY, LEADER):
            return
        nodes = [one["id"] for one in self._client.status()["nodes"]]
        if node not in nodes:
            raise InvalidArgument(f"readFrom = {node!r} is none of any, leader, {', '.join(nodes)}")


class ClusterLog:
    """One log of a cluster."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def incarnation(self) -> str:
        return self._log.incarnation

    def extent(self) -> LogExtent:
        with self._named():
            return LogExtent(self.incarnation, *ends_of(self._log))

    def first_offset(self, incarnation: str) -> int:
        """The first offset that the log keeps. Raises LogRecreated for another incarnation."""
        if incarnation != self.incarnation:
            raise recreated(self.name, incarnation, self.incarnation)
        with self._named():
            return self._log.first_offset()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the log in LogNotFound: users know a log's name, and seldom its incarnation."""
        try:
            yield
        except LogNotFound:
            raise LogNotFound(f"{self.name} ({self.incarnation}) was deleted") from None

    def offset_at(self, timestamp_us: int) -> int:
        return self._log.offset_at(timestamp_us)

    def record_bytes(self, start: int, stop: int) -> float:
        """The mean bytes of a record, from samples at a few places: replicas keep no sum."""
        records = size = 0
        for place in range(min(SAMPLES, stop - start)):
            sample = self._sample(start + (stop - start) * place // SAMPLES, stop)
            records += sample.records
            size += sample.size
            if sample.records == stop - start:
                # The first sample has the whole range.
                break
        return size / max(1, records)

    def measure(self, start: int, stop: int, bytes_max: int) -> tuple[int, int]:
        """About how many records from ``start`` on have ``bytes_max`` bytes, at least one, and how
        many bytes they have.

        The records next to ``start`` are known best. All records between two samples count with the
        larger of the two mean sizes.
        """
        seen = self._sample(start, stop)
        place, size = start, 0.0
        after, each, last = start + max(1, seen.records), seen.mean, seen.mean
        while size + (after - place) * each <= bytes_max:
            size += (after - place) * each
            if after >= stop:
                return stop - start, int(size)
            place, after = after, min(stop, 2 * after - start)
            beyond = self._sample(min(after, stop - 1), stop).mean
            each, last = max(last, beyond), beyond
        after = max(start + 1, place + int((bytes_max - size) / each))
        return after - start, int(size + (after - place) * each)

    def _sample(self, start: int, stop: int) -> _Sample:
        records = size = 0
        for batch in islice(self._log.read_arrow(start, stop), SAMPLE_BATCHES):
            records += batch.num_rows
            size += batch.nbytes
            if size >= SAMPLE_BYTES:
                break
        return _Sample(records, size)


class _Sample(NamedTuple):
    """The number and the bytes of some records that follow each other."""

    records: int
    size: int

    @property
    def mean(self) -> float:
        return self.size / max(1, self.records)
