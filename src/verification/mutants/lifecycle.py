"""Bugs planted in the steps by which a node makes, opens and deletes logs.

No simulated run gets to most of them: the tests of their files catch them.
"""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["LIFECYCLE"]

LIFECYCLE = (
    Mutant(
        "files-waited-for-in-the-thread",
        "a flush that finds no file leaves its thread to other logs",
        "replica/log_writer.py",
        "            self._tell(self._wait, begin, work)\n            return\n",
        "            __import__('time').sleep(FILES_S)\n",
    ),
    Mutant(
        "stop-waits-for-files-for-ever",
        "a stop gives up a flush that finds no files",
        "replica/log_writer.py",
        "if self._idle is not None and self._loop.time() >= self._patient_until:\n",
        "if False:\n",
    ),
    Mutant(
        "wait-for-files-not-told",
        "a flush that finds no file says so",
        "replica/log_writer.py",
        "            self._report(FilesAwaited())\n",
        "            pass\n",
    ),
    Mutant(
        "wait-for-files-told-again-and-again",
        "a flush that finds no file says so once",
        "replica/log_writer.py",
        "        if work is not self._awaited:\n",
        "        if True:\n",
    ),
    # -- the logs of a node --------------------------------------------------------------------
    Mutant(
        "files-waited-for-without-a-turn-for-others",
        "an opening that finds no file leaves its thread to the plans of other logs",
        "replica/writer.py",
        "                    return self.begin_later("
        "partial(self._carry_on, plan, done, given_up))\n",
        "                    pass\n",
    ),
    Mutant(
        "plan-left-behind-the-end-of-the-threads",
        "a plan that is given up is closed, wherever it waits",
        "replica/writer.py",
        "        _take(self._others)  # the rest",
        "        # the rest",
    ),
    Mutant(
        "pause-begins-amid-a-pass",
        "a retry comes after all other steps were tried",
        "server/logs/log_lifecycle.py",
        "            log.warning(told, self._name(incarnation), why)\n",
        "            log.warning(told, self._name(incarnation), why)\n"
        "        self._retry_later()\n",
    ),
    Mutant(
        "logs-made-before-deletions",
        "a deletion, which frees space, comes before the logs that are to be made",
        "server/logs/reconciler.py",
        "        for incarnation in self._to_remove:\n            return Remove(incarnation)\n",
        "        for incarnation in self._to_remove if not self._to_make else ():\n"
        "            return Remove(incarnation)\n",
    ),
    Mutant(
        "each-step-searches-all-logs",
        "a step costs the same however many logs wait",
        "server/logs/reconciler.py",
        "        changed, self._changed = self._changed, {}\n",
        "        changed, self._changed = self._changed | self._to_make, {}\n",
    ),
    Mutant(
        "all-logs-without-files-tried-again",
        "of the logs that lack files only as many are tried again as there are files for",
        "server/logs/log_lifecycle.py",
        "        self._plan.admit(max(0, self._replicas.logs_left))\n",
        "        self._plan.admit(1 << 30)\n",
    ),
    Mutant(
        "refused-steps-keep-the-loop",
        "after each step, others get a turn of the loop",
        "server/logs/log_lifecycle.py",
        "                await asyncio.sleep(0)  # many steps may fail without one wait\n",
        "",
    ),
    Mutant(
        "refused-openings-keep-the-loop",
        "after each opening that is refused, others get a turn of the loop",
        "server/logs/log_lifecycle.py",
        "            await asyncio.sleep(0)  # there may be thousands\n",
        "",
    ),
    Mutant(
        "openings-take-all-threads",
        "logs that take long to open leave a thread to new logs",
        "server/logs/log_lifecycle.py",
        "LONG_OPENINGS = THREADS - 1\n",
        "LONG_OPENINGS = THREADS\n",
    ),
    Mutant(
        "log-opened-within-its-making",
        "a new log that waits for files holds up no deletion",
        "server/logs/log_lifecycle.py",
        '        log.info("log made ',
        '        await self._replicas.open(incarnation, name, nodes)\n        log.info("log made ',
    ),
    Mutant(
        "pipe-read-as-the-table",
        "a pipe or a directory in the place of the catalog's table is not opened",
        "server/logs/table.py",
        "            if place.exists() and not place.is_file():\n",
        "            if False:\n",
    ),
    Mutant(
        "foreign-table-ends-the-node",
        "what lies in the place of the catalog's table ends no node",
        "server/logs/log_lifecycle.py",
        "            if not _is_obstructed(error):\n",
        "            if True:\n",
    ),
    Mutant(
        "boot-not-noted-for-lack-of-files",
        "only a full disk excuses a replica that speaks before its boot is durable",
        "server/manifest.py",
        "                if error.errno not in NO_SPACE:\n",
        "                if error.errno not in PASSING:\n",
    ),
    Mutant(
        "boot-without-files-ends-the-node",
        "a log whose boot cannot be noted for lack of files is opened again",
        "server/logs/replicas.py",
        " cause = self.directory.identity.node, error if error.errno in PASSING else None\n",
        " cause = self.directory.identity.node, None\n",
    ),
    Mutant(
        "catalog-without-its-reserve",
        "a node can open its catalog whatever reserve its settings name",
        "server/logs/replicas.py",
        "segment_bytes=max(CATALOG_SEGMENT_BYTES, needed)",
        "segment_bytes=CATALOG_SEGMENT_BYTES",
    ),
    Mutant(
        "deletions-remembered-without-end",
        "a node remembers a bounded number of deletions",
        "server/logs/catalog.py",
        "        while len(self._gone) > GONE_MAX:\n",
        "        while False:\n",
    ),
    Mutant(
        "table-not-read-at-a-start",
        "a start reads the table, and then only the later records of the catalog",
        "server/logs/table.py",
        "        self.applied = found.applied\n        return found\n",
        "        return Catalog()\n",
    ),
)
