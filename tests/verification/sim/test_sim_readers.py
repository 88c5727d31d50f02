"""Simulated readers go through the real reader, and notice what it must never show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from quorate.replica.reader import Fetched, LogReader
from verification.sim.options import swarm
from verification.sim.run import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.run import Outcome

EVENTS = 3_000


def played() -> Outcome:
    return run(replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={}))


def test_readers_see_what_was_appended_and_published_on_every_kind_of_node() -> None:
    outcome = played()
    assert outcome.violation is None
    assert outcome.sometimes["records fetched from a follower"]
    assert outcome.sometimes["published records fetched"]


def without_a_row(fetched: Fetched) -> Fetched:
    return fetched._replace(rows=fetched.rows[1:])


def with_other_bytes(fetched: Fetched) -> Fetched:
    data = bytearray(b"".join(fetched.buffers))
    data[-1:] = bytes([data[-1] ^ 1]) if data else b""
    return fetched._replace(buffers=[bytes(data)])


def beyond_the_end(fetched: Fetched) -> Fetched:
    return fetched._replace(end_offset=fetched.end_offset + 1000)


def with_nothing(fetched: Fetched) -> Fetched:
    return fetched._replace(rows=[], buffers=[])


@pytest.mark.parametrize("spoil", [without_a_row, with_other_bytes, beyond_the_end, with_nothing])
def test_a_reader_that_shows_something_else_breaks_a_rule(
    spoil: Callable[[Fetched], Fetched], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = LogReader.fetch

    async def spoiled(
        self: LogReader, offset: int, bytes_max: int, wait_s: float, session_end: int
    ) -> Fetched:
        return spoil(await fetch(self, offset, bytes_max, wait_s, session_end))

    monkeypatch.setattr(LogReader, "fetch", spoiled)
    violation = played().violation
    assert violation is not None
    assert violation.rule == "C6"
