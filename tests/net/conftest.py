"""Every test of this directory runs on both event loops and must leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

DEADLINE_S = 40


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine to its end. No task may be left then, and no socket may be open."""

    async def bounded(main: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def run_it(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded(main))
        gc.collect()  # a socket that nobody closed warns when it is collected: an error here

    return run_it
