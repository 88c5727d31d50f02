"""The event loop: uvloop, or what Python has where there is none."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import uvloop

from quorate.net.loop import run

if TYPE_CHECKING:
    import pytest


async def running() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_everything_runs_on_uvloop() -> None:
    assert isinstance(run(running()), uvloop.Loop)


def test_without_uvloop_everything_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert isinstance(run(running()), asyncio.SelectorEventLoop)
