"""Appends that are sent and not waited for, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from session_rig import RECEIPT, SOON, cluster, log_of, on_loop, stopped

from quorate.batch import encode_batch
from quorate.client import submission as submission_module
from quorate.client.submission import Submission
from quorate.commands import Receipt
from quorate.errors import Busy, InvalidArgument, NotLeader, OutcomeUnknown, Timeout, TooLarge
from quorate.net.loop import run
from quorate.types import NodeId
from quorate.wire.requests import AppendRequest
from scripted_node import DROP, SILENCE


@on_loop
async def test_submissions_leave_in_order_and_each_has_its_own_receipt() -> None:
    async with cluster("n1") as (session, [node]):
        offsets = count()
        node.will(AppendRequest, lambda _: Receipt(next(offsets), 1, 2, 1, 2))
        log = await log_of(session)
        await log.append(b"the leader is known from now on")
        submissions = [log.submit([b"v%d" % place]) for place in range(500)]
        receipts = [await one for one in submissions]
        assert [receipt.offset for receipt in receipts] == list(range(1, 501))
        assert await submissions[7] == submissions[7].result() == receipts[7]
        assert log._route.session_end == 501


@on_loop
async def test_a_submission_tells_when_it_is_done_and_not_before() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        submission = log.submit([b"v"])
        assert not submission.done()
        with pytest.raises(InvalidArgument, match="no answer yet"):
            submission.result()
        told: list[Submission] = []
        submission.add_done_callback(told.append)
        assert await submission == RECEIPT
        assert submission.done()
        submission.add_done_callback(told.append)
        await asyncio.sleep(0)
        assert told == [submission, submission]


@on_loop
async def test_a_callback_that_fails_is_its_owners_affair() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"v")
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context)
        )
        submissions = [log.submit([b"v"]) for _ in range(3)]
        submissions[0].add_done_callback(lambda _: 1 / 0)
        assert [await one for one in submissions] == [RECEIPT] * 3
        assert [type(one["exception"]) for one in reported] == [ZeroDivisionError]


@on_loop
async def test_what_a_node_refuses_goes_to_the_one_that_leads() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(
            AppendRequest, RECEIPT, NotLeader("n1 does not lead; leader: n2", leader=NodeId("n2"))
        )
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"n1 is known to lead")
        submissions = [log.submit([b"v"]) for _ in range(20)]
        assert [await one for one in submissions] == [RECEIPT] * 20
        assert [node.count(AppendRequest) for node in nodes] == [21, 20]
        assert log._route.leader == "n2"


@on_loop
async def test_an_append_keeps_its_conditions_in_every_attempt() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(AppendRequest, RECEIPT, NotLeader("n1 does not lead; leader: n2"))
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"n1 is known to lead")
        assert await log.append(b"v", expect_offset=7, fence="w1") == RECEIPT
        asked = [one for node in nodes for one in node.asked if isinstance(one, AppendRequest)]
        assert [(one.expect_offset, one.fence) for one in asked] == [
            (None, None), (7, "w1"), (7, "w1"),
        ]  # fmt: skip


@on_loop
async def test_appends_with_and_without_conditions_leave_in_the_order_of_the_calls() -> None:
    async with cluster("n1") as (session, [node]):
        offsets = count()
        node.will(AppendRequest, lambda _: Receipt(next(offsets), 1, 2, 1, 2))
        route = (log := await log_of(session))._route
        await log.append(b"the leader is known from now on")
        before = node.count(AppendRequest)
        conditions = [None, None, 3, None, 5, 6, None]
        submissions = [session.submitter.submit(route, b"batch", one) for one in conditions]
        receipts = [await one for one in submissions]
        assert [receipt.offset for receipt in receipts] == list(range(1, 8))
        asked = [one for one in node.asked if isinstance(one, AppendRequest)]
        assert [one.expect_offset for one in asked[before:]] == conditions


@pytest.mark.parametrize("known", [True, False])
@on_loop
async def test_a_condition_that_cannot_be_sent_fails_alone(known: bool) -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT)
        route = (log := await log_of(session))._route
        await log.append(b"n1 is known to lead")
        route.leader = "n1" if known else None
        submit = session.submitter.submit
        first, bad, last = (submit(route, b"batch", one) for one in (None, -1, None))
        assert [await first, await last] == [RECEIPT] * 2
        with pytest.raises(InvalidArgument, match="expect_offset"):
            await bad
        assert node.count(AppendRequest) == 3


@on_loop
async def test_what_got_no_answer_is_never_sent_again() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(AppendRequest, RECEIPT, DROP)
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"v")
        submissions = [log.submit([b"v"]) for _ in range(3)]
        for submission in submissions:
            with pytest.raises(
                OutcomeUnknown, match="append to orders: the connection to n1 ended"
            ):
                await submission
        assert nodes[1].count(AppendRequest) == 0


@on_loop
async def test_a_submission_without_an_answer_in_time_is_an_unknown_outcome() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT, SILENCE)
        log = await log_of(session)
        session.timeout = SOON
        await log.append(b"v")
        submissions = [log.submit([b"v"]) for _ in range(3)]
        for submission in submissions:
            with pytest.raises(OutcomeUnknown, match="no answer came in time"):
                await submission
        assert node.count(AppendRequest) == 4


@on_loop
async def test_a_submission_finds_its_way_without_a_connection() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(AppendRequest, RECEIPT)
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"v")
        await stopped(session, nodes[0])
        submissions = [log.submit([b"v"]) for _ in range(3)]
        assert [await one for one in submissions] == [RECEIPT] * 3
        assert nodes[1].count(AppendRequest) == 3
        await nodes[0].start()


@on_loop
async def test_a_submission_over_the_nodes_limit_fails_alone() -> None:
    async with cluster("n1") as (session, [node]):
        node.batch_bytes = 1000
        node.will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await log.append(b"v")
        large, small = log.submit([bytes(1000)]), log.submit([b"v"])
        assert await small == RECEIPT
        with pytest.raises(TooLarge, match=r"limits\.batch_bytes of n1 is 1000"):
            await large


@on_loop
async def test_closing_the_client_ends_what_is_under_way_as_unknown() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, RECEIPT, SILENCE)
        log = await log_of(session)
        await log.append(b"v")
        submission = log.submit([b"v"])
        await asyncio.sleep(0)  # it leaves with the next pass of the loop
        await session.close()
        with pytest.raises(OutcomeUnknown):
            await submission


@on_loop
async def test_submissions_wait_for_the_one_that_finds_the_leader_and_keep_their_order() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        offsets = count()
        nodes[1].will(AppendRequest, lambda _: Receipt(next(offsets), 1, 2, 1, 2))
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([b"v"]) for _ in range(100)]
        receipts = [await one for one in submissions]
        assert [receipt.offset for receipt in receipts] == list(range(100))
        await nodes[0].start()


@on_loop
async def test_who_waits_for_one_that_fails_tries_for_himself() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, DROP, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([b"v"]) for _ in range(10)]
        with pytest.raises(OutcomeUnknown):
            await submissions[0]
        assert [await one for one in submissions[1:]] == [RECEIPT] * 9
        assert nodes[1].count(AppendRequest) == 10
        await nodes[0].start()


@on_loop
async def test_too_many_that_wait_for_a_leader_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_module, "HELD_MAX", 5)
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([b"v"]) for _ in range(8)]
        assert [one.done() for one in submissions] == [False] * 6 + [True] * 2
        with pytest.raises(Busy, match="5 appends to orders wait for its leader"):
            submissions[7].result()
        assert [await one for one in submissions[:6]] == [RECEIPT] * 6
        await nodes[0].start()


@on_loop
async def test_too_many_bytes_that_wait_for_a_leader_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = len(encode_batch([bytes(1000)], times=0))
    monkeypatch.setattr(submission_module, "HELD_BYTES_MAX", 2 * size)
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([bytes(1000)]) for _ in range(5)]
        assert [one.done() for one in submissions] == [False] * 3 + [True] * 2
        told = f"{2 * size} bytes to orders wait for its leader, at most {2 * size} may"
        with pytest.raises(Busy, match=told):
            submissions[4].result()
        assert [await one for one in submissions[:3]] == [RECEIPT] * 3
        await nodes[0].start()


@on_loop
async def test_one_that_waits_alone_may_be_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission_module, "HELD_BYTES_MAX", 10)
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, RECEIPT)
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([bytes(1000)]) for _ in range(2)]
        assert [await one for one in submissions] == [RECEIPT] * 2
        await nodes[0].start()


@on_loop
async def test_what_is_cancelled_before_it_was_sent_is_never_sent() -> None:
    """Whoever gave up, and was never told of an attempt that may have arrived, may try again."""
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, NotLeader("n1 does not lead"))
        log = await log_of(session)
        appends = [asyncio.create_task(log.append(b"v")) for _ in range(3)]
        await node.until(AppendRequest, 4)
        for task in appends:
            task.cancel()
        await asyncio.gather(*appends, return_exceptions=True)
        asked = node.count(AppendRequest)
        node.will(AppendRequest, RECEIPT)
        await log.append(b"another")
        assert node.count(AppendRequest) == asked + 1


@on_loop
async def test_a_closed_client_leaves_nobody_without_an_outcome() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(AppendRequest, SILENCE)
        log = await log_of(session)
        await stopped(session, nodes[0])
        submissions = [log.submit([b"v"]) for _ in range(300)]
        await nodes[1].until(AppendRequest)
        await session.close()
        assert all(one.done() for one in submissions)
        with pytest.raises(OutcomeUnknown):
            submissions[0].result()
        with pytest.raises(InvalidArgument, match="the client is closed"):
            submissions[-1].result()
        await nodes[0].start()


def test_what_waited_too_long_for_a_leader_is_not_sent_and_stops_nobody() -> None:
    """On the loop that nodes and commands run on: its timers are others than those of asyncio."""

    async def work() -> None:
        async with cluster("n1", "n2") as (session, nodes):
            offsets = count()
            nodes[1].will(AppendRequest, lambda _: Receipt(next(offsets), 1, 2, 1, 2))
            log = await log_of(session)
            await stopped(session, nodes[0])
            first, *others = [log.submit([b"v"]) for _ in range(5)]
            now = asyncio.get_running_loop().time()
            for late in others[:2]:
                late.deadline = now - 1
            assert (await first).offset == 0
            for late in others[:2]:
                with pytest.raises(Timeout):
                    await late
            assert [(await one).offset for one in others[2:]] == [1, 2]
            assert nodes[1].count(AppendRequest) == 3
            await nodes[0].start()

    run(work())


def test_a_submission_that_is_late_when_it_leaves_does_not_hide_the_next() -> None:
    async def work() -> None:
        async with cluster("n1") as (session, [node]):
            log = await log_of(session)
            node.will(AppendRequest, RECEIPT, *[SILENCE] * 3)
            await log.submit([b"v"])
            at = session.submitter._leader_at(log._route)
            assert at is not None
            failed: list[Submission] = []
            all_failed = asyncio.Event()

            def fail(submission: Submission, *_: object) -> None:
                failed.append(submission)
                if len(failed) == 3:
                    all_failed.set()

            loop = asyncio.get_running_loop()
            for _ in range(3):
                late = Submission(log._route, b"v", loop.time() - 1, loop)
                at.submit(late, fail)
            await all_failed.wait()

    run(work())
