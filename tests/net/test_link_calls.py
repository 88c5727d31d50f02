"""Calls between nodes, over the control link."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import (
    PEER,
    RELUCTANT,
    Door,
    Events,
    Recorder,
    both_up,
    free_address,
    linked,
    listening,
)

from quorate.errors import Busy, InvalidArgument
from quorate.wire.calls import AwaitCatalog, CatalogReached, decode_call, encode_result
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.requests import encode_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from quorate.net.links import PeerLinks

    Run = Callable[[Coroutine[Any, Any, None]], None]


class Clerk(Recorder):
    """Answers calls with a result, with a failure, wrongly, or not at all: as the offset says."""

    def frame_received(self, frame: Frame) -> None:
        super().frame_received(frame)
        request, call = decode_call(frame)
        assert isinstance(call, AwaitCatalog)
        match call.offset:
            case 0:
                self.connection.send([encode_failure(request, Busy("too much to do"))])
            case 1:
                data = frame.control[:4] + b"\xc1"
                self.connection.send([encode_frame(FrameKind.RESULT, data)])
            case 2:
                pass  # no answer
            case 3:
                self.connection.send([encode_result(request + 1000, CatalogReached(9))])
                self.connection.send([encode_result(request, CatalogReached(3))])
            case _:
                self.connection.send([encode_frame(FrameKind.PEER, bytes(4))])


@contextlib.asynccontextmanager
async def calling() -> AsyncIterator[tuple[PeerLinks, Clerk]]:
    door, events = Door("n2"), Events()
    async with listening(door) as listener, linked(listener.address, events) as links:
        control, _ = await both_up(door, events)
        yield links, Clerk(control.connection)


def test_a_call_gets_its_answer(run: Run) -> None:
    async def main() -> None:
        async with calling() as (links, _):
            calls = [links.call(PEER, AwaitCatalog(3, 1000), 20) for _ in range(10)]
            assert await asyncio.gather(*calls) == [CatalogReached(3)] * 10

    run(main())


@pytest.mark.parametrize(
    ("offset", "error"),
    [(0, Busy), (1, InvalidArgument), (4, ConnectionError)],
    ids=["a failure", "a bad result", "another frame"],
)
def test_a_call_fails(run: Run, offset: int, error: type[Exception]) -> None:
    async def main() -> None:
        async with calling() as (links, _):
            with pytest.raises(error):
                await links.call(PEER, AwaitCatalog(offset, 1000), 20)

    run(main())


def test_a_call_ends_with_its_time(run: Run) -> None:
    async def main() -> None:
        async with calling() as (links, _):
            with pytest.raises(TimeoutError, match=r"n2 did not answer in 0.01 s"):
                await links.call(PEER, AwaitCatalog(2, 1000), 0.01)
            assert await links.call(PEER, AwaitCatalog(3, 1000), 20) == CatalogReached(3)

    run(main())


def test_a_call_ends_with_its_link(run: Run) -> None:
    async def main() -> None:
        async with calling() as (links, clerk):
            call = asyncio.create_task(links.call(PEER, AwaitCatalog(2, 1000), 20))
            await clerk.received(1)
            clerk.connection.abort()
            with pytest.raises(ConnectionError, match="the link to n2 ended"):
                await call

    run(main())


def test_a_call_needs_a_link(run: Run) -> None:
    async def main() -> None:
        async with linked(free_address(), Events(), RELUCTANT) as links:
            with pytest.raises(ConnectionError, match="no link to n2"):
                await links.call(PEER, AwaitCatalog(3, 1000), 20)

    run(main())
