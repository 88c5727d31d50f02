"""The staged attempts of a log, found by app, batch and run, and by the time without a new chunk.

This table knows no rules: :mod:`quorate.state.staging` decides which attempts come and go.
"""

from __future__ import annotations

from itertools import islice, repeat
from typing import TYPE_CHECKING

from quorate.state.attempts import Attempt, Key
from quorate.state.operations import DROPPED_AT_ONCE, FORGOTTEN_MAX
from quorate.state.untracked import UntrackedDict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from quorate.commands import Part

__all__ = ["StagedAttempts"]

# The place of the batch id in a packed attempt.
_BATCH_ID = Attempt._fields.index("batch_id")


class _AppTable:
    """The staged attempts of one app, at least one."""

    __slots__ = ("attempts", "firsts", "runs")

    def __init__(self) -> None:
        # The attempts by their first chunks, in rising order: a new attempt is the newest, and a
        # changed attempt keeps its place.
        self.attempts = UntrackedDict(tuple, Attempt._make)
        # The first chunk of each attempt, by the name of the attempt outside of the log.
        self.firsts: dict[Key, int] = {}
        # The first chunks of the attempts of each run, in rising order. Every run has at least one.
        self.runs: dict[bytes, dict[int, None]] = {}

    def copy(self) -> _AppTable:
        other = _AppTable()
        other.attempts, other.firsts = self.attempts.copy(), self.firsts.copy()
        other.runs = {run: firsts.copy() for run, firsts in self.runs.items()}
        return other

    def add(self, attempt: Attempt) -> None:
        self.firsts[attempt.key] = attempt.first
        self.runs.setdefault(attempt.run, {})[attempt.first] = None

    def remove(self, attempt: Attempt) -> None:
        del self.attempts[attempt.first], self.firsts[attempt.key]
        firsts = self.runs[attempt.run]
        del firsts[attempt.first]
        if not firsts:
            del self.runs[attempt.run]


