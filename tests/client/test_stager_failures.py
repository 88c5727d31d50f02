"""What a stager does with the chunks behind one that failed: a node that answers as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from quorate import Client
from quorate.batch import encode_batch
from quorate.client.blocking_staging import DEPTH, Stager
from quorate.client.staging import Chunk
from quorate.errors import Busy, QuorateError, StageFull
from quorate.wire.calls import ChunkStaged, FindLog, StageChunk
from scripted_node import ScriptedNode, found, in_a_thread

if TYPE_CHECKING:
    import asyncio

    from quorate.client.session import Session

FIRST = Chunk("app", bytes(16), 1, 0, bytes(16), 0)
BATCH = encode_batch([b"v"], times=0)


def full_from(number: int) -> object:
    """A node with room for so many chunks, which does not take what comes out of order."""

    def answer(call: StageChunk) -> ChunkStaged | QuorateError:
        if call.number < number:
            return ChunkStaged(index=2 + call.number, published=False)
        return StageFull("staged_bytes") if call.number == number else Busy("it is not next")

    return answer


@pytest.mark.parametrize("number", [0, 2, 5])
def test_what_comes_behind_a_chunk_that_failed_is_given_up(number: int) -> None:
    with in_a_thread(ScriptedNode()) as node, Client(node.address) as client:
        node.will(FindLog, found(node, leader="n1"))
        node.will(StageChunk, full_from(number))
        stager = Stager(client.log("orders"), FIRST)
        with pytest.raises(StageFull):
            for _ in range(number + DEPTH + 1):
                stager.send(BATCH)
        assert not stager._under_way
        # They were cancelled: nobody is left who would send them again.
        assert client._run(under_way) == set()
        stager.finish()


async def under_way(session: Session) -> set[asyncio.Task[Any]]:
    return {task for task in session._ahead if not task.cancelling()}
