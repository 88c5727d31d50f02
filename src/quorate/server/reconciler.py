"""The steps that bring a node's logs in line with the catalog. Pure: no files, no loop.

The reconciler compares the manifest with the catalog's table and names the next step; its caller
carries out the step and reports the result. Each step may be repeated, because a crash forgets that
it was done:

- A log is made only by a table that is at least as new as the manifest. An older table still has
  logs that were deleted here in an earlier run.
- A log is deleted only because a record of the catalog says so, never because a table lacks it.
- The manifest says that a log is made before its replica opens, and that it is being deleted
  before its first file is removed.
- A step with a temporary failure (no space, too many files) is put off. The others go on.
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
    """Close these replicas, free the space that they allocated ahead, record them as being deleted.

    They are retired together: on a full disk, the manifest finds its space where they were.
    """

    incarnations: tuple[int, ...]


class Remove(NamedTuple):
    """Remove the directory, and remove the log from the manifest."""

    incarnation: int

    @property
    def incarnations(self) -> tuple[int, ...]:
        return (self.incarnation,)


Step = Make | Open | Retire | Remove


class Reconciler:
    """The logs of one node: their present state and the state that the catalog asks for."""

    def __init__(
        self,
        node: NodeId,
        manifest: Manifest,
        catalog: Catalog,
        directories: Iterable[int],
        is_open: Callable[[int], bool],
        own: int,
    ) -> None:
        """``directories`` are the log directories that exist. ``is_open`` tells whether a log's
        replica is open, or was open and halted. ``own`` is the catalog's incarnation: it is no log
        of a user, and always exists."""
        self._node = node
        self._manifest = manifest
        self._catalog = catalog
        self._is_open = is_open
        # Log directories that exist, or may exist.
        self._directories = {*directories} - {own}
        # Logs to examine, each with the number of the record that asks for it.
        logs = {*manifest.logs, *self._directories, *(log.incarnation for log in catalog.logs)}
        self._todo = dict.fromkeys(sorted(logs - {own}), 0)
        # Logs that a record deleted and that are not removed yet.
        self._doomed = {log for log in self._todo if catalog.is_gone(log)}
        # Logs that are not here for now, with the reason.
        self._late: dict[int, str] = {}
        # Logs with a failed step: they are not tried again before :meth:`retry`.
        self._put_off: set[int] = set()
        # The logs of these whose failure was reported before.
        self._told: set[int] = set()
        # Logs with a change that could not be saved. The change may be on disk all the same: the
        # save of another change takes along the manifest's content of that moment.
        self.in_doubt: set[int] = set()

    # -- next steps ----------------------------------------------------------------------------

    def take(self, change: Change) -> None:
        """Take the effect of the newest record of the table."""
        incarnation = change.log.incarnation
        if self._node not in change.log.nodes:
            return
        self._todo.setdefault(incarnation, self._catalog.applied - 1)
        if not change.made:
            self._doomed.add(incarnation)
            self._late.pop(incarnation, None)
            self._put_off.discard(incarnation)

    def next(self) -> Step | None:
        """The step to carry out now; None if there is none until the state changes."""
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
        """The steps that a start can take before the catalog is read: for logs that are made or
        half deleted."""
        steps = [self._step(incarnation) for incarnation in self._todo if self._knows(incarnation)]
        return [step for step in steps if step is not None]

    def _knows(self, incarnation: int) -> bool:
        return incarnation in self._manifest.logs

    def _may_decide(self, incarnation: int) -> bool:
        """True if the table is new enough to decide about a log."""
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

    # -- results of steps ----------------------------------------------------------------------

    @contextmanager
    def recorded(self, lives: Mapping[int, LogLife | None]) -> Iterator[None]:
        """A context with these logs changed in the manifest, which is saved within it. If the save
        fails with OSError, the logs are as before: no step may rest on a change that is not
        durable.

        ``applied`` of the manifest is not taken back: the save of a concurrent change may have made
        it durable. It is true all the same, because the table is at least as new.
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
        """Record that the directory of a log is removed."""
        self._directories.discard(incarnation)

    def put_off(self, step: Step, why: str) -> list[int]:
        """Put off a step that failed and may succeed later. Returns the logs whose failure was not
        reported before."""
        self._put_off.update(step.incarnations)
        if isinstance(step, Make | Open):
            # A log that was deleted meanwhile is not late: it is to be removed.
            late = [one for one in step.incarnations if one not in self._doomed]
            self._late.update(dict.fromkeys(late, why))
        news = [one for one in step.incarnations if one not in self._told]
        self._told.update(news)
        return news

    def retry(self) -> None:
        """Allow the steps that were put off to be tried again, after a pause."""
        self._put_off.clear()

    # -- progress ------------------------------------------------------------------------------

    @property
    def carried(self) -> int:
        """The number of catalog records that are carried out here. A late log does not hold it
        back: other logs are deleted meanwhile, and a client that waits for a deletion must not wait
        for disk space."""
        waiting = [number for one, number in self._todo.items() if one not in self._late]
        return min(waiting, default=self._catalog.applied)

    @property
    def deletions_done(self) -> bool:
        """True if the manifest has each deletion of the table. Only then may the table be saved: a
        start does not see the records in it again."""
        return not self._doomed

    def why_late(self, incarnation: int) -> str | None:
        """The reason why a log is not here although it should be; None if no step failed."""
        return self._late.get(incarnation)
