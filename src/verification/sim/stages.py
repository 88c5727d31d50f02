"""The staged and published state after the committed entries, worked out apart from the replicas.

A second, plain account: a table of the staged chunks and publishes after every index, made anew
with every change, so that an answer can be compared with the state between its request and itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry_body import decode_label, decode_publication, unpack_batches, unpack_chunks
from quorate.state.operations import DropReason, DropStaged, ForgetApps, decode_operation
from quorate.state.state import AGE_STEP_US
from quorate.state.succession import RUNS_KEPT
from quorate.types import EntryKind
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.commands import Abort, ChunkLabel, ChunkStaged, Publish, Receipt
    from quorate.config import Limits, Timing
    from quorate.entry import Entry

__all__ = ["Stages"]


class _Piece(NamedTuple):
    """A chunk in the log."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    records: int
    size: int
    # The age of the log at this entry.
    age: int
    # The bytes of the batch, which no two chunks of different labels share.
    batch: bytes


class _Key(NamedTuple):
    """The key of an attempt, as its chunks name it."""

    app: str
    run: bytes
    batch_id: int
    partition: int
    attempt: bytes


class _Done(NamedTuple):
    """The last publish of an app."""

    batch_id: int
    digest: bytes
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    # The age of the log at this entry.
    age: int
    once: bool


class _StagingTable(NamedTuple):
    """The state after some index. A table never changes."""

    # The attempts, in the order of their first chunks.
    attempts: dict[_Key, tuple[_Piece, ...]]
    apps: dict[str, _Done]
    # All runs that are remembered, with their apps, in the order in which they began to stage.
    begun: tuple[tuple[str, bytes], ...]

    def pieces(self, app: str, batch_id: int, partition: int, attempt: bytes) -> tuple[_Piece, ...]:
        found = (
            pieces
            for key, pieces in self.attempts.items()
            if (key.app, *key[2:]) == (app, batch_id, partition, attempt)
        )
        return next(found, ())

    def runs(self, app: str) -> list[bytes]:
        """The runs of an app, oldest first."""
        return [run for name, run in self.begun if name == app]

    def older_runs(self, app: str, run: bytes) -> set[bytes]:
        """The older runs of an app that have chunks staged."""
        runs = self.runs(app)
        staged = {key.run for key in self.attempts if key.app == app}
        return staged.intersection(runs[: runs.index(run)] if run in runs else runs)

    def is_newer(self, app: str, run: bytes, other: bytes) -> bool:
        """Whether ``run`` is newer than ``other``, which is known: it began later, or is not known
        to have begun."""
        runs = self.runs(app)
        return run not in runs or runs.index(run) > runs.index(other)


class _Room(NamedTuple):
    """A drop of older runs for a newer one."""

    app: str
    term: int
    # The newest of the runs that were dropped.
    run: bytes