class StagedAttempts:
    """All staged attempts of one log.

    The cost of a search grows with the attempts that it finds, and the cost of a change with the
    attempts that it changes, not with all staged attempts.
    """

    __slots__ = ("_none_idle", "_owners", "_tables", "bytes", "chunks", "digest", "work")

    def __init__(self) -> None:
        # The attempts of each app.
        self._tables: dict[str, _AppTable] = {}
        # The app of each attempt, by its first chunk. The attempt that got no chunk for the longest
        # time comes first.
        self._owners: dict[int, str] = {}
        # The sum of the hashes of all attempts.
        self.digest = 0
        # The bytes of the frames of all staged chunks, and the number of these chunks.
        self.bytes = 0
        self.chunks = 0
        # The number of attempts that were examined one by one, or changed. Not part of the
        # contents: it measures the cost of a turn, in the same way on any machine.
        self.work = 0
        # An app and a run beside which no attempt is idle before this age. Not part of the
        # contents: it spares a run at the cap a walk over its own attempts for each chunk.
        self._none_idle = ("", b"", 0)

    def copy(self) -> StagedAttempts:
        """Another table with the same attempts. The objects that both share never change."""
        other = StagedAttempts()
        other._tables = {app: table.copy() for app, table in self._tables.items()}
        other._owners = self._owners.copy()
        other.digest, other.bytes, other.chunks = self.digest, self.bytes, self.chunks
        return other

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[Attempt]:
        """All attempts, in the order of their first chunks."""
        return (self._tables[self._owners[first]].attempts[first] for first in sorted(self._owners))

    # -- queries -------------------------------------------------------------------------------

    def has_app(self, app: str) -> bool:
        """True if a chunk of ``app`` is staged."""
        return app in self._tables

    def runs(self, app: str) -> Collection[bytes]:
        """The runs of ``app`` that have a staged chunk."""
        table = self._tables.get(app)
        return table.runs if table is not None else ()

    def get(self, app: str, batch_id: int, partition: int, attempt: bytes) -> Attempt | None:
        table = self._tables.get(app)
        first = table.firsts.get((batch_id, partition, attempt)) if table is not None else None
        return None if table is None or first is None else table.attempts[first]

    def named(self, app: str, batch_id: int, parts: Sequence[Part]) -> list[Attempt | None]:
        """The attempts that ``parts`` name, in their order; None where no chunk is staged."""
        table = self._tables.get(app) or _AppTable()
        keys = ((batch_id, part.partition, part.attempt) for part in parts)
        self.work += len(parts)
        return [*map(table.attempts.get, map(table.firsts.get, keys, repeat(0)))]

    def begun_with(self, app: str, first: int) -> Attempt | None:
        """The attempt of ``app`` whose first chunk is the entry ``first``."""
        table = self._tables.get(app)
        self.work += 1
        return table.attempts.get(first) if table is not None else None

    def by_app(self, firsts: Iterable[int]) -> dict[str, list[Attempt]]:
        """The attempts with these first chunks, by app, as far as they are staged."""
        found: dict[str, list[Attempt]] = {}
        for first in firsts:
            app = self._owners.get(first)
            if app is not None:
                found.setdefault(app, []).append(self._tables[app].attempts[first])
        return found

    def up_to_batch(self, app: str, batch_id: int) -> list[Attempt]:
        """The attempts at this batch and at earlier ones."""
        table = self._tables.get(app)
        rows = table.attempts.rows() if table is not None else ()
        return [Attempt._make(row) for row in rows if row[_BATCH_ID] <= batch_id]

    def of_batch(self, app: str, batch_id: int, attempt: bytes | None) -> tuple[int, ...]:
        """The attempts at a batch, or those with this id: as many as are dropped at once."""
        found = (
            one.first
            for one in self._of(app)
            if one.batch_id == batch_id and attempt in (None, one.id)
        )
        return tuple(islice(found, DROPPED_AT_ONCE))

    def _of(self, app: str) -> Iterator[Attempt]:
        """The attempts of ``app``, in the order of their first chunks."""
        table = self._tables.get(app)
        for attempt in table.attempts.values() if table is not None else ():
            self.work += 1
            yield attempt

    def of_runs(self, app: str, runs: Iterable[bytes]) -> tuple[int, ...]:
        """The attempts of these runs, run by run: as many as are dropped at once."""
        table = self._tables.get(app)
        staged = table.runs if table is not None else {}
        found: list[int] = []
        for run in runs:
            found += islice(staged.get(run, ()), DROPPED_AT_ONCE - len(found))
            if len(found) == DROPPED_AT_ONCE:
                break
        self.work += len(found)
        return tuple(sorted(found))

    def expired(self, age: int, expiry_us: int) -> tuple[int, ...]:
        """The attempts that got no chunk for ``expiry_us``: as many as are forgotten at once."""
        found = (one.first for one in self._idle(age, expiry_us))
        return tuple(sorted(islice(found, FORGOTTEN_MAX)))

    def idle_others(self, app: str, run: bytes, age: int, idle_us: int) -> tuple[int, ...]:
        """The attempts of other runs and apps that got no chunk for ``idle_us``: as many as are
        forgotten at once."""
        if self._none_idle[:2] == (app, run) and age < self._none_idle[2]:
            return ()
        found: list[int] = []
        passed = 0
        for one in self._idle(age, idle_us):
            passed += 1
            if (one.app, one.run) != (app, run):
                found.append(one.first)
                if len(found) == FORGOTTEN_MAX:
                    break
        if not found:
            following = next(islice(self._owners.items(), passed, None), None)
            since = self._owned(*following).active_us if following is not None else age
            self._none_idle = (app, run, since + idle_us)
        return tuple(sorted(found))

    def _idle(self, age: int, idle_us: int) -> Iterator[Attempt]:
        """The attempts that got no chunk for ``idle_us``."""
        for first, app in self._owners.items():
            self.work += 1
            attempt = self._owned(first, app)
            if age - attempt.active_us < idle_us:
                return  # all attempts that follow got a chunk later
            yield attempt

    def _owned(self, first: int, app: str) -> Attempt:
        return self._tables[app].attempts[first]

    # -- changes -------------------------------------------------------------------------------

    def add(self, attempt: Attempt) -> None:
        """Add an attempt that begins after all others. No other attempt got a chunk later."""
        table = self._tables.get(attempt.app)
        if table is None:
            table = self._tables[attempt.app] = _AppTable()
        table.add(attempt)
        self.put(attempt)

    def put(self, attempt: Attempt) -> None:
        """Set an attempt to its new value. No other attempt got a chunk later."""
        attempts = self._tables[attempt.app].attempts
        before = attempts.get(attempt.first)
        if before is not None:
            del self._owners[attempt.first]
            self.digest -= before.hash
            self.bytes -= before.size
            self.chunks -= before.chunk_count
        attempts[attempt.first] = attempt
        self._owners[attempt.first] = attempt.app
        self.digest += attempt.hash
        self.bytes += attempt.size
        self.chunks += attempt.chunk_count
        self.work += 1

    def remove(self, app: str, gone: Sequence[Attempt]) -> None:
        """Forget these attempts of ``app``. If they are all, its table is dropped as a whole."""
        table, owners = self._tables[app], self._owners
        digest = size = chunks = 0
        for attempt in gone:
            del owners[attempt.first]
            digest += attempt.hash
            size += attempt.size
            chunks += attempt.chunk_count
        self.digest -= digest
        self.bytes -= size
        self.chunks -= chunks
        self.work += len(gone)
        if len(gone) == len(table.attempts):
            del self._tables[app]
            return
        for attempt in gone:
            table.remove(attempt)

    def sort_by_idleness(self) -> None:
        """Put the attempt that got no chunk for the longest time first. A checkpoint adds the
        attempts in the order of their first chunks."""
        tables = self._tables.values()
        order = [(one.active_us, one.first) for table in tables for one in table.attempts.values()]
        order.sort()
        self._owners = {first: self._owners[first] for _, first in order}
