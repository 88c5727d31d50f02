"""The event loop of servers and load generators: uvloop where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["new_event_loop", "run"]

ResultT = TypeVar("ResultT")


def new_event_loop() -> asyncio.AbstractEventLoop:
    if importlib.util.find_spec("uvloop") is None:  # uvloop does not exist for every system
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run ``main`` to its end on an event loop of its own, and return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
