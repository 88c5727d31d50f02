"""The order in which the runs of each app began to stage. It is kept after their chunks are gone.

When staging is full, a run replaces older runs of its app. A run that is not known
counts as the newest. A late task of a replaced run must not replace the newer run in turn, so a run
stays known after all its chunks are gone.

A run is known from its first chunk on: the start of a driver leaves no entry in a log. So a late
task whose run has no chunk in the log yet replaces the live run, like a driver that starts anew.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from quorate.state.producers import hash_item

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["RUNS_KEPT", "Begun", "Succession"]

# The number of runs of an app, the newest, that are remembered although they have no chunk left. It
# is part of the format: all replicas must forget alike.
RUNS_KEPT = 16

# The first byte of a hashed item is its kind; attempts, chunks and apps have the kinds 3 to 5.
_RUN_ITEM = 6
_RUN = struct.Struct("<BQ16s")


class Begun(NamedTuple):
    """A run that has staged at least one chunk, which may be gone."""

    app: str
    run: bytes
    # Its share of the digest, kept so that forgetting many runs hashes none of them.
    hash: int


class Succession:
    """The runs of all apps. The cost of applying an entry grows with the runs that it changes."""

    __slots__ = ("_begun", "_runs", "digest")

    def __init__(self) -> None:
        # The runs by the entry with which each began, in rising order.
        self._begun: dict[int, Begun] = {}
        # The index of that entry by app and run, oldest first. Each app here has at least one run.
        self._runs: dict[str, dict[bytes, int]] = {}
        # The sum of the hashes of all runs.
        self.digest = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Succession) and self._begun == other._begun

    __hash__ = None  # type: ignore[assignment]  # as of any table that is compared by contents

    def copy(self) -> Succession:
        other = Succession()
        other._begun, other.digest = self._begun.copy(), self.digest
        other._runs = {app: runs.copy() for app, runs in self._runs.items()}
        return other

    def __len__(self) -> int:
        return len(self._begun)

    def __iter__(self) -> Iterator[tuple[int, Begun]]:
        """All runs and the entries with which they began, in rising order."""
        return iter(self._begun.items())

    @property
    def apps(self) -> dict[str, int]:
        """The number of runs of each app that are remembered."""
        return {app: len(runs) for app, runs in self._runs.items()}

    def began(self, app: str, run: bytes) -> int | None:
        """The entry with the first chunk of ``run``; None if the run is not known."""
        runs = self._runs.get(app)
        return None if runs is None else runs.get(run)

    def before(self, app: str, run: bytes) -> Iterator[bytes]:
        """The runs that began before ``run``, oldest first: all of them if it is not known."""
        for older in self._runs.get(app, ()):
            if older == run:
                return
            yield older

    # -- changes -------------------------------------------------------------------------------

    def begin(self, app: str, run: bytes, index: int) -> None:
        """Note that ``run`` stages with this entry, which is later than all entries noted before. A
        run that is known stays as it is."""
        runs = self._runs.setdefault(app, {})
        if run in runs:
            return
        begun = Begun(app, run, hash_item(_RUN.pack(_RUN_ITEM, index, run) + app.encode()))
        runs[run] = index
        self._begun[index] = begun
        self.digest += begun.hash

    def trim(self, app: str, staged: Collection[bytes]) -> None:
        """Forget all runs of ``app`` but those in ``staged`` and the newest others."""
        runs = self._runs.get(app, {})
        spare = len(runs) - len(staged) - RUNS_KEPT
        if spare > 0:
            self._forget(app, [*islice((run for run in runs if run not in staged), spare)])

    def forget(self, app: str) -> None:
        """Forget all runs of ``app``."""
        self._forget(app, [*self._runs.get(app, ())])
        self._runs.pop(app, None)

    def _forget(self, app: str, gone: list[bytes]) -> None:
        for run in gone:
            self.digest -= self._begun.pop(self._runs[app].pop(run)).hash
