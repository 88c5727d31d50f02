"""After a request that was sent and not answered, a later refusal leaves the outcome unknown."""

from __future__ import annotations

import pytest
from session_rig import cluster, on_loop

from quorate.client.administration import create_log
from quorate.errors import InvalidArgument, OutcomeUnknown
from quorate.wire.calls import CreateLog
from scripted_node import SILENCE


@on_loop
async def test_a_refusal_after_a_silent_node_is_an_unknown_outcome() -> None:
    """The silent node may have carried out what the other one refuses."""
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(CreateLog, SILENCE)
        nodes[1].will(CreateLog, InvalidArgument("as told"))
        with pytest.raises(OutcomeUnknown, match="n1 gave no answer"):
            await create_log(session, "orders")
        assert [node.count(CreateLog) for node in nodes] == [1, 1]
