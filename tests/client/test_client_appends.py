"""What becomes of an append, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio

import pytest
from session_rig import LATER, RECEIPT, SOON, cluster, log_of, on_loop, stopped

from quorate.commands import Receipt
from quorate.errors import (
    Busy,
    NotLeader,
    OffsetMismatch,
    OutcomeUnknown,
    QuorateError,
    Timeout,
    TooLarge,
)
from quorate.types import NodeId
from quorate.wire.handshake import Hello
from quorate.wire.requests import AppendRequest
from scripted_node import DROP, LOG, SILENCE

# -- appending ---------------------------------------------------------------------------------


@on_loop
async def test_an_append_is_answered_with_its_receipt() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        assert await log.append(b"v") == RECEIPT
        [append] = [one for one in node.asked if isinstance(one, AppendRequest)]
        assert (append.log, append.expect_offset, append.fence) == (LOG, None, None)
        assert 0 < append.deadline_ms <= LATER * 1000


@on_loop
async def test_many_appends_share_a_connection_and_each_gets_its_own_answer() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, lambda append: Receipt(append.expect_offset, 1, 2, 1, 2))
        log = await log_of(session)
        receipts = await asyncio.gather(
            *(log.append(b"v", expect_offset=offset) for offset in range(500))
        )
        assert [receipt.offset for receipt in receipts] == list(range(500))
        assert node.count(Hello) == 1


@on_loop
async def test_a_redirect_leads_to_the_leader_and_is_remembered() -> None:
    async with cluster("n1", "n2", "n3") as (session, nodes):
        for node in nodes:
            node.will(
                AppendRequest,
                NotLeader(f"{node.name} does not lead; leader: n3", leader=NodeId("n3")),
            )
        nodes[2].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        assert await log.append(b"v") == RECEIPT
        assert await log.append(b"v") == RECEIPT
        assert [node.count(AppendRequest) for node in nodes] == [1, 0, 2]


@on_loop
async def test_without_a_known_leader_every_node_is_tried() -> None:
    async with cluster("n1", "n2", "n3") as (session, nodes):
        for node in nodes:
            node.will(AppendRequest, NotLeader("not I"))
        nodes[1].will(AppendRequest, NotLeader("not I"), NotLeader("not I"), RECEIPT)
        log = await log_of(session)
        assert await log.append(b"v") == RECEIPT
        assert nodes[1].count(AppendRequest) == 3


@on_loop
async def test_a_leader_that_cannot_be_reached_is_left_for_the_others() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        log = await log_of(session)
        nodes[1].will(AppendRequest, NotLeader("leader: n1", leader=NodeId("n1")), RECEIPT)
        await stopped(session, nodes[0])
        assert await log.append(b"v") == RECEIPT
        await nodes[0].start()


@pytest.mark.parametrize("terms", [{}, {"expect_offset": 7}, {"fence": "w1"}])
@on_loop
async def test_an_append_that_got_no_answer_is_never_sent_again(terms: dict[str, object]) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        for node in nodes:
            node.will(AppendRequest, DROP)
        log = await log_of(session)
        with pytest.raises(OutcomeUnknown, match="append to orders: the connection to n1 ended"):
            await log.append(b"v", **terms)  # type: ignore[arg-type]  # each is one of its terms
        assert [node.count(AppendRequest) for node in nodes] == [1, 0]


@on_loop
async def test_an_unknown_outcome_that_a_node_reports_is_not_sent_again() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, OutcomeUnknown("deposed"))
        with pytest.raises(OutcomeUnknown, match="deposed"):
            await (await log_of(session)).append(b"v")
        assert node.count(AppendRequest) == 1


@on_loop
async def test_an_append_without_an_answer_in_time_is_an_unknown_outcome() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, SILENCE)
        log = await log_of(session)
        session.timeout = SOON
        with pytest.raises(OutcomeUnknown, match="no answer came in time"):
            await log.append(b"v")
        assert node.count(AppendRequest) == 1


@pytest.mark.parametrize("refusal", [Busy("full"), NotLeader("not I"), Timeout("waited")])
@on_loop
async def test_an_append_that_is_refused_until_the_end_raises_that(refusal: QuorateError) -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, refusal)
        log = await log_of(session)
        session.timeout = SOON
        with pytest.raises(type(refusal), match=str(refusal)):
            await log.append(b"v")
        assert node.count(AppendRequest) > 1


@on_loop
async def test_an_append_that_reached_nobody_times_out_and_says_why() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        await stopped(session, node)
        session.timeout = SOON
        with pytest.raises(Timeout, match=rf"append to orders: .*{node.address}.*refused"):
            await log.append(b"v")
        await node.start()


@on_loop
async def test_a_mismatch_is_raised_and_not_tried_again() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, OffsetMismatch("the log ends at 9, 7 was expected"))
        with pytest.raises(OffsetMismatch):
            await (await log_of(session)).append(b"v", expect_offset=7)
        assert node.count(AppendRequest) == 1


@on_loop
async def test_a_batch_over_the_nodes_limit_is_not_sent() -> None:
    async with cluster("n1") as (session, [node]):
        node.batch_bytes = 1000
        with pytest.raises(TooLarge, match=r"limits\.batch_bytes of n1 is 1000"):
            await (await log_of(session)).append(bytes(1000))
        assert node.count(AppendRequest) == 0
