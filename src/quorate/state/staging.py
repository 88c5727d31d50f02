"""What a log remembers of chunks that nobody sees yet, and of what each app published last.

A stage entry adds a chunk to its attempt, a publish entry gives offsets to whole attempts. Nothing
is forgotten but by an entry. The table has a digest like that of the producers: a sum of hashes,
whatever the order of changes was.
"""

from __future__ import annotations

import struct
from functools import reduce
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import Chunk
from quorate.errors import InvariantBroken, check
from quorate.state.operations import FORGOTTEN_MAX
from quorate.state.producers import hash_item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.entry import Entry
    from quorate.state.labels import Label, Publication
    from quorate.types import Index, Term

__all__ = ["App", "Attempt", "Staging", "attempt_of"]

# What is hashed begins with its sort; the state, producers and runs are 0 to 2.
_ATTEMPT_ITEM, _CHUNK_ITEM, _APP_ITEM = 3, 4, 5
_ATTEMPT = struct.Struct("<BQQIQ16s16sQ")
_CHUNK = struct.Struct("<BQQII")
_APP = struct.Struct("<BQQQQQQ32sB")

# Chunks of an attempt are kept in blocks of so many: one more copies a block, not all of them.
BLOCK = 256

# app, batch id, partition, attempt
_Key = tuple[str, int, int, bytes]


