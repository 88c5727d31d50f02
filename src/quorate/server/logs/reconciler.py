"""The steps that bring a node's logs in line with the catalog. Pure: no files, no loop.

The reconciler compares the manifest with the catalog's table and names the next step; its caller
carries out the step and reports the result. Logs are opened side by side, because one of them may
take long; all other steps are carried out one after another. Each step may be repeated, because a
crash forgets that it was done:

- A log is made only by a table that is at least as new as the manifest. An older table still has
  logs that were deleted here in an earlier run.
- A log is deleted only because a record of the catalog says so, never because a table lacks it.
- The manifest says that a log is made before its replica opens, and that it is being deleted
  before its first file is removed.
- No step is named for a log that is being opened, not even if it is deleted meanwhile: the step
  would touch files that the opening uses.
- A step with a temporary failure (no space, too many files) is put off. The others go on.

A step costs the same however many logs wait: each log is looked at when its state changes, and then
waits in the list of its next step.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.manifest import LogLife, LogState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from quorate.server.logs.catalog import Catalog, Change, LogFacts
    from quorate.storage.manifest import Manifest
    from quorate.types import NodeId

__all__ = ["Late", "Make", "Open", "Reconciler", "Remove", "Retire", "Step"]


class Make(NamedTuple):
    """Make the directory, record the log as made. Its opening is the next step."""

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


class Late(NamedTuple):
    """A log that is not here for now, and the reason."""

    name: str
    why: str


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
        # Those of them with a changed state: their next step is not known.
        self._changed = dict.fromkeys(self._todo)
        # Those of them with a known next step, in one list each; or with none, because the table is
        # too old to decide.
        self._to_open: dict[int, None] = {}
        self._to_retire: dict[int, None] = {}
        self._to_remove: dict[int, None] = {}
        self._to_make: dict[int, None] = {}
        self._undecided: dict[int, None] = {}
        # Logs that are being opened, each with that number and its name. Only a deletion puts one
        # of them into ``_todo``.
        self._opening: dict[int, tuple[int, str]] = {}
        # Logs that a record deleted and that are not removed yet.
        self._doomed = {log for log in self._todo if catalog.is_gone(log)}
        # Logs that are not here for now.
        self.late: dict[int, Late] = {}
        # Logs with a failed step: they are not tried again before :meth:`retry`.
        self._put_off: dict[int, None] = {}
        # Logs that cannot be made or opened because there are no files for them: they are not tried
        # again before :meth:`admit`.
        self._without_files: dict[int, None] = {}
        # Retired logs with a folder that cannot be removed until an operator has cleared it.
        self._obstructed: set[int] = set()
        # Logs with a failed step whose failure was reported before.
        self._told: set[int] = set()
        # Logs with a change that could not be saved. The change may be on disk all the same: the
        # save of another change takes along the manifest's content of that moment.
        self.may_be_recorded: set[int] = set()

    # -- next steps ----------------------------------------------------------------------------

    def take(self, change: Change) -> None:
        """Take the effect of the newest record of the table."""
        incarnation = change.log.incarnation
        if self._node not in change.log.nodes or (change.made and incarnation in self._opening):
            return
        if change.made and self._is_put_off(incarnation):
            return
        self._look_again(incarnation, self._catalog.applied - 1)
        if not change.made:
            self._doomed.add(incarnation)
            self.late.pop(incarnation, None)

    def openings(self) -> list[Open]:
        """The logs to open now. Each is being opened until :meth:`opened` or :meth:`put_off` is
        called with its step. A start needs no catalog for them: the manifest has them as made."""
        self._look()
        steps = [Open(one, self._manifest.logs[one]) for one in self._to_open]
        self._to_open.clear()
        for step in steps:
            number = self._todo.pop(step.incarnation)
            self._opening[step.incarnation] = number, step.log.name
        return steps

    def next(self) -> Make | Retire | Remove | None:
        """The step to carry out now; None if there is none until the state changes. Deletions come
        first: they free the space that a new log needs. Logs that are to be opened are left to
        :meth:`openings`."""
        self._look()
        if self._to_retire:
            return Retire(tuple(self._to_retire))
        for incarnation in self._to_remove:
            return Remove(incarnation)
        for incarnation in self._to_make:
            facts = self._catalog.find(incarnation)
            assert facts is not None  # a record that deletes it has it looked at again
            self._directories.add(incarnation)
            return Make(facts)
        return None

    def _look(self) -> None:
        """Find the next step of each log whose state changed."""
        if self._undecided and self._catalog.applied >= self._manifest.applied:
            self._changed.update(self._undecided)
            self._undecided.clear()
        changed, self._changed = self._changed, {}
        for incarnation in changed:
            if incarnation in self._opening:
                continue  # its next step comes when the opening has ended
            waiting = self._list_of(incarnation)
            if waiting is None:
                self._settle(incarnation)
            else:
                waiting[incarnation] = None

    def _list_of(self, incarnation: int) -> dict[int, None] | None:
        """The list of a log's next step; None if there is nothing to do."""
        if self._is_made(incarnation):
            if incarnation in self._doomed:
                return self._to_retire
            return None if self._is_open(incarnation) else self._to_open
        if not self._may_decide(incarnation):
            return self._undecided
        life, facts = self._manifest.logs.get(incarnation), self._catalog.find(incarnation)
        if life is None and facts is not None and self._node in facts.nodes:
            return self._to_make
        there = life is not None or incarnation in self._directories
        return self._to_remove if there else None

    def _look_again(self, incarnation: int, number: int) -> None:
        """Have a log looked at, whatever it waited for. Record ``number`` asks for that, unless an
        earlier one did."""
        self._todo.setdefault(incarnation, number)
        self._leave_lists(incarnation)
        self._changed[incarnation] = None

    def _leave_lists(self, incarnation: int) -> None:
        for waiting in (
            self._changed, self._to_open, self._to_retire, self._to_remove, self._to_make,
            self._undecided, self._put_off, self._without_files,
        ):  # fmt: skip
            waiting.pop(incarnation, None)

    def _is_made(self, incarnation: int) -> bool:
        life = self._manifest.logs.get(incarnation)
        return life is not None and life.state is LogState.MADE

    def _may_decide(self, incarnation: int) -> bool:
        """True if the table is new enough to decide about a log."""
        return (
            incarnation in self._manifest.logs
            or incarnation in self._doomed
            or self._catalog.applied >= self._manifest.applied
        )

    def _is_put_off(self, incarnation: int) -> bool:
        return incarnation in self._put_off or incarnation in self._without_files

    def _settle(self, incarnation: int) -> None:
        del self._todo[incarnation]
        self._doomed.discard(incarnation)
        self.late.pop(incarnation, None)
        self._told.discard(incarnation)
        self._obstructed.discard(incarnation)

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
            self.may_be_recorded.update(lives)
            raise
        self.may_be_recorded.difference_update(lives)
        for incarnation in lives:
            if incarnation in self._todo:
                self._look_again(incarnation, self._todo[incarnation])

    def _write(self, lives: Mapping[int, LogLife | None]) -> None:
        for incarnation, life in lives.items():
            if life is None:
                self._manifest.logs.pop(incarnation, None)
            else:
                self._manifest.logs[incarnation] = life

    def removed(self, incarnation: int) -> None:
        """Record that the directory of a log is removed."""
        self._directories.discard(incarnation)
        self._look_again(incarnation, self._todo[incarnation])

    def opened(self, step: Open) -> None:
        """Record that a log is open, or down for good: it needs no step, unless it was deleted
        meanwhile."""
        number, _ = self._opening.pop(step.incarnation)
        self.late.pop(step.incarnation, None)
        self._told.discard(step.incarnation)
        if step.incarnation in self._todo:
            self._look_again(step.incarnation, number)

    def put_off(
        self, step: Step, why: str, *, obstructed: bool = False, lacks_files: bool = False
    ) -> list[int]:
        """Put off a step that failed and may succeed later. Returns the logs whose failure was not
        reported before. ``obstructed`` tells that only an operator can remove the reason,
        ``lacks_files`` that other logs have all files that logs may take."""
        if obstructed:
            self._obstructed.update(step.incarnations)
        if isinstance(step, Open):
            number, _ = self._opening.pop(step.incarnation)
            self._look_again(step.incarnation, number)
            if step.incarnation in self._doomed:
                return []  # it need not be opened any more: its deletion is next
        waiting = self._without_files if lacks_files else self._put_off
        for incarnation in step.incarnations:
            self._leave_lists(incarnation)
            waiting[incarnation] = None
        if isinstance(step, Make | Open):
            # A log that was deleted meanwhile is not late: it is to be removed.
            late = [one for one in step.incarnations if one not in self._doomed]
            self.late.update(dict.fromkeys(late, Late(step.log.name, why)))
        news = [one for one in step.incarnations if one not in self._told]
        self._told.update(news)
        return news

    def retry(self) -> None:
        """Allow the steps that were put off to be tried again, after a pause; but for those that
        lack files."""
        self._changed.update(self._put_off)
        self._put_off.clear()

    def admit(self, logs: int) -> None:
        """Allow so many logs to be tried again that lacked files: all others would only be put off
        once more."""
        for incarnation in [*islice(self._without_files, logs)]:
            del self._without_files[incarnation]
            self._changed[incarnation] = None

    # -- progress ------------------------------------------------------------------------------

    @property
    def carried(self) -> int:
        """The number of catalog records that are carried out here. A late log does not hold it
        back, nor does one that is being opened: other logs are deleted meanwhile, and a client that
        waits for a deletion must not wait for disk space or a long opening. Nor does a log that is
        retired and has a folder that cannot be removed: that may last for ever."""
        passed = self.late.keys() | self._obstructed
        waiting = [number for one, number in self._todo.items() if one not in passed]
        return min(waiting, default=self._catalog.applied)

    @property
    def deletions_done(self) -> bool:
        """True if the manifest has each deletion of the table. Only then may the table be saved: a
        start does not see the records in it again."""
        return self._doomed <= self._obstructed

    @property
    def puts_off(self) -> bool:
        """True if a step waits for :meth:`retry` or :meth:`admit`."""
        return bool(self._put_off or self._without_files)

    @property
    def opening(self) -> list[str]:
        """The names of the logs that are being opened."""
        return [name for _, name in self._opening.values()]

    @property
    def opens_any(self) -> bool:
        return bool(self._opening)

    def is_opening(self, incarnation: int) -> bool:
        return incarnation in self._opening

    def why_late(self, incarnation: int) -> str | None:
        """The reason why a log is not here although it should be; None if no step failed."""
        late = self.late.get(incarnation)
        return late.why if late is not None else None
