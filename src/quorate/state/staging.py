"""The staging table of a log: chunks that are not published yet, and the last publish of each app.

A stage entry adds a chunk to its attempt, a publish entry gives offsets to whole attempts. Chunks
and publishes are forgotten by entries only. The table has a digest like that of the producers: a
sum of hashes, which does not depend on the order of changes.
"""

from __future__ import annotations

import struct
from itertools import islice, repeat
from typing import TYPE_CHECKING

from quorate.entry import CHUNK_BYTES, Chunk, chunk_at
from quorate.errors import InvalidArgument, InvariantBroken, check
from quorate.state.attempts import App, Attempt, Key, attempt_of, hash_app
from quorate.state.operations import DROPPED_AT_ONCE, FORGOTTEN_MAX, DropReason
from quorate.state.succession import RUNS_KEPT, Succession
from quorate.state.untracked import UntrackedDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.entry import Entry
    from quorate.state.labels import Label, Part, Publication

__all__ = ["Staging"]

_INDEX = struct.Struct("<Q")
# The place of the batch id in a packed attempt.
_BATCH_ID = Attempt._fields.index("batch_id")


class _Table:
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

    def copy(self) -> _Table:
        other = _Table()
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


class Staging:
    """All attempts and apps of one log. A change is made as a whole, or raises and leaves the table
    as it was.

    The cost of a leader's query when staging is full grows with the attempts that it finds, and the
    cost of applying an entry with the attempts that it changes, not with all staged attempts.
    """

    __slots__ = (
        "_apps", "_digest", "_newcomers", "_owners", "_publishers", "_tables", "_vacated", "bytes",
        "chunks", "succession", "work",
    )  # fmt: skip

    def __init__(self) -> None:
        # The staged attempts of each app.
        self._tables: dict[str, _Table] = {}
        # The app of each attempt, by its first chunk. The attempt that got no chunk for the longest
        # time comes first.
        self._owners: dict[int, str] = {}
        self._apps: dict[str, App] = {}
        # The app by the index of its last publish entry, in rising order.
        self._publishers: dict[int, str] = {}
        # The number of apps that have staged and not published.
        self._newcomers = 0
        # The order in which runs began, of all apps that are known and of one more: the last app
        # that lost all its chunks to its next run. The first chunk of that run is expected next.
        self.succession = Succession()
        self._vacated: str | None = None
        # The sum of the hashes of all attempts and apps.
        self._digest = 0
        # The bytes of the frames of all staged chunks, and the number of these chunks.
        self.bytes = 0
        self.chunks = 0
        # The number of attempts that were examined one by one, or changed. Not part of the
        # contents: it measures the cost of a turn, in the same way on any machine.
        self.work = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Staging)
            and [*self.attempts()] == [*other.attempts()]
            and self._apps == other._apps
            and self.succession == other.succession
        )

    __hash__ = None  # type: ignore[assignment]  # as of any table that is compared by contents

    def copy(self) -> Staging:
        """Another table with the same contents. The objects that both share never change."""
        other = Staging()
        other._tables = {app: table.copy() for app, table in self._tables.items()}
        other._owners, other._newcomers = self._owners.copy(), self._newcomers
        other._apps, other._publishers = self._apps.copy(), self._publishers.copy()
        other.succession, other._vacated = self.succession.copy(), self._vacated
        other._digest, other.bytes, other.chunks = self._digest, self.bytes, self.chunks
        return other

    def digest(self) -> int:
        return self._digest + self.succession.digest

    # -- queries -------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of attempts."""
        return len(self._owners)

    def attempts(self) -> Iterator[Attempt]:
        """All attempts, in the order of their first chunks."""
        return (self._tables[self._owners[first]].attempts[first] for first in sorted(self._owners))

    def apps(self) -> list[App]:
        """All apps that are remembered as publishers, in the order of their last publishes."""
        return [self._apps[name] for name in self._publishers.values()]

    def app(self, name: str) -> App | None:
        """The last publish of the app ``name``; None if none is remembered."""
        return self._apps.get(name)

    def attempt(self, app: str, batch_id: int, partition: int, attempt: bytes) -> Attempt | None:
        table = self._tables.get(app)
        first = table.firsts.get((batch_id, partition, attempt)) if table is not None else None
        return None if table is None or first is None else table.attempts[first]

    def named(self, app: str, batch_id: int, parts: Sequence[Part]) -> list[Attempt | None]:
        """The attempts that ``parts`` name, in their order; None where no chunk is staged."""
        table = self._tables.get(app) or _Table()
        keys = ((batch_id, part.partition, part.attempt) for part in parts)
        self.work += len(parts)
        return [*map(table.attempts.get, map(table.firsts.get, keys, repeat(0)))]

    def knows(self, app: str) -> bool:
        """True if a publish or a staged chunk of ``app`` is remembered."""
        return app in self._apps or app in self._tables

    @property
    def crowd(self) -> int:
        """The number of apps of which a publish or a staged chunk is remembered."""
        return len(self._apps) + self._newcomers

    def of_batch(self, app: str, batch_id: int, attempt: bytes | None) -> tuple[int, ...]:
        """The attempts at a batch, or those with this id: as many as are dropped at once."""
        found = (
            one.first
            for one in self._of(app)
            if one.batch_id == batch_id and attempt in (None, one.id)
        )
        return tuple(islice(found, DROPPED_AT_ONCE))

    def older_runs(self, app: str, run: bytes) -> tuple[int, ...]:
        """The attempts of runs of ``app`` that began to stage before ``run`` did: as many as are
        dropped at once. A run that is known keeps its place even if all its chunks are gone."""
        staged = self._staged_runs(app)
        found: list[int] = []
        for older in self.succession.before(app, run):
            found += islice(staged.get(older, ()), DROPPED_AT_ONCE - len(found))
            if len(found) == DROPPED_AT_ONCE:
                break
        self.work += len(found)
        return tuple(sorted(found))

    def _staged_runs(self, app: str) -> dict[bytes, dict[int, None]]:
        table = self._tables.get(app)
        return table.runs if table is not None else {}

    def _of(self, app: str) -> Iterator[Attempt]:
        """The attempts of ``app``, in the order of their first chunks."""
        table = self._tables.get(app)
        for attempt in table.attempts.values() if table is not None else ():
            self.work += 1
            yield attempt

    def _idle(self, age: int, idle_us: int) -> Iterator[Attempt]:
        """The attempts that got no chunk for ``idle_us``."""
        for first, app in self._owners.items():
            self.work += 1
            attempt = self._tables[app].attempts[first]
            if age - attempt.active_us < idle_us:
                return  # all attempts that follow got a chunk later
            yield attempt

    def expired(self, age: int, expiry_us: int) -> tuple[int, ...]:
        """The attempts that got no chunk for ``expiry_us``: as many as are forgotten at once."""
        found = (one.first for one in self._idle(age, expiry_us))
        return tuple(sorted(islice(found, FORGOTTEN_MAX)))

    def idle_others(self, app: str, run: bytes, age: int, idle_us: int) -> tuple[int, ...]:
        """The attempts of other runs and apps that got no chunk for ``idle_us``: as many as are
        forgotten at once."""
        found = (one.first for one in self._idle(age, idle_us) if (one.app, one.run) != (app, run))
        return tuple(sorted(islice(found, FORGOTTEN_MAX)))

    def idle_apps(self, age: int, expiry_us: int, once_expiry_us: int) -> tuple[int, ...]:
        """The last publishes of apps that have no staged chunks and did not publish for
        ``expiry_us``, or for ``once_expiry_us`` if they publish only once: as many as are forgotten
        at once."""
        found = (
            app.index
            for app in self.apps()
            if age - app.active_us >= (once_expiry_us if app.once else expiry_us)
            and app.name not in self._tables
        )
        return tuple(islice(found, FORGOTTEN_MAX))

    # -- changes -------------------------------------------------------------------------------

    def add(self, attempt: Attempt) -> None:
        """Add an attempt that begins after all others. No other attempt got a chunk later."""
        table = self._tables.get(attempt.app)
        if table is None:
            table = self._tables[attempt.app] = _Table()
            self._newcomers += attempt.app not in self._apps
        table.add(attempt)
        self.succession.begin(attempt.app, attempt.run, attempt.first)
        self._put(attempt)

    def _put(self, attempt: Attempt) -> None:
        """Set an attempt to its new value. No other attempt got a chunk later."""
        attempts = self._tables[attempt.app].attempts
        before = attempts.get(attempt.first)
        if before is not None:
            del self._owners[attempt.first]
            self._digest -= before.hash
            self.bytes -= before.size
            self.chunks -= before.number
        attempts[attempt.first] = attempt
        self._owners[attempt.first] = attempt.app
        self._digest += attempt.hash
        self.bytes += attempt.size
        self.chunks += attempt.number
        self.work += 1

    def _remove(self, app: str, gone: Sequence[Attempt]) -> None:
        """Forget these attempts of ``app``. If they are all, its table is dropped as a whole."""
        table, owners = self._tables[app], self._owners
        digest = size = chunks = 0
        for attempt in gone:
            del owners[attempt.first]
            digest += attempt.hash
            size += attempt.size
            chunks += attempt.number
        self._digest -= digest
        self.bytes -= size
        self.chunks -= chunks
        self.work += len(gone)
        if len(gone) == len(table.attempts):
            del self._tables[app]
            self._newcomers -= app not in self._apps
            return
        for attempt in gone:
            table.remove(attempt)

    def _trim_runs(self, app: str, *, replaced: bool = False) -> None:
        """Forget the runs of ``app`` that are not needed after chunks or a publish of it are gone.

        The runs of an app that is not known are forgotten with it. There is one exception: if a
        newer run dropped all chunks, the runs stay until a chunk of that run comes; without them
        the next chunk of an older run would count as one of a newer run. The runs of only one such
        app stay at a time.
        """
        if self.knows(app):
            self.succession.trim(app, self._staged_runs(app))
        elif not replaced:
            self.succession.forget(app)
        else:
            self.succession.trim(app, {})
            before, self._vacated = self._vacated, app
            if before is not None and before != app and not self.knows(before):
                self.succession.forget(before)

    def put_app(self, app: App) -> None:
        """Set the last publish of an app in place of the one before."""
        self._forget_app(app.name)
        self._newcomers -= app.name in self._tables
        self._apps[app.name] = app
        self._publishers[app.index] = app.name
        self._digest += hash_app(app)

    def _forget_app(self, name: str) -> None:
        before = self._apps.pop(name, None)
        if before is not None:
            del self._publishers[before.index]
            self._newcomers += name in self._tables
            self._digest -= hash_app(before)

    def settle(self) -> None:
        """Finish a table that was read from a checkpoint. Attempts were added in the order of their
        first chunks: sort them so that the one that got no chunk for the longest time comes first.
        Raises InvalidArgument if the table has runs that no log leads to."""
        tables = self._tables.values()
        order = [(one.active_us, one.first) for table in tables for one in table.attempts.values()]
        order.sort()
        self._owners = {first: self._owners[first] for _, first in order}
        vacated: list[str] = []
        for app, runs in self.succession.apps.items():
            if not self.knows(app):
                vacated.append(app)
            if runs - len(self._staged_runs(app)) > RUNS_KEPT or len(vacated) > 1:
                raise InvalidArgument(f"state of app {app!r}: runs that would be forgotten")
        self._vacated = next(iter(vacated), None)

    def stage(self, label: Label, records: int, entry: Entry, age: int) -> None:
        """Add the next chunk of an attempt."""
        published = self._apps.get(label.app)
        check(
            published is None or published.batch_id < label.batch_id,
            f"entry {entry.index} stages for a batch of {label.app!r} that is published",
        )
        known = self.attempt(label.app, label.batch_id, label.partition, label.attempt)
        number = known.number if known is not None else 0
        check(
            label.number == number and records > 0 and (known is None or known.run == label.run),
            f"entry {entry.index} stages chunk {label.number} of {records} records where chunk "
            f"{number} follows",
        )
        chunk = Chunk(entry.index, records, entry.size)
        if known is None:
            key = label.batch_id, label.partition, label.attempt
            self.add(attempt_of(label.app, key, label.run, (chunk,), age))
        else:
            self._put(known.extended(chunk, age))

    def publish(self, publication: Publication, rows: bytes, entry: Entry, age: int) -> None:
        """Publish whole attempts at one batch; all other attempts up to that batch are dropped."""
        app, batch_id, digest, once = publication
        before = self._apps.get(app)
        check(
            before is None or before.batch_id < batch_id,
            f"entry {entry.index} publishes batch {batch_id} of {app!r} again",
        )
        found = self._published(app, batch_id, rows, entry)
        check(
            sum(attempt.records for attempt in found) == entry.count,
            f"entry {entry.index} gives offsets to {entry.count} records, its chunks have others",
        )
        table = self._tables.get(app)
        if table is not None:
            gone = [row for row in table.attempts.rows() if row[_BATCH_ID] <= batch_id]
            self._remove(app, [*map(Attempt._make, gone)])
        published = App(
            app, batch_id, digest, entry.base_offset, entry.count, entry.index, entry.term, age,
            once,
        )  # fmt: skip
        self.put_app(published)
        self._trim_runs(app)

    def _published(self, app: str, batch_id: int, rows: bytes, entry: Entry) -> list[Attempt]:
        """The attempts whose chunks make up ``rows``, one attempt after the other, each whole."""
        table = self._tables.get(app)
        attempts = (table or _Table()).attempts
        found: list[Attempt] = []
        place = 0
        while place < len(rows):
            attempt = attempts.get(_INDEX.unpack_from(rows, place)[0])
            end = place + attempt.number * CHUNK_BYTES if attempt is not None else place
            if attempt is None or attempt.batch_id != batch_id or attempt.rows != rows[place:end]:
                strange = chunk_at(memoryview(rows), place // CHUNK_BYTES)
                raise InvariantBroken(
                    f"entry {entry.index} publishes {strange}, which is not what is staged"
                )
            found.append(attempt)
            place = end
        self.work += len(found)
        partitions = {attempt.partition for attempt in found}
        runs = {attempt.run for attempt in found}
        check(
            len(partitions) == len(found) and len(runs) <= 1,
            f"entry {entry.index} publishes two attempts at a partition, or those of two runs",
        )
        return found

    def drop(self, reason: DropReason, firsts: tuple[int, ...], entry: Entry) -> None:
        """Drop the staged chunks of these attempts."""
        check(
            self._owners.keys() >= set(firsts),
            f"entry {entry.index} drops an attempt that is not there",
        )
        gone: dict[str, list[Attempt]] = {}
        for first in firsts:
            app = self._owners[first]
            gone.setdefault(app, []).append(self._tables[app].attempts[first])
        for app, attempts in gone.items():
            self._remove(app, attempts)
            self._trim_runs(app, replaced=reason is DropReason.REPLACED)

    def forget(self, publishes: tuple[int, ...], entry: Entry) -> None:
        """Forget the apps whose last publishes are these entries."""
        check(
            self._publishers.keys() >= set(publishes),
            f"entry {entry.index} forgets an app that is not there",
        )
        for index in publishes:
            app = self._publishers[index]
            self._forget_app(app)
            self._trim_runs(app)
