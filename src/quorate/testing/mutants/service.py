"""Bugs planted between a log and its users: what they are shown, the wire, sockets, clients, nodes.

No simulated run gets to most of them: the tests of their files catch them.
"""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["SERVICE"]

SERVICE = (
    # -- what a reader is shown ----------------------------------------------------------------
    Mutant(
        "shown-before-it-is-applied",
        "a read shows what is committed and applied, and nothing else",
        "replica/reader.py",
        "range(self._engine.core.standing.log.first_in_memory, self._engine.applied + 1)",
        "range(\n"
        "            self._engine.core.standing.log.first_in_memory,\n"
        "            self._engine.core.standing.log.last_index + 1,\n"
        "        )",
    ),
    Mutant(
        "session-goes-back",
        "a replica behind what a session has seen does not answer it",
        "replica/reader.py",
        "            if session_end > end:\n",
        "            if session_end > end + 1_000_000:\n",
    ),
    Mutant(
        "laggard-denies-an-offset",
        "a replica asks where the log ends before it refuses an offset past its own end",
        "replica/reader.py",
        "        answer = await self._barrier()\n        if offset > answer.end_offset:\n",
        "        answer = self._engine.state\n"
        "        if offset > answer.end:\n"
        "            raise OffsetOutOfRange(f'offset {offset} is past the end')\n"
        "        if False:\n",
    ),
    Mutant(
        "answer-longer-than-asked",
        "a read gets at most the bytes that it asked for, unless one frame has more",
        "replica/reader.py",
        "        if self.room < 0 and self.rows:\n            return False\n",
        "",
    ),
    Mutant(
        "long-frame-never-read",
        "a frame that is longer than the bytes that were asked for is read alone",
        "replica/reader.py",
        "        if self.room < 0 and self.rows:\n",
        "        if self.room < 0:\n",
    ),
    Mutant(
        "first-of-a-time-skipped",
        "the offset of a time is the first record appended then or later",
        "replica/reader.py",
        "            place = bisect_left(known, time_us, key=",
        "            place = bisect_right(known, time_us, key=",
    ),
    Mutant(
        "rows-before-a-bad-one-kept-back",
        "whole entries before a damaged one are given",
        "replica/reader.py",
        "                one_by_one = True  # one of several is bad: frames before it are given\n"
        "                continue\n",
        "                raise\n",
    ),
    Mutant(
        "bad-chunk-given-as-nothing",
        "an answer ends before a chunk that cannot be read",
        "replica/reader.py",
        "        del self.rows[missing.row :], self.buffers[missing.place :]\n",
        "        del self.buffers[missing.place :]\n",
    ),
    Mutant(
        "rows-before-a-bad-chunk-kept-back",
        "rows before a chunk that cannot be read are given",
        "replica/reader.py",
        "            if not found.end_before(one):\n                raise\n            return\n",
        "            raise\n",
    ),
    # -- the wire ------------------------------------------------------------------------------
    Mutant(
        "frame-crc-not-checked",
        "the control part of a frame counts if its CRC holds",
        "wire/frames.py",
        "            if crc32c(control, crc32c(chunk[start : start + _PROVED_BYTES])) != proof:\n",
        "            if False:\n",
    ),
    Mutant(
        "stream-read-on-after-a-bad-frame",
        "nothing is read of a stream after a frame that was not one",
        "wire/frames.py",
        "        self._failure = failure\n",
        "",
    ),
    Mutant(
        "bytes-left-over-ignored",
        "a message that does not take all bytes of its frame is refused",
        "wire/messages.py",
        "        if left != (0, 0):\n",
        "        if left[0]:\n",
    ),
    Mutant(
        "copied-disk-let-in",
        "a peer with the storage id of this node is a copy of it",
        "server/roster.py",
        "        if said.storage == own.storage:\n",
        "        if False:\n",
    ),
    # -- sockets -------------------------------------------------------------------------------
    Mutant(
        "heartbeat-behind-entries",
        "what carries no entries goes over the control link",
        "net/links.py",
        "links = self._bulk if keeps_order(envelope.message) else self._control",
        "links = self._bulk",
    ),
    Mutant(
        "question-overtakes-entries",
        "the question whether entries arrived does not overtake them",
        "raft/messages.py",
        "    return type(message) is Append or (type(message) is Compare and message.number > "
        "FIRST_STREAM)\n",
        "    return type(message) is Append\n",
    ),
    Mutant(
        "call-waits-for-a-link-that-ended",
        "a call whose link ended fails at once",
        "net/links.py",
        "        for _, answer in self._calls.values():\n            if not answer.done():\n",
        "        for _, answer in self._calls.values():\n            if answer.done():\n",
    ),
    Mutant(
        "frame-that-trickles-in",
        "a frame that was begun is complete in time, or its connection ends",
        "net/connection.py",
        "        self._late = self._late + 1 if stuck else 0\n",
        "        self._late = self._late + 1 if stuck and not heard else 0\n",
    ),
    Mutant(
        "slow-frame-of-a-peer-cut-off",
        "a frame of a peer may take as long as its bytes keep coming",
        "net/connection.py",
        "        stuck = begun and not self._whole and not paused and not self._peer\n",
        "        stuck = begun and not self._whole and not paused\n",
    ),
    Mutant(
        "receiver-says-nothing",
        "who receives much says that it is there",
        "net/connection.py",
        "        elif heard >= MUCH_BYTES or (heard and begun):\n",
        "        elif False:\n",
    ),
    Mutant(
        "idle-sides-answer-each-other",
        "signs of life bring no others about",
        "net/connection.py",
        "        elif heard >= MUCH_BYTES or (heard and begun):\n",
        "        elif heard:\n",
    ),
    Mutant(
        "peers-take-the-slots-of-clients",
        "a node takes its peers however many clients it has",
        "net/listener.py",
        '        if hello.purpose != "client":\n            return self._admit_peer(guest, hello)\n'
        "        limits, here = self.network, self._clients_at[guest.host]\n",
        "        limits, here = self.network, self._clients_at[guest.host]\n"
        '        if hello.purpose != "client" and self.clients < limits.connections:\n'
        "            return self._admit_peer(guest, hello)\n",
    ),
    # -- clients -------------------------------------------------------------------------------
    Mutant(
        "sent-request-taken-for-unsent",
        "a request that was sent and not answered may have been carried out",
        "client/session.py",
        "raise Lost(problem) if attempts.sent else Unreachable(problem) from None",
        "raise Unreachable(problem) from None",
    ),
    Mutant(
        "gap-in-an-answer-not-noticed",
        "a reader is shown every offset",
        "client/session.py",
        "first <= offset < first + count and ends[:-1] == starts[1:]",
        "first <= offset < first + count",
    ),
    Mutant(
        "seen-end-forgotten",
        "a client's reads never show less than it has seen",
        "client/routing.py",
        "        if end > self.session_end:\n",
        "        if end < self.session_end:\n",
    ),
    Mutant(
        "redirected-to-a-stranger",
        "a leader that is named is asked only if it has a replica",
        "client/routing.py",
        "        if named in self.nodes and named not in (asked, self.leader):\n",
        "        if named is not None and named not in (asked, self.leader):\n",
    ),
    Mutant(
        "next-life-taken-for-the-same-log",
        "a log that was deleted and made again is another log",
        "client/routing.py",
        "        if incarnation == self.incarnation:\n            return None\n",
        "        if incarnation:\n            return None\n",
    ),
    # -- nodes ---------------------------------------------------------------------------------
    Mutant(
        "one-client-takes-all-room",
        "one connection gets half of the appends that may wait",
        "server/service.py",
        "        if session.pending_appends > self._appends_max // 2:\n",
        "        if session.pending_appends > self._appends_max:\n",
    ),
    Mutant(
        "long-record-taken",
        "a record is within its limit, in a batch of several too",
        "server/service.py",
        "            if stop - start == 1:\n                return size\n",
        "            if stop - start == 1:\n                continue\n",
    ),
    Mutant(
        "pass-without-an-end",
        "what clients have done in one pass of the loop is bounded",
        "server/service.py",
        "        if self.frames_left <= 0:\n            return False\n",
        "",
    ),
    Mutant(
        "answered-appends-still-count",
        "an append counts against the limits until it has its answer",
        "server/session.py",
        "        self._expect(-len(appends.requests), -appends.size)\n",
        "        self._expect(-1, -appends.size)\n",
    ),
    Mutant(
        "crowd-past-a-limit",
        "appends that came together are within every limit, or are judged one by one",
        "server/service.py",
        "            self.pending_appends + appends <= self._appends_max\n            and ",
        "            ",
    ),
    # -- limits and batches --------------------------------------------------------------------
    Mutant(
        "heartbeats-as-rare-as-elections",
        "a heartbeat comes at least twice in an election timeout",
        "config.py",
        "        if self.heartbeat_ms * 2 > self.election_ms:\n",
        "        if self.heartbeat_ms > self.election_ms:\n",
    ),
    Mutant(
        "batch-that-is-busy-for-ever",
        "a batch within its limit finds room among those that wait",
        "config.py",
        "            if getattr(self, name) < self.batch_bytes:\n",
        "            if getattr(self, name) < self.batch_bytes // 2:\n",
    ),
    Mutant(
        "batch-crc-not-checked",
        "a batch from a client counts if its CRC holds",
        "batch.py",
        '        _expect("head", "CRC", crc, crc32c(view[8:], MAGIC_CRC))\n',
        "        pass\n",
    ),
    Mutant(
        "record-that-ends-before-it-begins",
        "the offsets of a column never fall",
        "batch.py",
        "    if not _rises(offsets):\n",
        "    if False:\n",
    ),
    Mutant(
        "single-without-its-crc",
        "the short way to read a batch of one record believes no more than the long one",
        "single.py",
        "    return bool(crc32c(data[8:], MAGIC_CRC) == crc)\n",
        "    return bool(crc)\n",
    ),
    Mutant(
        "files-waited-for-in-the-thread",
        "a flush that finds no file leaves its thread to other logs",
        "replica/writer.py",
        "            self._loop.call_soon_threadsafe(self._wait, begin, work)\n"
        "            return\n",
        "            __import__('time').sleep(FILES_S)\n",
    ),
    Mutant(
        "stop-waits-for-files-for-ever",
        "a stop gives up a flush that finds no files",
        "replica/writer.py",
        "if self._idle is not None and self._loop.time() >= self._patient_until:\n",
        "if False:\n",
    ),
)
