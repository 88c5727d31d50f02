"""A streaming query under observation: its progress, and a way to kill it inside a batch for sure.

The checkpoint shows the progress: Spark writes down the range of a batch before the batch runs, and
its commit after the sink has returned. Between the two a batch is open, and will be repeated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from quorate.demo.findings import DemoFailed
from quorate.demo.jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Caught", "Query", "Trap"]


FAILURES_MAX = 2


class Caught(NamedTuple):
    """An open batch whose driver was killed, and the work that it had done."""

    batch: int
    # The work done, in the unit of :class:`Trap`, since the batch was first seen open.
    grown: int


class Query:
    """One streaming query that is started, killed, and started again."""

    def __init__(
        self, name: str, command: Sequence[str], checkpoint: Path, place: Path, source: str
    ) -> None:
        self.name = name
        self.checkpoint = checkpoint
        self._command = command
        self._place = place
        self._source = source
        self._job: Job | None = None
        # The reason for each time that the query ended by itself.
        self.failures: list[str] = []

    def start(self) -> None:
        self._job = Job(self.name, self._command, self._place)

    @property
    def job(self) -> Job:
        if self._job is None:
            raise LookupError(f"{self.name} was never started")
        return self._job

    def close(self) -> None:
        if self._job is not None:
            self._job.kill()

    def ended(self) -> bool:
        """True if the query has processed all records.

        A query that failed is started again, as a supervisor does: on a busy machine Spark may give
        up a worker that is slow to start. Raises if the query fails too often.
        """
        status = self.job.status
        if status is None or status == 0:
            return status == 0
        failure = self.job.failure()
        self.failures.append(str(failure))
        if len(self.failures) > FAILURES_MAX:
            raise failure
        self.start()
        return False

    # -- how far it is -------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """The number of the last batch that is done; -1 if none is."""
        return self._newest("commits")

    @property
    def open_batch(self) -> int | None:
        """The number of the batch that is under way; None if none is."""
        committed, planned = self.committed, self._newest("offsets")
        return planned if planned > committed else None

    @property
    def read(self) -> int:
        """The offset of the source up to which the query is done."""
        committed = self.committed
        if committed < 0:
            return 0
        path = self.checkpoint / "offsets" / str(committed)
        last = path.read_text(encoding="utf-8").splitlines()[-1]
        return int(json.loads(last)[self._source]["offset"])

    def _newest(self, folder: str) -> int:
        try:
            names = [path.name for path in (self.checkpoint / folder).iterdir()]
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdecimal()), default=-1)


class Trap:
    """Kills all processes of a query while a batch is open that has done some work already."""

    def __init__(self, query: Query, work: Callable[[], int]) -> None:
        """``work`` measures the work of a batch: its number rises while the batch works."""
        self._query = query
        self._work = work
        # The open batch, and the work that was done when the batch was first seen.
        self._batch: int | None = None
        self._before = 0

    def look(self) -> Caught | None:
        """Kill the query if its open batch has done some work.

        To be certain, the batch is looked at while all processes are stopped: if it has ended, the
        query goes on, and the next batch is tried.
        """
        query = self._query
        if query.ended():
            raise DemoFailed(f"{query.name} came to its end before it could be killed")
        batch = query.open_batch
        if batch != self._batch:
            self._batch, self._before = batch, self._work()
        elif batch is not None and self._work() > self._before:
            query.job.freeze()
            grown = self._work() - self._before
            if query.open_batch == batch and grown > 0:
                query.job.kill()
                return Caught(batch, grown)
            query.job.thaw()
        return None
