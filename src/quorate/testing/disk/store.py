"""A node's disk with the real storage engine over it, for simulators and tests."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

from quorate.storage.layout import LogId
from quorate.storage.recovered import Recovered, SegmentArchive
from quorate.storage.recovery import open_log
from quorate.testing.disk.durable import DurableView
from quorate.testing.disk.simulated import SimulatedDisk
from quorate.types import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.entry import Entry
    from quorate.storage.flusher import Flush, Flusher
    from quorate.storage.log import SegmentLog

__all__ = ["Store", "complete"]

Result = TypeVar("Result")

SEGMENT_BYTES = 64 * 1024


class Store:
    """The disk outlives every process; ``log`` and ``flusher`` belong to the one that runs."""

    def __init__(
        self,
        name: str,
        segment_bytes: int = SEGMENT_BYTES,
        least_bytes: int | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        self.disk = SimulatedDisk()
        self.durable = DurableView(self.disk)
        self._identity = LogId(1, name.encode().ljust(16, b"\0")[:16])
        self._segment_bytes = segment_bytes
        self._least_bytes = least_bytes
        self._reserve_bytes = reserve_bytes
        self._random = Random(f"nonces of {name}")
        self.log: SegmentLog | None = None
        self.flusher: Flusher | None = None

    def opening(self) -> Generator[str, None, Recovered]:
        """The plan of an open; what a replica starts from is its result."""
        plan = self._opening(self.disk, self._nonce)
        self.log, self.flusher = yield from plan
        return Recovered.of(self.log)

    def _opening(
        self, disk: SimulatedDisk, draw_nonce: Callable[[], int]
    ) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
        return open_log(
            disk,
            self._identity,
            self._segment_bytes,
            draw_nonce,
            least_bytes=self._least_bytes,
            reserve_bytes=self._reserve_bytes,
        )

    def open(self) -> Recovered:
        return complete(self.opening())

    def peek(self) -> tuple[Entry, ...]:
        """What an open would find now; nothing changes by asking."""
        disk = self.disk.copy()
        log, _ = complete(self._opening(disk, lambda: 0))
        archive = SegmentArchive(log)
        entries: list[Entry] = []
        while len(entries) < log.last.index:
            start = Index(len(entries) + 1)
            entries += archive.entries(start, Index(log.last.index + 1))
        return tuple(entries)

    def plan(self, flush: Flush) -> Iterator[str]:
        assert self.flusher is not None  # open
        return self.flusher.plan(flush)

    def write(self, flush: Flush) -> None:
        """Carry out all of ``flush``, and the chores after it."""
        assert self.flusher is not None  # open
        for _ in (*self.plan(flush), *self.flusher.chores(flush.committed)):
            pass

    def _nonce(self) -> int:
        return self._random.getrandbits(64)


def complete(plan: Generator[str, None, Result]) -> Result:
    """Run ``plan`` to its end; what it returns."""
    while True:
        try:
            next(plan)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returned