class Attempt(NamedTuple):
    """What one try to write a partition has staged. Never changed: replaced by what it becomes."""

    app: str
    run: bytes
    batch_id: int
    partition: int
    # Drawn by whoever tries.
    id: bytes
    # Its chunks in the order of their numbers, which is that of the log; at least one. All blocks
    # but the last have BLOCK of them.
    blocks: tuple[tuple[Chunk, ...], ...]
    # How old the log was with the newest chunk.
    active_us: int
    # Of all its chunks together.
    records: int
    size: int
    # A hash of all its chunks, each with the one of those before it: what drops them need not look
    # at each.
    chain: int

    @property
    def first(self) -> int:
        """The index of its first chunk: its name in entries that drop it."""
        return self.blocks[0][0].index

    @property
    def number(self) -> int:
        """How many chunks it has: the number of the next."""
        return BLOCK * (len(self.blocks) - 1) + len(self.blocks[-1])

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(chain.from_iterable(self.blocks))

    def chunk(self, number: int) -> Chunk:
        return self.blocks[number // BLOCK][number % BLOCK]

    @property
    def key(self) -> _Key:
        return self.app, self.batch_id, self.partition, self.id

    def extended(self, chunk: Chunk, active_us: int) -> Attempt:
        """With one chunk more."""
        *whole, last = self.blocks
        added = ((*last, chunk),) if len(last) < BLOCK else (last, (chunk,))
        return self._replace(
            blocks=(*whole, *added),
            active_us=active_us,
            records=self.records + chunk.records,
            size=self.size + chunk.size,
            chain=_chained(self.chain, chunk),
        )


class App(NamedTuple):
    """What an app published last, as its receipt said."""

    name: str
    batch_id: int
    digest: bytes
    offset: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    # Of the publish entry.
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    term: Term
    # How old the log was with that entry.
    active_us: int
    # Nobody will ever stage for it again, so it is remembered only for as long as that publish may
    # be repeated.
    once: bool = False


def attempt_of(key: _Key, run: bytes, chunks: Sequence[Chunk], active_us: int) -> Attempt:
    """With these chunks, at least one."""
    app, batch_id, partition, attempt = key
    records, size = sum(chunk.records for chunk in chunks), sum(chunk.size for chunk in chunks)
    chained = reduce(_chained, chunks, 0)
    blocks = tuple(tuple(chunks[start : start + BLOCK]) for start in range(0, len(chunks), BLOCK))
    return Attempt(
        app, run, batch_id, partition, attempt, blocks, active_us, records, size, chained
    )


def _chained(before: int, chunk: Chunk) -> int:
    return hash_item(_CHUNK.pack(_CHUNK_ITEM, before, *chunk))


def _hash_attempt(attempt: Attempt) -> int:
    """Its chunks are in there with their chain."""
    fields = _ATTEMPT.pack(
        _ATTEMPT_ITEM, attempt.first, attempt.batch_id, attempt.partition, attempt.active_us,
        attempt.run, attempt.id, attempt.chain,
    )  # fmt: skip
    return hash_item(fields + attempt.app.encode())


def _hash_app(app: App) -> int:
    name, batch_id, digest, offset, count, index, term, active_us, once = app
    fields = _APP.pack(_APP_ITEM, batch_id, offset, count, index, term, active_us, digest, once)
    return hash_item(fields + name.encode())


class Staging:
    """All attempts and apps of one log. Every change is made as a whole, or raises and changes
    nothing."""

    __slots__ = ("_apps", "_attempts", "_digest", "_firsts", "_stagers", "bytes", "chunks")

    def __init__(self) -> None:
        # In rising order of first: a new attempt is the newest, and a change keeps its place.
        self._attempts: dict[int, Attempt] = {}
        # The first chunk of each attempt, by what names the attempt outside of the log.
        self._firsts: dict[_Key, int] = {}
        self._apps: dict[str, App] = {}
        # How many attempts each app has; none has 0.
        self._stagers: dict[str, int] = {}
        # The sum of the hashes of all attempts and apps.
        self._digest = 0
        # Frames of staged chunks, and how many there are.
        self.bytes = 0
        self.chunks = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Staging)
            and self._attempts == other._attempts
            and self._apps == other._apps
        )

    def copy(self) -> Staging:
        """Another table with the same contents; what it shares never changes."""
        other = Staging()
        other._attempts, other._firsts = self._attempts.copy(), self._firsts.copy()
        other._apps, other._stagers = self._apps.copy(), self._stagers.copy()
        other._digest, other.bytes, other.chunks = self._digest, self.bytes, self.chunks
        return other

    def digest(self) -> int:
        return self._digest

    # -- what is there -------------------------------------------------------------------------

    def attempts(self) -> Iterator[Attempt]:
        """In the order of their first chunks."""
        return iter(self._attempts.values())

    def apps(self) -> list[App]:
        """In the order of their last publishes."""
        return sorted(self._apps.values(), key=lambda app: app.index)

    def app(self, name: str) -> App | None:
        """What ``name`` published last; None if nothing that is remembered."""
        return self._apps.get(name)

    def attempt(self, app: str, batch_id: int, partition: int, attempt: bytes) -> Attempt | None:
        first = self._firsts.get((app, batch_id, partition, attempt))
        return None if first is None else self._attempts[first]

    def knows(self, app: str) -> bool:
        """Whether ``app`` has published or staged something that is remembered."""
        return app in self._apps or app in self._stagers

    @property
    def crowd(self) -> int:
        """How many apps there are that have."""
        return len(self._apps.keys() | self._stagers.keys())

    def of_batch(self, app: str, batch_id: int, attempt: bytes | None) -> tuple[int, ...]:
        """The attempts at a batch, or the one that has this id."""
        return tuple(
            first
            for first, one in self._attempts.items()
            if (one.app, one.batch_id) == (app, batch_id) and attempt in (None, one.id)
        )

    def older_runs(self, app: str, run: bytes) -> tuple[int, ...]:
        """The attempts of runs of ``app`` that began to stage before ``run`` did."""
        own = [one for one in self.attempts() if one.app == app]
        older = {one.run for one in takewhile(lambda one: one.run != run, own)}
        return tuple(one.first for one in own if one.run in older)

    def expired(self, age: int, expiry_us: int) -> tuple[int, ...]:
        """The attempts to which nothing was added for ``expiry_us``: as many as may go at once."""
        found = (first for first, one in self._attempts.items() if age - one.active_us >= expiry_us)
        return tuple(islice(found, FORGOTTEN_MAX))

    def idle_others(self, app: str, run: bytes, age: int, idle_us: int) -> tuple[int, ...]:
        """The same for ``idle_us``, but for those of this very run."""
        found = (
            first
            for first, one in self._attempts.items()
            if age - one.active_us >= idle_us and (one.app, one.run) != (app, run)
        )
        return tuple(islice(found, FORGOTTEN_MAX))

    def idle_apps(self, age: int, expiry_us: int, once_expiry_us: int) -> tuple[int, ...]:
        """The last publishes of apps that have published nothing for ``expiry_us``, or for
        ``once_expiry_us`` if that was their only one, and have nothing staged: as many as may go at
        once."""
        found = [
            app.index
            for app in self.apps()
            if age - app.active_us >= (once_expiry_us if app.once else expiry_us)
            and app.name not in self._stagers
        ]
        return tuple(found[:FORGOTTEN_MAX])

    # -- changes -------------------------------------------------------------------------------

    def add(self, attempt: Attempt) -> None:
        """An attempt that begins after all others and has a key that nobody has."""
        self._attempts[attempt.first] = attempt
        self._firsts[attempt.key] = attempt.first
        self._stagers[attempt.app] = self._stagers.get(attempt.app, 0) + 1
        self._digest += _hash_attempt(attempt)
        self.bytes += attempt.size
        self.chunks += attempt.number

    def _remove(self, attempt: Attempt) -> None:
        del self._attempts[attempt.first]
        del self._firsts[attempt.key]
        self._stagers[attempt.app] -= 1
        if not self._stagers[attempt.app]:
            del self._stagers[attempt.app]
        self._digest -= _hash_attempt(attempt)
        self.bytes -= attempt.size
        self.chunks -= attempt.number

    def put_app(self, app: App) -> None:
        """In place of what the app had published before."""
        before = self._apps.get(app.name)
        if before is not None:
            self._digest -= _hash_app(before)
        self._apps[app.name] = app
        self._digest += _hash_app(app)

    def stage(self, label: Label, records: int, entry: Entry, age: int) -> None:
        """The next chunk of its attempt."""
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
            key = label.app, label.batch_id, label.partition, label.attempt
            self.add(attempt_of(key, label.run, (chunk,), age))
        else:
            after = known.extended(chunk, age)
            self._attempts[known.first] = after
            self._digest += _hash_attempt(after) - _hash_attempt(known)
            self.bytes += chunk.size
            self.chunks += 1

    def publish(
        self, publication: Publication, chunks: list[Chunk], entry: Entry, age: int
    ) -> None:
        """Whole attempts at one batch become visible; all others up to that batch are dropped."""
        app, batch_id, digest, once = publication
        before = self._apps.get(app)
        check(
            before is None or before.batch_id < batch_id,
            f"entry {entry.index} publishes batch {batch_id} of {app!r} again",
        )
        found = self._published(app, batch_id, chunks, entry)
        check(
            sum(attempt.records for attempt in found) == entry.count,
            f"entry {entry.index} gives offsets to {entry.count} records, its chunks have others",
        )
        for attempt in [one for one in self.attempts() if one.app == app]:
            if attempt.batch_id <= batch_id:
                self._remove(attempt)
        published = App(
            app, batch_id, digest, entry.base_offset, entry.count, entry.index, entry.term, age,
            once,
        )  # fmt: skip
        self.put_app(published)

    def _published(
        self, app: str, batch_id: int, chunks: list[Chunk], entry: Entry
    ) -> list[Attempt]:
        """The attempts that ``chunks`` are, one after the other, each of them whole."""
        found: list[Attempt] = []
        place = 0
        while place < len(chunks):
            attempt = self._attempts.get(chunks[place].index)
            if (
                attempt is None
                or (attempt.app, attempt.batch_id) != (app, batch_id)
                or attempt.chunks != tuple(chunks[place : place + attempt.number])
            ):
                raise InvariantBroken(
                    f"entry {entry.index} publishes {chunks[place]}, which is not what is staged"
                )
            found.append(attempt)
            place += attempt.number
        partitions = {attempt.partition for attempt in found}
        runs = {attempt.run for attempt in found}
        check(
            len(partitions) == len(found) and len(runs) <= 1,
            f"entry {entry.index} publishes two attempts at a partition, or those of two runs",
        )
        return found

    def drop(self, firsts: tuple[int, ...], entry: Entry) -> None:
        """Forget what these attempts have staged."""
        check(
            self._attempts.keys() >= set(firsts),
            f"entry {entry.index} drops an attempt that is not there",
        )
        for first in firsts:
            self._remove(self._attempts[first])

    def forget(self, publishes: tuple[int, ...], entry: Entry) -> None:
        """Forget the apps that published last with these entries."""
        named = set(publishes)
        gone = [app for app in self._apps.values() if app.index in named]
        check(
            len(gone) == len(named),
            f"entry {entry.index} forgets an app that is not there",
        )
        for app in gone:
            del self._apps[app.name]
            self._digest -= _hash_app(app)
