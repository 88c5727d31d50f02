"""The staging table of a log: chunks that are not published yet, and the last publish of each app.

A stage entry adds a chunk to its attempt, a publish entry gives offsets to whole attempts. Chunks
and publishes are forgotten by entries only. The table has a digest like that of the producers: a
sum of hashes, which does not depend on the order of changes.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING

from quorate.entry_body import CHUNK_BYTES, Chunk, chunk_at
from quorate.errors import InvalidArgument, InvariantBroken, check
from quorate.state.attempts import App, Attempt, attempt_of, hash_app
from quorate.state.operations import FORGOTTEN_MAX, DropReason
from quorate.state.staged_attempts import StagedAttempts
from quorate.state.succession import RUNS_KEPT, Succession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.commands import ChunkLabel
    from quorate.entry import Entry
    from quorate.entry_body import Publication

__all__ = ["Staging"]

_INDEX = struct.Struct("<Q")


class Staging:
    """All attempts and apps of one log. A change is made as a whole, or raises and leaves the table
    as it was."""

    __slots__ = (
        "_apps", "_apps_digest", "_newcomers", "_publishers", "_vacated", "attempts", "succession",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempts = StagedAttempts()
        # The last publish of each app that is remembered as a publisher.
        self._apps: dict[str, App] = {}
        # The app by the index of its last publish entry, in rising order.
        self._publishers: dict[int, str] = {}
        # The number of apps that have staged and not published.
        self._newcomers = 0
        # The order in which runs began, of all apps that are known and of one more: the last app
        # that lost all its chunks to its next run. The first chunk of that run is expected next.
        self.succession = Succession()
        self._vacated: str | None = None
        # The sum of the hashes of all apps.
        self._apps_digest = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Staging)
            and [*self.attempts] == [*other.attempts]
            and self._apps == other._apps
            and self.succession == other.succession
        )

    __hash__ = None  # type: ignore[assignment]  # as of any table that is compared by contents

    def copy(self) -> Staging:
        """Another table with the same contents. The objects that both share never change."""
        other = Staging()
        other.attempts, other._newcomers = self.attempts.copy(), self._newcomers
        other._apps, other._publishers = self._apps.copy(), self._publishers.copy()
        other.succession, other._vacated = self.succession.copy(), self._vacated
        other._apps_digest = self._apps_digest
        return other

    def digest(self) -> int:
        return self.attempts.digest + self._apps_digest + self.succession.digest

    # -- queries -------------------------------------------------------------------------------

    def apps(self) -> list[App]:
        """All apps that are remembered as publishers, in the order of their last publishes."""
        return [self._apps[name] for name in self._publishers.values()]

    def app(self, name: str) -> App | None:
        """The last publish of the app ``name``; None if none is remembered."""
        return self._apps.get(name)

    def knows(self, app: str) -> bool:
        """True if a publish or a staged chunk of ``app`` is remembered."""
        return app in self._apps or self.attempts.has_app(app)

    @property
    def crowd(self) -> int:
        """The number of apps of which a publish or a staged chunk is remembered."""
        return len(self._apps) + self._newcomers

    def older_runs(self, app: str, run: bytes) -> tuple[int, ...]:
        """The attempts of runs of ``app`` that began to stage before ``run`` did: as many as are
        dropped at once. A run that is known keeps its place even if all its chunks are gone."""
        return self.attempts.of_runs(app, self.succession.before(app, run))

    def idle_apps(self, age: int, expiry_us: int, once_expiry_us: int) -> tuple[int, ...]:
        """The last publishes of apps that have no staged chunks and did not publish for
        ``expiry_us``, or for ``once_expiry_us`` if they publish only once: as many as are forgotten
        at once."""
        found = (
            app.index
            for app in self.apps()
            if age - app.active_us >= (once_expiry_us if app.once else expiry_us)
            and not self.attempts.has_app(app.name)
        )
        return tuple(islice(found, FORGOTTEN_MAX))

    # -- changes -------------------------------------------------------------------------------

    def add(self, attempt: Attempt) -> None:
        """Add an attempt that begins after all others. No other attempt got a chunk later."""
        self._newcomers += not self.knows(attempt.app)
        self.attempts.add(attempt)
        self.succession.begin(attempt.app, attempt.run, attempt.first)

    def _remove(self, app: str, gone: Sequence[Attempt]) -> None:
        """Forget these attempts of ``app``."""
        self.attempts.remove(app, gone)
        self._newcomers -= not self.knows(app)

    def _trim_runs(self, app: str, *, replaced: bool = False) -> None:
        """Forget the runs of ``app`` that are not needed after chunks or a publish of it are gone.

        The runs of an app that is not known are forgotten with it. There is one exception: if a
        newer run dropped all chunks, the runs stay until a chunk of that run comes; without them
        the next chunk of an older run would count as one of a newer run. The runs of only one such
        app stay at a time.
        """
        if self.knows(app):
            self.succession.trim(app, self.attempts.runs(app))
        elif not replaced:
            self.succession.forget(app)
        else:
            self.succession.trim(app, ())
            before, self._vacated = self._vacated, app
            if before is not None and before != app and not self.knows(before):
                self.succession.forget(before)

    def put_app(self, app: App) -> None:
        """Set the last publish of an app in place of the one before."""
        self._forget_app(app.name)
        self._newcomers -= self.attempts.has_app(app.name)
        self._apps[app.name] = app
        self._publishers[app.index] = app.name
        self._apps_digest += hash_app(app)

    def _forget_app(self, name: str) -> None:
        before = self._apps.pop(name, None)
        if before is not None:
            del self._publishers[before.index]
            self._newcomers += self.attempts.has_app(name)
            self._apps_digest -= hash_app(before)

    def settle(self) -> None:
        """Finish a table that was read from a checkpoint. Raises InvalidArgument if the table has
        runs that no log leads to."""
        self.attempts.sort_by_idleness()
        vacated: list[str] = []
        for app, runs in self.succession.apps.items():
            if not self.knows(app):
                vacated.append(app)
            if runs - len(self.attempts.runs(app)) > RUNS_KEPT or len(vacated) > 1:
                raise InvalidArgument(f"state of app {app!r}: runs that would be forgotten")
        self._vacated = next(iter(vacated), None)

    def stage(self, label: ChunkLabel, records: int, entry: Entry, age: int) -> None:
        """Add the next chunk of an attempt."""
        published = self._apps.get(label.app)
        check(
            published is None or published.batch_id < label.batch_id,
            f"entry {entry.index} stages for a batch of {label.app!r} that is published",
        )
        known = self.attempts.get(label.app, label.batch_id, label.partition, label.attempt)
        number = known.chunk_count if known is not None else 0
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
            self.attempts.put(known.extended(chunk, age))

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
        gone = self.attempts.up_to_batch(app, batch_id)
        if gone:
            self._remove(app, gone)
        published = App(
            app, batch_id, digest, entry.base_offset, entry.count, entry.index, entry.term, age,
            once,
        )  # fmt: skip
        self.put_app(published)
        self._trim_runs(app)

    def _published(self, app: str, batch_id: int, rows: bytes, entry: Entry) -> list[Attempt]:
        """The attempts whose chunks make up ``rows``, one attempt after the other, each whole."""
        found: list[Attempt] = []
        place = 0
        while place < len(rows):
            attempt = self.attempts.begun_with(app, _INDEX.unpack_from(rows, place)[0])
            end = place + attempt.chunk_count * CHUNK_BYTES if attempt is not None else place
            if attempt is None or attempt.batch_id != batch_id or attempt.rows != rows[place:end]:
                strange = chunk_at(memoryview(rows), place // CHUNK_BYTES)
                raise InvariantBroken(
                    f"entry {entry.index} publishes {strange}, which is not what is staged"
                )
            found.append(attempt)
            place = end
        partitions = {attempt.partition for attempt in found}
        runs = {attempt.run for attempt in found}
        check(
            len(partitions) == len(found) and len(runs) <= 1,
            f"entry {entry.index} publishes two attempts at a partition, or those of two runs",
        )
        return found

    def drop(self, reason: DropReason, firsts: tuple[int, ...], entry: Entry) -> None:
        """Drop the staged chunks of these attempts."""
        gone = self.attempts.by_app(firsts)
        check(
            sum(map(len, gone.values())) == len(firsts),
            f"entry {entry.index} drops an attempt that is not there",
        )
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
