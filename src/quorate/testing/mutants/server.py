"""Bugs planted in what a node does with its logs: making, opening, deleting and stopping them."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["SERVER"]

SERVER = (
    Mutant(
        "halted-node-keeps-its-links",
        "nothing leaves a node that halts",
        "server/node.py",
        "        self._links.abort()\n",
        "",
    ),
    Mutant(
        "halted-node-takes-connections",
        "a node that halts answers no peer and no client",
        "server/node.py",
        "        self._listener.abort()\n",
        "",
    ),
    Mutant(
        "halt-waits-for-the-logs",
        "a halt does not wait until all logs are open",
        "server/node.py",
        "return_when=asyncio.FIRST_COMPLETED)\n        try:\n",
        "return_when=asyncio.ALL_COMPLETED)\n        try:\n",
    ),
    Mutant(
        "one-log-ends-the-node",
        "what is wrong with one log stops that log only",
        "server/replicas.py",
        "        if isinstance(halt, DiskFailed) or incarnation == self.catalog_incarnation:\n",
        "        if isinstance(halt, ReplicaHalted):\n",
    ),
    Mutant(
        "failed-disk-stops-one-log-only",
        "a disk that failed ends the node, whichever log found out",
        "server/replicas.py",
        "        if isinstance(halt, DiskFailed) or incarnation == self.catalog_incarnation:\n",
        "        if incarnation == self.catalog_incarnation:\n",
    ),
    Mutant(
        "damaged-log-ends-the-start",
        "a log that cannot be opened is skipped",
        "server/replicas.py",
        "            self._stop_log(Down(name, incarnation, halt, None))\n",
        "            raise\n",
    ),
    Mutant(
        "messages-of-halted-logs-kept",
        "messages for a log that halted are dropped",
        "server/replicas.py",
        " and envelope.group.incarnation not in self.down:\n",
        ":\n",
    ),
    Mutant(
        "log-opened-before-it-is-recorded",
        "a log is recorded as made before its replica opens",
        "server/reconciler.py",
        "        if life is not None and life.state is LogState.MADE:\n",
        "        if facts is not None and incarnation in self._directories:\n"
        "            life = life or LogLife(LogState.MADE, 0, facts.nodes, facts.name)\n"
        "        if life is not None and life.state is LogState.MADE:\n",
    ),
    Mutant(
        "old-table-makes-logs",
        "a table that is older than the manifest makes no log",
        "server/reconciler.py",
        "            or self._catalog.applied >= self._manifest.applied\n",
        "            or True\n",
    ),
    Mutant(
        "unknown-log-deleted",
        "a log is deleted because a record says so, not because a table lacks it",
        "server/reconciler.py",
        "        if retiring := tuple(one for one in made if one in self._doomed):\n",
        "        if retiring := tuple(one for one in made if self._catalog.find(one) is None):\n",
    ),
    Mutant(
        "deletion-forgotten-before-it-is-done",
        "a deletion is remembered until it is carried out, however many come after it",
        "server/reconciler.py",
        "            self._doomed.add(incarnation)\n",
        "            doomed = (*self._doomed, incarnation)\n"
        "            self._doomed = {one for one in doomed if self._catalog.is_gone(one)}\n",
    ),
    Mutant(
        "table-kept-amid-deletions",
        "the table is kept only when its deletions are in the manifest",
        "server/reconciler.py",
        "        return not self._doomed\n",
        "        return True\n",
    ),
    Mutant(
        "deletion-put-off-counts-as-done",
        "a deletion counts when its files are gone",
        "server/reconciler.py",
        "            late = [one for one in step.incarnations if one not in self._doomed]\n",
        "            late = step.incarnations\n",
    ),
    Mutant(
        "failed-save-believed",
        "a manifest that could not be saved is as before",
        "server/reconciler.py",
        "            self._write(before)\n",
        "",
    ),
    Mutant(
        "too-many-files-ends-the-node",
        "what the system refuses for now is waited for, however deep it is in the error",
        "server/carrier.py",
        "            cause = cause.__cause__\n",
        "            cause = None\n",
    ),
    Mutant(
        "deleted-incarnation-comes-back",
        "an incarnation whose deletion is forgotten is never made again",
        "server/catalog.py",
        "    if not catalog.horizon <= drawn_at <= catalog.applied:\n",
        "    if drawn_at > catalog.applied:\n",
    ),
    Mutant(
        "incarnation-drawn-in-the-future",
        "no incarnation is drawn beyond the end of the catalog",
        "server/catalog.py",
        "    if not catalog.horizon <= drawn_at <= catalog.applied:\n",
        "    if drawn_at < catalog.horizon:\n",
    ),
    Mutant(
        "horizon-lost-with-the-table",
        "what is forgotten is known after a start, too",
        "server/catalog.py",
        "        catalog.applied, catalog.horizon = table.applied, table.horizon\n",
        "        catalog.applied = table.applied\n",
    ),
    Mutant(
        "bad-table-believed",
        "a table that does not prove itself is not started from",
        "server/table.py",
        "        if data[:head] != proof or not rest.startswith(self._own):\n",
        "        if not rest.startswith(self._own):\n",
    ),
)
