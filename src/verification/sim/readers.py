"""Clients that read the log by offset through the real reader, on any node.

The records that they get are compared with the ledger: the very bytes that were committed, at the
offsets that follow from them, without a gap, never beyond the committed end, and never an end
before one that the same session has seen.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from quorate.errors import Behind, Corrupt, QuorateError
from quorate.replica.reader import LogReader
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from random import Random

    from quorate.replica.engine_io import ReadAnswer
    from quorate.replica.reader import Fetched
    from verification.sim.clients import Clients
    from verification.sim.ledger import Shown
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["Readers", "reader_of"]

Result = TypeVar("Result")

SESSIONS = 4
# The share of readers in the load.
GAPS = 3
# The size of a fetch: a frame, some frames, or all.
BYTES_MAX = (1, 500, 20_000, 1 << 20)


class _AtOnce:
    """Runs all work that a reader gives its loop at once, in this thread: work for a pool, too."""

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # it needs no more

    def call_soon(self, callback: Callable[..., Any], *arguments: Any, context: Any = None) -> None:
        callback(*arguments)

    def run_in_executor(
        self, executor: Any, read: Callable[..., Result], *arguments: Any
    ) -> asyncio.Future[Result]:
        done = self.create_future()
        try:
            done.set_result(read(*arguments))
        except (QuorateError, OSError) as error:
            done.set_exception(error)
        return done


_AT_ONCE = _AtOnce()


def reader_of(node: SimulatedNode) -> LogReader | None:
    """The reader of the process that runs on ``node``."""
    if node.engine is None or node.store.log is None:
        return None
    asyncio._set_running_loop(_AT_ONCE)  # type: ignore[arg-type]  # it needs no more
    try:
        return LogReader(node.engine, node.store.log, None, _no_barrier)  # type: ignore[arg-type]  # no threads
    finally:
        asyncio._set_running_loop(None)


async def _no_barrier() -> ReadAnswer:
    raise Violation("harness", "no session asks for records past its end")


def _finish(reading: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``reading``, which waits for no event."""
    try:
        reading.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the result of the coroutine
    raise Violation("harness", "a read waits")


@dataclass(slots=True)
class _ReaderSession:
    """One reader that remembers the highest end it has seen."""

    offset: int = 0
    end: int = 0


class Readers:
    """All readers, on a timer of their own."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world = world
        self._clients = clients
        self._choices = world.decisions.stream("readers")
        self._running = True
        self._sessions = [_ReaderSession() for _ in range(SESSIONS)]

    def start(self) -> None:
        self._world.after(5, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        usual: list[Any] = [GAPS * self._world.options.client_gap_us, 0, -1, 2, 0]
        gap, which, where, size, seek = self._choices.choose(usual, self._draw)
        session = self._sessions[which]
        node = self._clients.target(where)
        if seek and session.end:
            session.offset = seek % session.end
        if node.reader is not None:
            self._world.count_event("fetch", node.name)
            self._fetch(node, session, BYTES_MAX[size])
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / (GAPS * options.client_gap_us)))
        where = -1 if random.random() < 0.3 else random.randrange(options.nodes)
        seek = random.getrandbits(20) if random.random() < 0.2 else 0
        return [gap, random.randrange(SESSIONS), where, random.randrange(len(BYTES_MAX)), seek]

    def _fetch(self, node: SimulatedNode, session: _ReaderSession, bytes_max: int) -> bool:
        """Fetch once; return whether records were read, or the end was reached."""
        reader, engine = node.reader, node.engine
        assert reader is not None and engine is not None  # the node is up
        behind = engine.state.end < session.end
        try:
            fetched = _finish(reader.fetch(session.offset, bytes_max, 0, session.end))
        except Behind as problem:
            self._world.sometimes["reader told that a node is behind"] += 1
            if not behind:
                raise Violation("C6", f"{node.name}: {problem}: it is not") from problem
            return False
        except Corrupt as problem:
            self._world.sometimes["reader told of a damaged entry"] += 1
            if node not in self._world.losses:
                raise Violation("C6", f"{node.name} has a sound disk: {problem}") from problem
            if bytes_max > 1 and self._fetch(node, session, 1):
                raise Violation("C6", f"{node.name} kept whole rows back: {problem}") from problem
            return False
        except QuorateError as problem:
            raise Violation("C6", f"{node.name} refused {session}: {problem!r}") from problem
        if behind:
            raise Violation("C6", f"{node.name} is behind {session} and gave {fetched}")
        self._check(node, session, fetched)
        return True

    def _check(self, node: SimulatedNode, session: _ReaderSession, fetched: Fetched) -> None:
        ledger, committed = self._clients.ledger, self._world.invariants.committed
        sometimes = self._world.sometimes
        if not session.end <= fetched.end_offset <= ledger.ends[-1]:
            raise Violation("C6", f"{node.name} shows the end {fetched.end_offset} to {session}")
        expected = self._expected(session.offset, len(fetched.rows))
        if fetched.rows != [(one.offset, one.count, one.size, one.time) for one in expected]:
            raise Violation("C6", f"{node.name} shows {fetched.rows}, there is {expected}")
        frames = (committed[one.index - 1] for one in expected)
        if b"".join(fetched.buffers) != b"".join(one.header + one.body for one in frames):
            raise Violation("C6", f"{node.name} shows other bytes than {expected}")
        if not expected and session.offset < fetched.end_offset:
            raise Violation("C6", f"{node.name} shows no record at {session.offset}")
        if expected:
            session.offset = expected[-1].offset + expected[-1].count
            if session.offset > fetched.end_offset:
                raise Violation("C6", f"{node.name} shows {expected} past its end")
            sometimes["records fetched"] += 1
            sometimes["published records fetched"] += any(one.published for one in expected)
            sometimes["records fetched from a follower"] += not node.leads
        session.end = fetched.end_offset

    def _expected(self, offset: int, rows: int) -> list[Shown]:
        """The rows that a fetch must show: so many from the one that holds ``offset`` on."""
        shown = self._clients.ledger.shown
        first = max(0, bisect_right(shown, offset, key=attrgetter("offset")) - 1)
        return shown[first : first + rows]

    def read_all(self, nodes: list[SimulatedNode]) -> None:
        """Read the whole log, each part of it from the first of ``nodes`` that has it."""
        end = self._clients.ledger.ends[-1]
        session = _ReaderSession()
        while session.offset < end:
            before = session.offset
            for node in nodes:
                session.end = 0
                engine = node.engine
                if engine is None or node.reader is None or engine.state.end <= session.offset:
                    continue
                if self._fetch(node, session, BYTES_MAX[-1]):
                    break
            if session.offset == before:
                self._pass_over(session, nodes)

    def _pass_over(self, session: _ReaderSession, nodes: list[SimulatedNode]) -> None:
        """A chunk and the publish that shows it may have rotted on different nodes: each is whole
        on some node, and yet no node has both. There is no repair."""
        [row] = self._expected(session.offset, 1)
        hidden = all(self._world.losses.hides(node, row.index, row.by) for node in nodes)
        if not (row.published and hidden):
            raise Violation("C6", f"no node shows the record at offset {session.offset}")
        self._world.sometimes["chunk and publish damaged on different nodes"] += 1
        session.offset = row.offset + row.count
