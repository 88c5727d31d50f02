"""Bugs planted in the limits, shares and deadlines of clients, in settings and checks of batches.

No simulated run gets to most of them: the tests of their files catch them.
"""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["REQUESTS"]

REQUESTS = (
    # -- nodes ---------------------------------------------------------------------------------
    Mutant(
        "known-leader-kept-back",
        "a node without a majority still names the leader that it knows",
        "server/identity/reachability.py",
        "isinstance(error, NotLeader) and error.leader is None",
        "isinstance(error, NotLeader)",
    ),
    Mutant(
        "one-client-takes-all-room",
        "one connection gets half of the appends that may wait",
        "server/sessions/client_limits.py",
        "        if own.appends + appends > self._appends_max // 2:\n",
        "        if own.appends + appends > self._appends_max:\n",
    ),
    Mutant(
        "long-record-taken",
        "a record is within its limit, in a batch of several too",
        "server/sessions/batch_checker.py",
        "            if stop - start == 1:\n                return size\n",
        "            if stop - start == 1:\n                continue\n",
    ),
    Mutant(
        "pass-without-an-end",
        "the work for clients in one pass of the loop is bounded",
        "server/sessions/fair_share.py",
        "        if self.frames_left <= 0:\n            return False\n",
        "",
    ),
    Mutant(
        "frames-of-an-ended-connection",
        "no frame of a connection that ends is handled",
        "server/sessions/client_session.py",
        "        if self._connection.closed:\n",
        "        if False:\n",
    ),
    Mutant(
        "answered-appends-still-count",
        "an append counts against the limits until it has its answer",
        "server/sessions/client_session.py",
        "remove_appends(self._pending, len(appends.requests), appends.size)\n",
        "remove_appends(self._pending, 1, appends.size)\n",
    ),
    Mutant(
        "plain-appends-past-a-limit",
        "appends that came together are within every limit, or are judged one by one",
        "server/sessions/client_limits.py",
        "        if total.appends + appends >= self._appends_max:\n",
        "        if total.appends >= self._appends_max:\n",
    ),
    # -- deadlines of appends ------------------------------------------------------------------
    Mutant(
        "logged-past-its-deadline",
        "an append is not logged later than its deadline after its arrival",
        "replica/proposals.py",
        "item.too_late(now_ms) or judge_append(",
        "judge_append(",
    ),
    Mutant(
        "latest-deadline-for-all",
        "appends that are proposed together have the earliest of their deadlines",
        "wire/plain.py",
        "deadline_ms = min(deadline_ms, left_ms)",
        "deadline_ms = max(deadline_ms, left_ms)",
    ),
    Mutant(
        "stops-add-up",
        "each of many stops counts only for the requests that waited in it",
        "server/sessions/arrivals.py",
        "            self._gaps.append((began_ms, ended_ms + DRAIN_MS))\n",
        "            began_ms = self._gaps[0][0] if self._gaps else began_ms\n"
        "            self._gaps = [(began_ms, ended_ms + DRAIN_MS)]\n",
    ),
    Mutant(
        "stop-not-counted-as-waiting",
        "what lay in a socket while the loop stood still arrived before",
        "server/sessions/arrivals.py",
        "        self._gaps.note(self._looked_ms, at_ms)\n",
        "",
    ),
    Mutant(
        "pause-not-counted-as-waiting",
        "what lay in a socket that was not read arrived before the pause",
        "server/sessions/arrivals.py",
        "            self._gaps.note(self._paused_ms, now_ms())\n",
        "",
    ),
    Mutant(
        "parts-not-counted",
        "the parts of a publish are counted before the first is looked at",
        "commands.py",
        "Annotated[tuple[Part, ...], msgspec.Meta(max_length=PARTS_MAX)]",
        "Annotated[tuple[Part, ...], msgspec.Meta(min_length=0)]",
    ),
    Mutant(
        "window-unchecked",
        "a command that no state could accept is not even made",
        "commands.py",
        '        check_range("producer window", self.window, 1, WINDOW_MAX)\n',
        "",
    ),
    # -- limits and batches --------------------------------------------------------------------
    Mutant(
        "heartbeats-as-rare-as-elections",
        "a heartbeat comes at least twice in an election timeout",
        "config/replica.py",
        "        if self.heartbeat_ms * 2 > self.election_ms:\n",
        "        if self.heartbeat_ms > self.election_ms:\n",
    ),
    Mutant(
        "batch-that-is-busy-for-ever",
        "a batch within its limit finds room among those that wait",
        "config/replica.py",
        "            if getattr(self, name) < self.batch_bytes:\n",
        "            if getattr(self, name) < self.batch_bytes // 2:\n",
    ),
    Mutant(
        "call-that-is-busy-for-ever",
        "the longest call finds room among those that wait",
        "config/node.py",
        "        if 2 * self.control_bytes > self.call_bytes:\n",
        "        if self.control_bytes > self.call_bytes:\n",
    ),
    Mutant(
        "closed-before-busy",
        "reads are refused before a connection is closed for what it does not read",
        "config/node.py",
        "        if self.unsent_busy_bytes > self.unsent_close_bytes:\n",
        "        if self.unsent_busy_bytes > 2 * self.unsent_close_bytes:\n",
    ),
    Mutant(
        "setting-without-effect-at-the-node",
        "the appends that may wait at a node are those of its settings",
        "server/settings.py",
        "Server(client_appends=limits.pending_appends, ",
        "Server(",
    ),
    Mutant(
        "key-named-like-its-field",
        "an error of a setting names the key that the user wrote",
        "server/settings.py",
        '    check_range("limits.connections", connections, 1, CONNECTIONS_MAX)\n',
        "",
    ),
    Mutant(
        "batch-crc-not-checked",
        "a batch from a client counts if its CRC holds",
        "batch.py",
        '        expect("head", "CRC", crc, crc32c(view[8:], MAGIC_CRC))\n',
        "        pass\n",
    ),
    Mutant(
        "record-that-ends-before-it-begins",
        "the offsets of a column never fall",
        "batch_columns.py",
        "    if not _rises(offsets):\n",
        "    if False:\n",
    ),
    Mutant(
        "single-without-its-crc",
        "the short way to read a batch of one record believes no more than the long one",
        "batch.py",
        "    return found is not None and crc32c(data[8:], MAGIC_CRC) == found[0]\n",
        "    return found is not None\n",
    ),
)
