"""A streaming query under observation: how far it is, and how to kill it inside a batch for sure.

Its checkpoint says how far it is: Spark writes down the range of a batch before it runs it, and
that it is done after its sink said so. Between the two a batch is open, and will be repeated.
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
    """What an open batch had done when its driver was killed."""

    batch: int
    # By what its work is measured: more of it than when the batch was first seen open.
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
        # Why it ended by itself, each time that it did.
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
        """Whether it has done all that there was.

        One that failed is started again, as anybody's supervisor does: on a busy machine Spark may
        give up a worker that is slow to start. Raises if it fails too often.
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
        """The last batch that is done; -1 if none is."""
        return self._newest("commits")

    @property
    def open_batch(self) -> int | None:
        """The batch that is under way."""
        committed, planned = self.committed, self._newest("offsets")
        return planned if planned > committed else None

    @property
    def read(self) -> int:
        """Up to which record of the source it is done."""
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
    """Kills a query, all of it, while a batch is open that has done something already."""

    def __init__(self, query: Query, work: Callable[[], int]) -> None:
        """``work`` rises with what a batch does."""
        self._query = query
        self._work = work
        # The open batch, and what was done when it was first seen.
        self._batch: int | None = None
        self._before = 0

    def look(self) -> Caught | None:
        """Kill it if this is the moment.

        To be certain, it is looked at while everything stands still: if the batch has ended, the
        query goes on, and the next one is tried.
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
