"""Bugs planted between a log and its users: reads, the wire, sockets, clients, nodes.

No simulated run gets to most of them: the tests of their files catch them.
"""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["SERVICE"]

SERVICE = (
    Mutant(
        "stop-waits-for-a-hanging-disk",
        "a node that is told to stop ends in time, however long its loop waits for a disk",
        "cli/serve.py",
        "        signal.sigwait(STOP_SIGNALS)\n        _end_within(STOP_S)\n",
        "        signal.sigwait(STOP_SIGNALS)\n",
    ),
    # -- records shown to readers --------------------------------------------------------------
    Mutant(
        "shown-before-it-is-applied",
        "a read shows the records that are committed and applied, and no others",
        "replica/reader.py",
        "range(self._engine.core.raft.log.first_in_memory, self._engine.applied + 1)",
        "range(\n"
        "            self._engine.core.raft.log.first_in_memory,\n"
        "            self._engine.core.raft.log.last_index + 1,\n"
        "        )",
    ),
    Mutant(
        "session-goes-back",
        "a replica behind the records that a session has seen does not answer it",
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
        "no byte of a stream is read after an invalid frame",
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
        "server/identity/roster.py",
        "        if said.storage == own.storage:\n",
        "        if False:\n",
    ),
    # -- sockets -------------------------------------------------------------------------------
    Mutant(
        "heartbeat-behind-entries",
        "a message without entries goes over the control link",
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
        "flood-handled-in-one-pass",
        "a pass of the loop handles a bounded number of the frames of one read",
        "net/connection.py",
        "            if self._left <= 0:\n",
        "            if False:\n",
    ),
    Mutant(
        "flood-handed-to-a-paused-handler",
        "a handler that has paused gets few more frames",
        "net/connection.py",
        "            self._left = FRAMES_MAX_PAUSED\n",
        "            pass\n",
    ),
    Mutant(
        "slow-frame-of-a-peer-cut-off",
        "a frame of a peer may take as long as its bytes keep coming",
        "net/connection.py",
        "        stuck = begun and not whole and not paused and not self._peer\n",
        "        stuck = begun and not whole and not paused\n",
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
        '        if hello.purpose != "client":\n'
        "            return self._admit_peer(incoming, hello)\n"
        "        limits, here = self.network, self._clients_at[incoming.host]\n",
        "        limits, here = self.network, self._clients_at[incoming.host]\n"
        '        if hello.purpose != "client" and self.clients < limits.connections:\n'
        "            return self._admit_peer(incoming, hello)\n",
    ),
    # -- clients -------------------------------------------------------------------------------
    Mutant(
        "sent-request-taken-for-unsent",
        "a request that was sent and not answered may have been carried out",
        "client/session.py",
        "raise Lost(problem) if retries.sent else Unreachable(problem) from None",
        "raise Unreachable(problem) from None",
    ),
    Mutant(
        "gap-in-an-answer-not-noticed",
        "a reader is shown every offset",
        "client/read/reading.py",
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
        "conditions-of-an-append-dropped",
        "an append keeps its conditions in every attempt",
        "client/submission.py",
        "        return request._replace(expect_offset=self._expect_offset, fence=self._fence)\n",
        "        return request._replace(expect_offset=self._expect_offset)\n",
    ),
    Mutant(
        "leader-that-was-slow-forgotten",
        "the node of a late receipt is known to lead again",
        "client/node_connection.py",
        "        if submission is not None and submission.route.leader is None:\n",
        "        if False:\n",
    ),
    Mutant(
        "bad-condition-ends-the-queue",
        "a condition that cannot be encoded fails its own append only",
        "client/submission.py",
        "            except InvalidArgument as error:  # a condition that cannot be encoded\n",
        "            except ZeroDivisionError as error:\n",
    ),
    Mutant(
        "header-of-a-long-answer-ignored",
        "the answer behind a long one is requested as soon as the header of that has arrived",
        "client/read/prefetch.py",
        "        if self._answers and self._answers[-1] is answer:\n",
        "        if answer.pieces.done():\n",
    ),
    Mutant(
        "committed-range-shortened",
        "no answer shortens a range that is known to be committed",
        "client/read/reading.py",
        "        self._ends = not follow and replicas is None\n",
        "        self._ends = not follow\n",
    ),
    Mutant(
        "redirected-to-a-stranger",
        "a leader that is named is asked only if it has a replica",
        "client/routing.py",
        "        if leader in self.nodes and leader not in (asked, self.leader):\n",
        "        if leader is not None and leader not in (asked, self.leader):\n",
    ),
    Mutant(
        "leader-left-out-of-a-failure",
        "a node that does not lead tells its client which node does",
        "wire/requests.py",
        "    known = error.leader if isinstance(error, NotLeader) else None\n",
        "    known = None\n",
    ),
    Mutant(
        "next-life-taken-for-the-same-log",
        "a log that was deleted and made again is another log",
        "client/routing.py",
        "        if incarnation == self.incarnation:\n            return None\n",
        "        if incarnation:\n            return None\n",
    ),
)
