"""Every submission has an outcome, whenever it is given up and whenever the client is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from session_rig import RECEIPT, SOON, cluster, log_of, on_loop, stopped

from quorate.errors import (
    InvalidArgument,
    LogNotFound,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    Timeout,
)
from quorate.wire.calls import FindLog
from quorate.wire.requests import Append
from scripted_node import SILENCE

if TYPE_CHECKING:
    from quorate.client.results import Receipt
    from quorate.client.submission import Submission

# A test that would hang fails after this long.
HANG_S = 10.0


async def outcome(submission: Submission) -> Receipt | QuorateError:
    async with asyncio.timeout(HANG_S):
        try:
            return await submission
        except QuorateError as error:
            return error


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
@on_loop
async def test_closing_at_any_moment_leaves_nobody_without_an_outcome(passes: int) -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        await stopped(session, node)
        submissions = [log.submit([b"v"]) for _ in range(3)]
        for _ in range(passes):
            await asyncio.sleep(0)
        await session.close()
        for submission in submissions:
            assert isinstance(await outcome(submission), InvalidArgument | OutcomeUnknown)
        # Nothing of them is in the way of what comes.
        assert isinstance(await outcome(log.submit([b"v"])), InvalidArgument)
        await node.start()


@on_loop
async def test_what_is_closed_before_its_first_step_was_not_sent() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        await stopped(session, node)
        submission = log.submit([b"v"])
        await session.close()
        error = await outcome(submission)
        assert isinstance(error, InvalidArgument)
        assert str(error) == "the client is closed"
        await node.start()


@on_loop
async def test_closing_with_a_full_connection_leaves_nobody_without_an_outcome() -> None:
    """More than the system takes at once, to a node that has stopped reading."""
    async with cluster("n1") as (session, [node]):
        node.batch_bytes = 8 << 20
        node.will(Append, RECEIPT, SILENCE)
        log = await log_of(session)
        await log.append(b"the leader is known")
        submissions = [log.submit([bytes(5 << 20)]) for _ in range(4)]
        await asyncio.sleep(0)
        await session.close()
        for submission in submissions:
            assert isinstance(await outcome(submission), InvalidArgument | OutcomeUnknown)


@pytest.mark.parametrize("passes", [0, 1, 2, 3])
@on_loop
async def test_who_gives_up_while_the_way_is_sought_is_told_so(passes: int) -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Append, RECEIPT)
        log = await log_of(session)
        await stopped(session, node)
        session.timeout = SOON
        first, second, third = (log.submit([b"v"]) for _ in range(3))
        for _ in range(passes):
            await asyncio.sleep(0)
        first.give_up()
        second.give_up()
        assert isinstance(await outcome(first), Timeout | OutcomeUnknown)
        error = await outcome(second)
        assert isinstance(error, Timeout)
        assert str(error) == "append to orders: it was given up; nothing was sent"
        assert isinstance(await outcome(third), Timeout)
        await node.start()


@on_loop
async def test_who_gives_up_behind_one_that_finds_the_way_is_told_so() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(Append, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        first, second, third = (log.submit([b"v"]) for _ in range(3))
        second.give_up()
        assert await outcome(first) == await outcome(third) == RECEIPT
        assert isinstance(await outcome(second), Timeout)
        assert nodes[1].count(Append) == 2
        await nodes[0].start()


@on_loop
async def test_a_log_that_is_gone_is_reported_in_time_though_nobody_says_why() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Append, RECEIPT, LogNotFound("no log"))
        await log.append(b"the leader is known")
        node.will(FindLog, SILENCE)
        session.timeout = SOON
        assert isinstance(await outcome(log.submit([b"v"])), LogNotFound)
        async with asyncio.timeout(HANG_S):
            with pytest.raises(LogNotFound):
                await log.append(b"v", expect_offset=0)


@on_loop
async def test_a_refusal_is_what_is_told_if_there_is_no_time_for_another_attempt() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Append, RECEIPT, NotLeader("n1 does not lead; leader: none"))
        await log.append(b"the leader is known")
        submission = log.submit([b"v"])
        await asyncio.sleep(0)  # it leaves
        submission.deadline = 0.0
        assert isinstance(await outcome(submission), NotLeader)
        assert node.count(Append) == 2
