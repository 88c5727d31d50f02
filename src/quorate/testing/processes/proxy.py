"""Links that can be cut: a proxy for every direction in which a node dials another.

A node reaches its peers through `[dial]`, each at a port of its own, so that the link from n1 to n2
is another one than that from n2 to n1. Cutting holds bytes back, as a network that loses packets
does to TCP: nobody is told, and what was sent arrives when the link heals, unless somebody gave up.
While a node is down its proxies listen no more: whoever dials it is refused, as by its own host.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quorate.testing.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Links", "Proxy"]

CHUNK = 1 << 16
TURNS = 5


class Proxy:
    """One direction between two nodes."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._passing = asyncio.Event()
        self._passing.set()
        # One for each connection.
        self._joins: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, HOST, self.port)

    def refuse(self) -> None:
        """Let nobody in. Who is in stays: the end of a node ends its connections by itself."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    async def close(self) -> None:
        for join in self._joins:
            join.cancel()
        await asyncio.gather(*self._joins, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._join(reader, writer))
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)
        # Also of one that was cancelled before it began.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._passing.wait()
            there = await asyncio.open_connection(HOST, self._target)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, there[1]))
                both.create_task(self._pump(there[0], writer))
        finally:
            there[1].transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until one side ends; then the other one is told."""
        try:
            while data := await source.read(CHUNK):
                await self._passing.wait()
                sink.write(data)
                await sink.drain()
            await self._passing.wait()
            sink.write_eof()
        except OSError:
            sink.transport.abort()


class Links:
    """All directions between the nodes of a cluster."""

    def __init__(self, ports: dict[str, int], free: Iterable[int]) -> None:
        """``ports`` are those of the nodes; the proxies take theirs from ``free``."""
        pairs = [(one, other) for one in ports for other in ports if one != other]
        self._proxies = {
            pair: Proxy(port, ports[pair[1]]) for pair, port in zip(pairs, free, strict=False)
        }

    def dial(self, source: str) -> dict[str, int]:
        """Where ``source`` reaches each of the others."""
        return {pair[1]: one.port for pair, one in self._proxies.items() if pair[0] == source}

    async def up(self, target: str) -> None:
        """``target`` is started: it can be dialled."""
        for proxy in self._to(target):
            await proxy.listen()

    def down(self, target: str) -> None:
        for proxy in self._to(target):
            proxy.refuse()

    def cut(self, source: str, target: str) -> None:
        """What ``source`` sends to ``target`` arrives no more."""
        self._proxies[source, target].cut()

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    async def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.refuse()
        # What was just accepted becomes a connection within a few turns of the loop.
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for proxy in self._proxies.values():
            await proxy.close()

    def _to(self, target: str) -> list[Proxy]:
        return [proxy for pair, proxy in self._proxies.items() if pair[1] == target]
