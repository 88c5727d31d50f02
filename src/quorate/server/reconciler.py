"""What a node still has to do to have the logs that the catalog says. Pure: no files, no loop.

It compares the manifest with the catalog's table and names the next step; whoever carries the step
out tells what became of it. Each step may be done again, because a crash forgets that it was done:

- A log is made only by a table that is at least as new as the manifest. An older table still has
  logs that were deleted here in an earlier run.
- A log is deleted only because a record of the catalog says so, never because a table lacks it.
- The manifest says that a log is made before its replica opens, and that it is being deleted
  before its first file is removed.
- A step that fails for now (no room, no files) is put off. The others go on.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.manifest import LogLife, LogState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from quorate.server.catalog import Catalog, Change, LogFacts
    from quorate.storage.manifest import Manifest
    from quorate.types import NodeId

__all__ = ["Make", "Open", "Reconciler", "Remove", "Retire", "Step"]


class Make(NamedTuple):
    """Make the directory, record the log as made, open its replica."""

    log: LogFacts

    @property
    def incarnations(self) -> tuple[int, ...]:
        return (self.log.incarnation,)


class Open(NamedTuple):
    """Open the replica of a log that is made."""

    incarnation: int
    log: LogLife

    @property
    def incarnations(self) -> tuple[int, ...]:
        return (self.incarnation,)


class Retire(NamedTuple):
    """Close these replicas, give back the room that they took ahead, record them as being deleted.

    All at once: on a full disk the manifest finds its room where they were.
    """

    incarnations: tuple[int, ...]


class Remove(NamedTuple):
    """Remove the directory and forget the log."""

    incarnation: int

    @property
    def incarnations(self) -> tuple[int, ...]:
        return (self.incarnation,)


Step = Make | Open | Retire | Remove


class Reconciler:
    """The logs of one node: as they are, and as they are to be."""

    def __init__(
        self,
        node: NodeId,
        manifest: Manifest,
        catalog: Catalog,
        directories: Iterable[int],
        is_open: Callable[[int], bool],
        own: int,
    ) -> None:
        """``directories`` are there, ``is_open`` tells whether a replica is, or was and halted.
        ``own`` is the catalog's incarnation: it is no log of a user, and always there."""
        self._node = node
        self._manifest = manifest
        self._catalog = catalog
        self._is_open = is_open
        # Directories that are there, or may be.
        self._directories = {*directories} - {own}
        # Logs that are to be looked at, each with the number of the record because of which.
        logs = {*manifest.logs, *self._directories, *(log.incarnation for log in catalog.logs)}
        self._todo = dict.fromkeys(sorted(logs - {own}), 0)
        # Logs that a record deleted and that are not removed yet.
        self._doomed = {log for log in self._todo if catalog.is_gone(log)}
        # Logs that are not here for now, and why.
        self._late: dict[int, str] = {}
        # Logs of which a step failed: nothing is tried again before :meth:`retry`.
        self._put_off: set[int] = set()
        # Of those, the ones that were told before.
        self._told: set[int] = set()
        # Logs a change of which could not be saved. It may be on disk all the same: a change of
        # something else, saved behind it, takes along what the manifest says in between.
        self.in_doubt: set[int] = set()

    # -- what there is to do -------------------------------------------------------------------

    def take(self, change: Change) -> None:
        """The newest record of the table did that."""
        incarnation = change.log.incarnation
        if self._node not in change.log.nodes:
            return
        self._todo.setdefault(incarnation, self._catalog.applied - 1)
        if not change.made:
            self._doomed.add(incarnation)
            self._late.pop(incarnation, None)
            self._put_off.discard(incarnation)

    def next(self) -> Step | None:
        """The step to carry out now; None if there is none before something changes."""
        logs = self._manifest.logs
        open_for_step = [one for one in self._todo if one not in self._put_off]
        made = [one for one in open_for_step if one in logs and logs[one].state is LogState.MADE]
        if retiring := tuple(one for one in made if one in self._doomed):
            return Retire(retiring)
        for incarnation in open_for_step:
            if self._may_decide(incarnation):
                step = self._step(incarnation)
                if step is not None:
                    return step
                self._settle(incarnation)
        return None

    def first_steps(self) -> list[Step]:
        """What a start can do before the catalog is read: logs that are made, or half deleted."""
        steps = [self._step(incarnation) for incarnation in self._todo if self._knows(incarnation)]
        return [step for step in steps if step is not None]

    def _knows(self, incarnation: int) -> bool:
        return incarnation in self._manifest.logs

    def _may_decide(self, incarnation: int) -> bool:
        """Whether the table is new enough to say what becomes of a log."""
        return (
            self._knows(incarnation)
            or incarnation in self._doomed
            or self._catalog.applied >= self._manifest.applied
        )

    def _step(self, incarnation: int) -> Step | None:
        life, facts = self._manifest.logs.get(incarnation), self._catalog.find(incarnation)
        if life is not None and life.state is LogState.MADE:
            return None if self._is_open(incarnation) else Open(incarnation, life)
        if life is None and facts is not None and self._node in facts.nodes:
            self._directories.add(incarnation)
            return Make(facts)
        there = life is not None or incarnation in self._directories
        return Remove(incarnation) if there else None

    def _settle(self, incarnation: int) -> None:
        del self._todo[incarnation]
        self._doomed.discard(incarnation)
        self._late.pop(incarnation, None)
        self._told.discard(incarnation)

    # -- what became of it ---------------------------------------------------------------------

    @contextmanager
    def recorded(self, lives: Mapping[int, LogLife | None]) -> Iterator[None]:
        """The manifest with these logs changed, to be saved within. If that fails with OSError,
        they are as before: nothing may rest on what is not durable.

        How new the table was is not taken back: a change beside this one may have made it durable.
        It is true all the same, the table is at least as new.
        """
        manifest = self._manifest
        before = {key: manifest.logs.get(key) for key in lives}
        self._write(lives)
        manifest.applied = max(manifest.applied, self._catalog.applied)
        try:
            yield
        except OSError:
            self._write(before)
            self.in_doubt.update(lives)
            raise
        self.in_doubt.difference_update(lives)

    def _write(self, lives: Mapping[int, LogLife | None]) -> None:
        for incarnation, life in lives.items():
            if life is None:
                self._manifest.logs.pop(incarnation, None)
            else:
                self._manifest.logs[incarnation] = life

    def removed(self, incarnation: int) -> None:
        """Nothing is left of the directory."""
        self._directories.discard(incarnation)

    def put_off(self, step: Step, why: str) -> list[int]:
        """The step failed, and may succeed later. Of which logs that is news."""
        self._put_off.update(step.incarnations)
        if isinstance(step, Make | Open):
            # One that was deleted meanwhile is not late, it is to be removed.
            late = [one for one in step.incarnations if one not in self._doomed]
            self._late.update(dict.fromkeys(late, why))
        news = [one for one in step.incarnations if one not in self._told]
        self._told.update(news)
        return news

    def retry(self) -> None:
        """Time has passed: what was put off is tried again."""
        self._put_off.clear()

    # -- where it stands -----------------------------------------------------------------------

    @property
    def carried(self) -> int:
        """So many records are carried out here. A log that is late does not count: others are
        deleted meanwhile, and whoever waits for a deletion must not wait for room."""
        waiting = [number for one, number in self._todo.items() if one not in self._late]
        return min(waiting, default=self._catalog.applied)

    @property
    def deletions_done(self) -> bool:
        """Whether the manifest knows of every deletion in the table. Only then may the table be
        kept: what is folded into it is never told again."""
        return not self._doomed

    def why_late(self, incarnation: int) -> str | None:
        """Why a log is not here although it should be; None if nothing failed."""
        return self._late.get(incarnation)
