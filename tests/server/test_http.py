"""The pages of a node, and what happens to whoever does not ask nicely."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from server_rig import free_address, in_loop

from quorate.net.dialling import parse_address
from quorate.server import http
from quorate.server.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer, Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

PAGES = {
    "/livez": lambda: Page(200, b"alive\n"),
    "/readyz": lambda: Page(503, b"starting\n"),
}


@asynccontextmanager
async def served(pages: Mapping[str, Callable[[], Page]] = PAGES) -> AsyncIterator[str]:
    server, address = HttpServer(pages), free_address()
    await server.start(address)
    try:
        yield address
    finally:
        await server.close()


async def ask(address: str, request: bytes) -> bytes:
    """Everything that is answered before the connection is closed."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def request(line: str) -> bytes:
    return f"{line}\r\nHost: localhost\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        ("GET /livez HTTP/1.1", "200 OK", "alive\n"),
        ("GET /livez?verbose HTTP/1.0", "200 OK", "alive\n"),
        ("GET /readyz HTTP/1.1", "503 Service Unavailable", "starting\n"),
        ("GET /metric HTTP/1.1", "404 Not Found", "there are /livez, /readyz\n"),
        ("POST /livez HTTP/1.1", "405 Method Not Allowed", "only GET and HEAD\n"),
        ("GET /livez", "400 Bad Request", "this is not HTTP/1\n"),
        ("GET /livez SPDY/3", "400 Bad Request", "this is not HTTP/1\n"),
        ("", "400 Bad Request", "this is not HTTP/1\n"),
    ],
)
@in_loop
async def test_pages(line: str, status: str, body: str) -> None:
    async with served() as address:
        head, _, found = (await ask(address, request(line))).decode().partition("\r\n\r\n")
        assert head.splitlines() == [
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        assert found == body


@in_loop
async def test_head_has_no_body() -> None:
    async with served() as address:
        answer = await ask(address, request("HEAD /livez HTTP/1.1"))
        assert b"Content-Length: 6\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")


@in_loop
async def test_a_request_without_an_end_gets_no_answer() -> None:
    async with served() as address:
        assert await ask(address, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * REQUEST_BYTES_MAX) == b""


@in_loop
async def test_a_crowd_is_turned_away_and_the_page_is_there_after_it() -> None:
    async with served() as address:
        crowd = [
            await asyncio.open_connection(*parse_address(address)) for _ in range(CONNECTIONS_MAX)
        ]
        while await ask(address, request("GET /livez HTTP/1.1")) != b"":
            pass  # the last of the crowd is not accepted yet
        for _, writer in crowd:
            writer.close()
        while not (await ask(address, request("GET /livez HTTP/1.1"))).startswith(b"HTTP/1.1 200"):
            pass  # the first of the crowd is not gone yet


@in_loop
async def test_who_does_not_read_his_answer_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.5)
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 4)
    # More than what the system keeps on its way.
    page = Page(200, bytes(16 << 20))
    async with served({"/long": lambda: page, **PAGES}) as address:
        crowd = [await deaf(address) for _ in range(4)]
        while not (await ask(address, request("GET /livez HTTP/1.1"))).startswith(b"HTTP/1.1 200"):
            pass  # all places are taken
    for one in crowd:
        one.close()


async def deaf(address: str) -> socket.socket:
    """Asks for the long page and does not read it."""
    one, loop = socket.socket(), asyncio.get_running_loop()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(one, parse_address(address))
    await loop.sock_sendall(one, request("GET /long HTTP/1.1"))
    return one


@in_loop
async def test_closing_does_not_wait_for_who_does_not_read() -> None:
    page = Page(200, bytes(16 << 20))
    made = asyncio.Event()

    def make() -> Page:
        made.set()
        return page

    async with served({"/long": make}) as address:
        one = await deaf(address)
        await made.wait()
    one.close()


@in_loop
async def test_closing_waits_for_nobody() -> None:
    async with served() as address:
        _, writer = await asyncio.open_connection(*parse_address(address))
        writer.write(b"GET /livez")
    writer.close()
