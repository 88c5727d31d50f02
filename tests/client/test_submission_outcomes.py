"""Every submission has an outcome, whenever it is given up and whenever the client is closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from session_rig import LATER, RECEIPT, SOON, cluster, log_of, on_loop, stopped

from quorate.client import node_connection
from quorate.client.administration import find_log
from quorate.client.asynchronous import AsyncLog
from quorate.client.routing import Route
from quorate.errors import (
    Busy,
    InvalidArgument,
    LogNotFound,
    NotLeader,
    OutcomeUnknown,
    QuorateError,
    Timeout,
)
from quorate.wire.calls import FindLog
from quorate.wire.plain import encode_plain
from quorate.wire.requests import AppendRequest
from scripted_node import LOG, SILENCE

if TYPE_CHECKING:
    from quorate.client.submission import Submission
    from quorate.commands import Receipt

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
        node.will(AppendRequest, RECEIPT, SILENCE)
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
        node.will(AppendRequest, RECEIPT)
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
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        first, second, third = (log.submit([b"v"]) for _ in range(3))
        second.give_up()
        assert await outcome(first) == await outcome(third) == RECEIPT
        assert isinstance(await outcome(second), Timeout)
        assert nodes[1].count(AppendRequest) == 2
        await nodes[0].start()


@on_loop
async def test_a_log_that_is_gone_is_reported_in_time_though_nobody_says_why() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(AppendRequest, RECEIPT, LogNotFound("no log"))
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
        node.will(AppendRequest, RECEIPT, NotLeader("n1 does not lead"))
        await log.append(b"the leader is known")
        submission = log.submit([b"v"])
        await asyncio.sleep(0)  # it leaves
        submission.deadline = 0.0
        assert isinstance(await outcome(submission), NotLeader)
        assert node.count(AppendRequest) == 2


@on_loop
async def test_nothing_is_begun_again_that_would_only_be_cut_short() -> None:
    """A refusal that is known is worth more than an outcome that is not."""
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(AppendRequest, RECEIPT, Busy("later"), SILENCE)
        await log.append(b"the leader is known")
        submission = log.submit([b"v"])
        await asyncio.sleep(0)  # it leaves
        submission.deadline = asyncio.get_running_loop().time() + session.retry_limits.last_s / 2
        assert isinstance(await outcome(submission), Busy)
        assert node.count(AppendRequest) == 2


@pytest.mark.parametrize("left_s", [-1.0, 0.5])
@on_loop
async def test_who_waited_in_vain_for_a_leader_is_not_sent_at_the_end(left_s: float) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        for node in nodes:
            node.will(AppendRequest, NotLeader(f"{node.name} does not lead"))
        log = await log_of(session)
        log._route.leader = None
        session.timeout = SOON
        first, *others = (log.submit([b"%d" % place]) for place in range(20))
        session.timeout = LATER
        for one in others:
            one.deadline = first.deadline - SOON / 2 + left_s
        assert isinstance(await outcome(first), NotLeader)
        sent = {one.batch for node in nodes for one in node.asked if isinstance(one, AppendRequest)}
        for one in others:
            error = await outcome(one)
            assert isinstance(error, Timeout)
            assert "nothing was sent; the append before it got NOT_LEADER" in str(error)
        asked = [one for node in nodes for one in node.asked if isinstance(one, AppendRequest)]
        assert {one.batch for one in asked} == sent


@on_loop
async def test_who_is_late_when_his_turn_comes_was_not_sent() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        log._route.leader = None
        submission = log.submit([b"v"])
        submission.deadline = 0.0
        error = await outcome(submission)
        assert isinstance(error, Timeout)
        assert "nothing was sent" in str(error)
        assert node.count(AppendRequest) == 0


@on_loop
async def test_closing_ends_though_whoever_is_told_submits_to_another_log() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        third = AsyncLog(session, Route("third", 3, ["n1"]))
        other = AsyncLog(session, Route("other", 2, ["n1"]))
        await stopped(session, node)
        submissions = [one.submit([b"v"]) for one in (log, log, third, third)]
        again: list[Submission] = []
        for one in submissions:
            one.add_done_callback(lambda _: again.append(other.submit([b"again"])))
        async with asyncio.timeout(HANG_S):
            await session.close()
        for one in (*submissions, *again):
            assert isinstance(await outcome(one), InvalidArgument)
        assert len(again) == len(submissions)
        await node.start()


# -- requests that cannot be sent --------------------------------------------------------------


@pytest.mark.parametrize("failing", [1, 2])
@on_loop
async def test_a_write_that_fails_leaves_no_append_without_an_outcome(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of memory, for example: the appends to two logs and a call leave in one write."""
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        other = AsyncLog(session, Route("other", LOG + 1, ["n1"], leader="n1"))
        await log.append(b"the leader is known")
        reported: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        encoded = 0

        def encode(*arguments: Any) -> bytes:
            nonlocal encoded
            encoded += 1
            if encoded == failing:
                raise MemoryError
            return encode_plain(*arguments)

        monkeypatch.setattr(node_connection, "encode_plain", encode)
        submissions = [one.submit([b"v"]) for one in (log, other) for _ in range(2)]
        found = asyncio.ensure_future(find_log(session, "orders"))
        for submission in submissions:
            error = await outcome(submission)
            assert isinstance(error, OutcomeUnknown)
            assert "MemoryError" in str(error)
        # What does no harm twice is sent again, over another connection.
        assert (await found).name == "orders"
        assert node.count(AppendRequest) == 1
        assert [type(error) for error in reported] == [MemoryError]
        assert await outcome(log.submit([b"v"])) == RECEIPT
