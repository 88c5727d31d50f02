"""The HTTP server of a node: pages for liveness, readiness and metrics.

It serves GET and HEAD, with one response per connection, and drops slow clients and long requests:
these pages must not be a way to harm the node.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from quorate.net.dialling import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HttpServer", "Page"]

REQUEST_BYTES_MAX = 8192
REQUEST_S = 5.0
CONNECTIONS_MAX = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    """The response to a path."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """Serves ``pages``: a function for each path makes the page."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        # One task for each connection.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> None:
        host, port = parse_address(address)
        self._server = await asyncio.start_server(self._accept, host, port, limit=REQUEST_BYTES_MAX)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A client that is gone, is slow or sends too much gets no response.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                async with asyncio.timeout(REQUEST_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request))
                    writer.close()
                    await writer.wait_closed()
        except asyncio.LimitOverrunError:
            pass
        finally:
            # A client that does not read its response must not hold its connection.
            writer.transport.abort()

    def _answer(self, request: bytes) -> bytes:
        words = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
        page = self._page(words)
        head = (
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.content_type}\r\n"
            f"Content-Length: {len(page.body)}\r\n"
            f"Connection: close\r\n\r\n"
        ).encode()
        return head if words[0] == "HEAD" else head + page.body

    def _page(self, words: list[str]) -> Page:
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page(400, b"this is not HTTP/1\n")
        method, target, _ = words
        make = self._pages.get(target.partition("?")[0])
        if make is None:
            return Page(404, f"there are {', '.join(self._pages)}\n".encode())
        if method not in ("GET", "HEAD"):
            return Page(405, b"only GET and HEAD\n")
        return make()