class Stages:
    """The account of a run; it grows with every entry that is applied for the first time at any
    node."""

    def __init__(self, timing: Timing) -> None:
        self._staged_expiry_us = 1000 * timing.staged_expiry_ms
        self._staged_idle_us = 1000 * timing.staged_idle_ms
        self._app_expiry_us = 1000 * timing.app_expiry_ms
        self._once_expiry_us = 1000 * timing.once_expiry_ms
        # The age of the log, and its append time: neither leap nor standstill ages it by more than
        # a step.
        self.age = 0
        self._append_time = 0
        # The apps that published once and for all, remembered or not.
        self._through: set[str] = set()
        # The table after each index.
        self._tables = [_StagingTable({}, {}, ())]
        # The app that lost all chunks to a newer run which has not staged yet: until it has, the
        # runs of this one app are remembered although it has neither chunks nor a publish.
        self._vacated: str | None = None
        # Set if the entry before dropped older runs to make room.
        self._room: _Room | None = None
        # The requests of clients: the batch of each chunk, publishes by app and batch, aborts.
        self._chunks: dict[ChunkLabel, tuple[bytes, int]] = {}
        self._publishes: dict[tuple[str, int], list[Publish]] = {}
        self._aborts: set[Abort] = set()
        # The reason for which the last entry dropped chunks; None if it dropped none.
        self.dropped: str | None = None

    # -- requests ------------------------------------------------------------------------------

    def ask_stage(self, label: ChunkLabel, batch: bytes, records: int) -> None:
        self._chunks[label] = batch, records

    def ask_publish(self, publish: Publish) -> None:
        self._publishes.setdefault((publish.app, publish.batch_id), []).append(publish)

    def ask_abort(self, abort: Abort) -> None:
        self._aborts.add(abort)

    # -- entries -------------------------------------------------------------------------------

    def apply(self, entry: Entry, fence: str | None) -> int:
        """Apply ``entry``; return the number of its offsets. ``fence`` is the one before the
        entry."""
        table = self._tables[-1]
        self.dropped = None
        self.age += min(entry.append_time - self._append_time, AGE_STEP_US)
        self._append_time = entry.append_time
        room, self._room = self._room, None
        taken = 0
        if entry.kind is EntryKind.PUBLISH:
            table = self._publish(table, entry, fence)
            taken = entry.count
        elif entry.kind is EntryKind.STAGE and entry.runs:
            table = self._stage(table, entry, room)
        elif entry.kind is EntryKind.STAGE:
            table = self._drop(table, entry)
        self._tables.append(self._remembered(table))
        return taken

    def _remembered(self, table: _StagingTable) -> _StagingTable:
        """The table without the runs that are forgotten: all of an app that has no chunks and no
        publish, and of any other app the oldest ones that have no chunks."""
        staged = {(key.app, key.run) for key in table.attempts}
        known = {*table.apps, *(app for app, _ in staged)}
        if self._vacated in known:
            self._vacated = None
        spare: Counter[str] = Counter()
        kept: list[tuple[str, bytes]] = []
        for app, run in reversed(table.begun):
            spare[app] += (app, run) not in staged
            if (app, run) in staged or (
                (app in known or app == self._vacated) and spare[app] <= RUNS_KEPT
            ):
                kept.append((app, run))
        return table._replace(begun=tuple(reversed(kept)))

    def _stage(self, table: _StagingTable, entry: Entry, room: _Room | None) -> _StagingTable:
        label = decode_label(entry)
        ((batch, records),) = unpack_batches(entry)
        if self._chunks.get(label) != (batch, records):
            raise Violation("C2", f"{label} with {records} records was never sent like this")
        if entry.count:
            raise Violation("stage", f"entry {entry.index} stages and takes {entry.count} offsets")
        done = table.apps.get(label.app)
        if done is not None and done.batch_id >= label.batch_id:
            raise Violation("stage", f"{label} in entry {entry.index}, published up to {done}")
        key = _Key(label.app, label.run, label.batch_id, label.partition, label.attempt)
        known = table.attempts.get(key, ())
        if label.number != len(known):
            raise Violation("stage", f"{label} in entry {entry.index} after {len(known)} chunks")
        if room is not None and self._took_the_place(table, label, len(batch), entry, room):
            raise Violation("stage", f"{label} in entry {entry.index} took the place of {room}")
        piece = _Piece(entry.index, records, entry.size, self.age, batch)
        begun = (label.app, label.run)
        later = () if begun in table.begun else (begun,)
        return _StagingTable(
            {**table.attempts, key: (*known, piece)}, table.apps, (*table.begun, *later)
        )

    def _took_the_place(
        self, table: _StagingTable, label: ChunkLabel, size: int, entry: Entry, room: _Room
    ) -> bool:
        """Whether the entry before dropped chunks of a newer run for this chunk. If it dropped them
        for another chunk, that one was longer and is refused all the same."""
        app, term, run = room
        if (label.app, entry.term) != (app, term) or table.is_newer(app, label.run, run):
            return False
        return not any(
            one.app == app and table.is_newer(app, one.run, run) and len(batch) > size
            for one, (batch, _) in self._chunks.items()
        )

    def _publish(self, table: _StagingTable, entry: Entry, fence: str | None) -> _StagingTable:
        publication, _ = decode_publication(entry)
        chunks, _ = unpack_chunks(entry)
        app, batch_id, digest, once = publication
        done = table.apps.get(app)
        if done is not None and done.batch_id >= batch_id:
            raise Violation("C3", f"{publication} in entry {entry.index} again, after {done}")
        if app in self._through and entry.count:
            raise Violation("C3", f"{publication} in entry {entry.index}, and once before")
        named = [(chunk.index, chunk.records, chunk.size) for chunk in chunks]
        asked = [
            publish
            for publish in self._publishes.get((app, batch_id), [])
            if (publish.digest, publish.fence, publish.once) == (digest, fence, once)
            and [piece[:3] for piece in self._whole(table, publish) or ()] == named
            and publish.records == entry.count
        ]
        if not asked:
            raise Violation("C8", f"entry {entry.index} publishes {named}: no client asked for it")
        published = _Done(
            batch_id, digest, entry.base_offset, entry.count, entry.index, self.age, once
        )
        if once:
            self._through.add(app)
        left = {
            key: pieces
            for key, pieces in table.attempts.items()
            if key.app != app or key.batch_id > batch_id
        }
        return _StagingTable(left, {**table.apps, app: published}, table.begun)

    def _whole(self, table: _StagingTable, publish: Publish) -> list[_Piece] | None:
        """The chunks that ``publish`` names; None if one of them is missing."""
        found: list[_Piece] = []
        for partition, attempt, chunks, records in publish.parts:
            pieces = table.pieces(publish.app, publish.batch_id, partition, attempt)
            if (len(pieces), sum(piece.records for piece in pieces)) != (chunks, records):
                return None
            found += pieces
        return found

    def _drop(self, table: _StagingTable, entry: Entry) -> _StagingTable:
        operation = decode_operation(entry.kind, entry.body)
        if isinstance(operation, ForgetApps):
            return self._forget(table, operation, entry)
        if not isinstance(operation, DropStaged):
            raise Violation("stage", f"entry {entry.index}: {operation}")
        gone = {
            key: pieces
            for key, pieces in table.attempts.items()
            if pieces[0].index in operation.attempts
        }
        if len(gone) != len(operation.attempts):
            raise Violation("stage", f"{operation} in entry {entry.index}: not all are there")
        self.dropped = f"chunks {operation.reason.name.lower()}"
        left = {key: pieces for key, pieces in table.attempts.items() if key not in gone}
        for key, pieces in gone.items():
            if not self._may_go(operation.reason, key, pieces, entry, table, left):
                raise Violation("stage", f"{operation} in entry {entry.index} drops {key}")
        if operation.reason is DropReason.REPLACED:
            self._replace(table, gone, left, entry)
        return _StagingTable(left, table.apps, table.begun)

    def _replace(
        self,
        table: _StagingTable,
        gone: dict[_Key, tuple[_Piece, ...]],
        left: dict[_Key, tuple[_Piece, ...]],
        entry: Entry,
    ) -> None:
        """Apply the drop of older runs of one app, for which a newer run asked to get room."""
        app, *others = {key.app for key in gone}
        runs = table.runs(app)
        newest = max((key.run for key in gone if key.app == app), key=runs.index)
        asked = {label.run for label in self._chunks if label.app == app}
        if others or not any(table.is_newer(app, run, newest) for run in asked):
            raise Violation(
                "stage", f"entry {entry.index} drops {newest!r} of {app}, and no newer run asked"
            )
        self._room = _Room(app, entry.term, newest)
        if app not in table.apps and not any(key.app == app for key in left):
            self._vacated = app

    def _may_go(
        self,
        reason: DropReason,
        key: _Key,
        pieces: tuple[_Piece, ...],
        entry: Entry,
        table: _StagingTable,
        left: dict[_Key, tuple[_Piece, ...]],
    ) -> bool:
        if reason is DropReason.EXPIRED:
            return self.age - pieces[-1].age >= self._staged_expiry_us
        if reason is DropReason.IDLE:
            return self.age - pieces[-1].age >= self._staged_idle_us
        if reason is DropReason.REPLACED:
            # The drop takes a whole run at once, and every run that began before it.
            ours = {one.run for one in left if one.app == key.app}
            return all(run != key.run and table.is_newer(key.app, run, key.run) for run in ours)
        return any(
            (abort.app, abort.batch_id) == (key.app, key.batch_id)
            and abort.attempt in (None, key.attempt)
            for abort in self._aborts
        )

    def _forget(self, table: _StagingTable, operation: ForgetApps, entry: Entry) -> _StagingTable:
        self.dropped = "app forgotten"
        for name, done in table.apps.items():
            if done.index not in operation.publishes:
                continue
            expiry_us = self._once_expiry_us if done.once else self._app_expiry_us
            if self.age - done.age < expiry_us or any(key.app == name for key in table.attempts):
                raise Violation("stage", f"{operation} in entry {entry.index} forgets {name}")
            if done.once:
                self.dropped = "job forgotten"
        left = {
            name: done for name, done in table.apps.items() if done.index not in operation.publishes
        }
        return _StagingTable(table.attempts, left, table.begun)

    # -- answers -------------------------------------------------------------------------------

    def explains_staged(self, label: ChunkLabel, staged: ChunkStaged) -> bool:
        """Whether the entry that the answer names has the chunk, or published its batch."""
        if staged.index >= len(self._tables):
            return False
        table = self._tables[staged.index]
        if staged.published:
            done = table.apps.get(label.app)
            return done is not None and (
                done.index == staged.index and done.batch_id >= label.batch_id
            )
        pieces = table.pieces(label.app, label.batch_id, label.partition, label.attempt)
        return label.number < len(pieces) and pieces[label.number].index == staged.index

    def explains_receipt(self, publish: Publish, receipt: Receipt) -> bool:
        """Whether the batch was published there, with as many records and the same digest."""
        if receipt.index >= len(self._tables):
            return False
        done = self._tables[receipt.index].apps.get(publish.app)
        return done is not None and done[:5] == (
            publish.batch_id, publish.digest, receipt.offset, receipt.count, receipt.index
        ) and publish.records == receipt.count  # fmt: skip

    def explains_aborted(self, abort: Abort, index: int) -> bool:
        """Whether no chunk of the attempts was staged after that entry."""
        return index < len(self._tables) and not any(
            (key.app, key.batch_id) == (abort.app, abort.batch_id)
            and abort.attempt in (None, key.attempt)
            for key in self._tables[index].attempts
        )

    def explains_stage(
        self, code: str, label: ChunkLabel, size: int, limits: Limits, since: int
    ) -> bool:
        """Whether refusing a chunk was right after some index from ``since`` on."""
        return code == "STAGE_FULL" and any(
            self._full(table, label, size, limits) for table in self._tables[since:]
        )

    def _full(self, table: _StagingTable, label: ChunkLabel, size: int, limits: Limits) -> bool:
        if table.older_runs(label.app, label.run):
            return False
        pieces = [piece for pieces in table.attempts.values() for piece in pieces]
        return (
            sum(piece.size for piece in pieces) + size > limits.staged_bytes
            or len(pieces) >= limits.staged_chunks
            or self._crowded(table, label.app, limits)
        )

    def _crowded(self, table: _StagingTable, app: str, limits: Limits) -> bool:
        names = {*table.apps, *(key.app for key in table.attempts)}
        return app not in names and len(names) >= limits.apps

    def explains_publish(
        self, code: str, publish: Publish, limits: Limits, since: int, fences: list[str | None]
    ) -> bool:
        """Whether refusing a publish was right after some index from ``since`` on."""
        states = zip(self._tables[since:], fences[since:], strict=True)
        return any(code in self._refusals(table, fence, publish, limits) for table, fence in states)

    def _refusals(
        self, table: _StagingTable, fence: str | None, publish: Publish, limits: Limits
    ) -> set[str]:
        done = table.apps.get(publish.app)
        if done is not None and done.batch_id > publish.batch_id:
            return {"DUPLICATE"}
        if done is not None and done.batch_id == publish.batch_id:
            same = (done.digest, done.count) == (publish.digest, publish.records)
            return set() if same else {"REPLAY_MISMATCH"}
        if fence != publish.fence:
            return {"FENCED"}
        if self._whole(table, publish) is None:
            return {"STAGE_EXPIRED"}
        return {"STAGE_FULL"} if self._crowded(table, publish.app, limits) else set()
