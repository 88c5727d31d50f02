"""Links that can be cut: a proxy for every direction in which a node dials another.

A node reaches its peers through `[dial]`, each at a port of its own, so that the link from n1 to n2
is another one than that from n2 to n1. Cutting holds bytes back, as a network that loses packets
does to TCP: neither side is told, and the bytes arrive when the link heals, unless a side gave up.
While a node is down its proxies do not listen: a peer that dials it is refused, as by its own host.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from quorate.testing.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Links", "Proxy"]

CHUNK = 1 << 16


class Proxy:
    """A proxy for one direction between two nodes."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._passing = asyncio.Event()
        self._passing.set()
        # One task for each connection.
        self._joins: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    async def listen(self) -> None:
        """Listen for connections; not with a server of asyncio, which loses the connections that it
        has just accepted when it is closed."""
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port))
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def refuse(self) -> None:
        """Refuse new connections. Others stay: the end of a node ends its connections by itself."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def cut(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._passing.set()

    async def close(self) -> None:
        for join in self._joins:
            join.cancel()
        await asyncio.gather(*self._joins, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            taken, _ = listener.accept()
        except OSError:
            # The peer has closed the connection already.
            return
        task = asyncio.get_running_loop().create_task(self._join(taken))
        self._joins.add(task)
        task.add_done_callback(self._joins.discard)
        # Close the socket also of a task that was cancelled before it began.
        task.add_done_callback(lambda _: taken.close())

    async def _join(self, taken: socket.socket) -> None:
        async with AsyncExitStack() as ends:
            try:
                await self._passing.wait()
                here = await asyncio.open_connection(sock=taken)
                ends.callback(here[1].transport.abort)
                there = await asyncio.open_connection(HOST, self._target)
                ends.callback(there[1].transport.abort)
            except OSError:
                return
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(here[0], there[1]))
                both.create_task(self._pump(there[0], here[1]))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pass bytes on until ``source`` ends; then end ``sink``, too."""
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
    """The proxies for all directions between the nodes of a cluster."""

    def __init__(self, ports: dict[str, int], free: Iterable[int]) -> None:
        """``ports`` are those of the nodes; the proxies take theirs from ``free``."""
        pairs = [(one, other) for one in ports for other in ports if one != other]
        self._proxies = {
            pair: Proxy(port, ports[pair[1]]) for pair, port in zip(pairs, free, strict=False)
        }

    def dial(self, source: str) -> dict[str, int]:
        """The ports at which ``source`` reaches each of the other nodes."""
        return {pair[1]: one.port for pair, one in self._proxies.items() if pair[0] == source}

    async def up(self, target: str) -> None:
        """Listen for ``target``, which is being started: other nodes can dial it."""
        for proxy in self._to(target):
            await proxy.listen()

    def down(self, target: str) -> None:
        for proxy in self._to(target):
            proxy.refuse()

    def cut(self, source: str, target: str) -> None:
        """Hold back the bytes that ``source`` sends to ``target``."""
        self._proxies[source, target].cut()

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    async def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.refuse()
            await proxy.close()

    def _to(self, target: str) -> list[Proxy]:
        return [proxy for pair, proxy in self._proxies.items() if pair[1] == target]
