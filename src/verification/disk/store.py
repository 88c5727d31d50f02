"""A node's disk with the real storage engine over it, for simulators and tests."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

from quorate.storage.layout import LogId
from quorate.storage.recovery.open import open_log
from quorate.storage.recovery.result import Recovered
from quorate.storage.stored_entries import StoredEntries
from quorate.types import Index
from verification.disk.durable import DurableView
from verification.disk.simulated import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from quorate.entry import Entry
    from quorate.replica.engine import Engine
    from quorate.storage.flusher import Flush, Flusher
    from quorate.storage.log import SegmentLog

__all__ = ["Store", "complete"]

Result = TypeVar("Result")

SEGMENT_BYTES = 64 * 1024


class Store:
    """The storage of one node. The disk outlives every process; ``log`` and ``flusher`` belong to
    the process that runs."""

    def __init__(
        self,
        name: str,
        segment_bytes: int = SEGMENT_BYTES,
        least_bytes: int | None = None,
        reserve_bytes: int = 0,
        *,
        begins_unsure: bool = False,
    ) -> None:
        self.disk = SimulatedDisk()
        self.identity = LogId(1, name.encode().ljust(16, b"\0")[:16])
        self.durable = DurableView(self.disk, self.identity)
        self._segment_bytes = segment_bytes
        self._least_bytes = least_bytes
        self._reserve_bytes = reserve_bytes
        self._begins_unsure = begins_unsure
        self._random = Random(f"nonces of {name}")
        self.log: SegmentLog | None = None
        self.flusher: Flusher | None = None

    def opening(self) -> Generator[str, None, Recovered]:
        """The plan of an open; its result is the state from which a replica starts."""
        plan = self._opening(self.disk, self._nonce)
        self.log, self.flusher = yield from plan
        return Recovered.of(self.log)

    def _opening(
        self, disk: SimulatedDisk, draw_nonce: Callable[[], int]
    ) -> Generator[str, None, tuple[SegmentLog, Flusher]]:
        return open_log(
            disk,
            self.identity,
            self._segment_bytes,
            draw_nonce,
            least_bytes=self._least_bytes,
            reserve_bytes=self._reserve_bytes,
            begins_unsure=self._begins_unsure,
        )

    def open(self) -> Recovered:
        return complete(self.opening())

    def peek(self) -> tuple[Entry, ...]:
        """The entries that an open would find now; the call changes no file."""
        disk = self.disk.copy()
        log, _ = complete(self._opening(disk, lambda: 0))
        stored = StoredEntries(log)
        entries: list[Entry] = []
        while len(entries) < log.last.index:
            start = Index(len(entries) + 1)
            entries += stored.entries(start, Index(log.last.index + 1))
        return tuple(entries)

    def note_memberships(self, engine: Engine) -> None:
        """Tell the flusher which memberships the engine found, as replica/opening.py does."""
        assert self.flusher is not None  # the log is open
        self.flusher.note_memberships(engine.core.raft.memberships.indexes)

    def plan(self, flush: Flush) -> Iterator[str]:
        assert self.flusher is not None  # the log is open
        return self.flusher.plan(flush)

    def write(self, flush: Flush) -> None:
        """Carry out all of ``flush``, and the chores after it."""
        assert self.flusher is not None  # the log is open
        for _ in (*self.plan(flush), *self.flusher.chores(flush.committed)):
            pass

    def _nonce(self) -> int:
        return self._random.getrandbits(64)


def complete(plan: Generator[str, None, Result]) -> Result:
    """Run ``plan`` to its end; return its result."""
    while True:
        try:
            next(plan)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the result of the generator
