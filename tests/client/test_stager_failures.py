"""What a stager does with the chunks behind one that failed: a node that answers as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quorate import Client
from quorate.batch import encode_batch
from quorate.client.staging import (
    DEPTH,
    Stager,
    largest_chunk,
    largest_record,
)
from quorate.commands import ChunkLabel, ChunkStaged
from quorate.errors import Busy, QuorateError, StageFull
from quorate.wire.calls import FindLog
from scripted_node import ScriptedNode, found, in_a_thread

if TYPE_CHECKING:
    import asyncio

    from quorate.client.session import Session

FIRST = ChunkLabel("app", bytes(16), 1, 0, bytes(16), 0)
BATCH = encode_batch([b"v"], times=0)


def full_from(number: int) -> object:
    """A node with room for so many chunks, which does not take what comes out of order."""

    def answer(call: ChunkLabel) -> ChunkStaged | QuorateError:
        if call.number < number:
            return ChunkStaged(index=2 + call.number, published=False)
        return StageFull("staged_bytes") if call.number == number else Busy("it is not next")

    return answer


@pytest.mark.parametrize("number", [0, 2, 5])
def test_what_comes_behind_a_chunk_that_failed_is_given_up(number: int) -> None:
    with in_a_thread(ScriptedNode()) as node, Client(node.address) as client:
        node.will(FindLog, found(node, leader="n1"))
        node.will(ChunkLabel, full_from(number))
        stager = Stager(client.log("orders"), FIRST)
        with pytest.raises(StageFull):
            for _ in range(number + DEPTH + 1):
                stager.send(BATCH)
        assert not stager._under_way
        # They were cancelled: nobody is left who would send them again.
        assert client._run(under_way) == set()
        stager.finish()


def test_the_limits_of_a_node_are_known_without_a_request() -> None:
    """A task asks for them once for each log that it writes to."""
    with in_a_thread(ScriptedNode()) as node, Client(node.address) as client:
        node.will(FindLog, found(node, leader="n1"))
        log = client.log("orders")
        asked = len(node.asked)
        assert largest_chunk(log) == node.batch_bytes
        assert largest_record(log) <= node.batch_bytes
        assert len(node.asked) == asked


async def under_way(session: Session) -> set[asyncio.Task[Any]]:
    return {task for task in session._tasks if not task.cancelling()}
