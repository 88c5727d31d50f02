"""Logs, nodes and connections, with nodes that fail exactly where they are told to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from session_rig import LATER, RECEIPT, SOON, all_of, cluster, log_of, on_loop, stopped

from quorate.client import administration
from quorate.client.administration import (
    cluster_status,
    create_log,
    delete_log,
    find_log,
    transfer_log,
)
from quorate.client.session import wire_id
from quorate.commands import SetFence
from quorate.errors import (
    InvalidArgument,
    LogExists,
    LogNotFound,
    LogRecreated,
    NoQuorum,
    NotLeader,
    OffsetMismatch,
    OutcomeUnknown,
    Timeout,
    WrongCluster,
)
from quorate.types import NodeId
from quorate.wire.calls import (
    CreateLog,
    DeleteLog,
    Done,
    Ends,
    FindLog,
    LeaderMoved,
    ListLogs,
    Logs,
    NodeStatus,
    ReadEnds,
    Status,
    TransferLog,
)
from quorate.wire.handshake import Hello
from quorate.wire.requests import AppendRequest, Fetch
from scripted_node import DROP, LOG, SILENCE, Found, entries, found

if TYPE_CHECKING:
    from quorate.client.retries import Retries
    from quorate.client.session import Session

# -- requests ----------------------------------------------------------------------------------


@on_loop
async def test_what_cannot_be_said_is_waited_for_by_nobody() -> None:
    """A number that no field has room for is refused before there is anything to wait for."""
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        with pytest.raises(InvalidArgument, match="expect_offset"):
            await log.append(b"v", expect_offset=-1)
        with pytest.raises(InvalidArgument, match="offset"):
            await all_of(log.read(1 << 64))
        requests = await session.pool.connect(node.address)
        assert requests._waiting == {}


# -- logs --------------------------------------------------------------------------------------


@on_loop
async def test_a_log_that_was_made_again_is_another_one() -> None:
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(AppendRequest, LogNotFound("no log has incarnation c0ffee"))
        with pytest.raises(LogNotFound):
            await log.append(b"v")
        node.will(FindLog, found(node, incarnation=LOG + 1))
        with pytest.raises(LogRecreated, match="orders was deleted and made again"):
            await log.append(b"v")
        node.will(FindLog, LogNotFound("log orders does not exist"))
        with pytest.raises(LogNotFound):
            await log.append(b"v")


@on_loop
async def test_a_log_is_created_once_however_often_it_is_asked_for() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(CreateLog, DROP, OutcomeUnknown("no majority served it"), found(node))
        route = await create_log(session, "orders")
        asked = [one for one in node.asked if isinstance(one, CreateLog)]
        assert len(asked) == 3
        assert len({one.incarnation for one in asked}) == 1
        assert route.incarnation == LOG


EARLY = OffsetMismatch("incarnation 7 was drawn at offset 0 of the catalog; draw another one at 8")


@on_loop
async def test_an_incarnation_that_was_drawn_too_early_is_drawn_again() -> None:
    """And the next one at once where the catalog is known to have been."""
    async with cluster("n1") as (session, [node]):
        node.will(CreateLog, EARLY, found(node), found(node))
        for _ in range(2):
            assert (await create_log(session, "orders")).incarnation == LOG
        asked = [one for one in node.asked if isinstance(one, CreateLog)]
        assert [one.drawn_at for one in asked] == [0, 8, 8]
        assert len({one.incarnation for one in asked}) == 3


@on_loop
async def test_an_incarnation_that_may_have_been_made_is_not_drawn_again() -> None:
    """The log may have been made with it, and deleted since: that is not to be done twice."""
    async with cluster("n1") as (session, [node]):
        node.will(CreateLog, DROP, EARLY)
        with pytest.raises(OutcomeUnknown, match="OFFSET_MISMATCH"):
            await create_log(session, "orders")
        assert node.count(CreateLog) == 2


@on_loop
async def test_a_log_that_is_there_cannot_be_created_but_can_be_used() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(CreateLog, LogExists("log orders exists"))
        with pytest.raises(LogExists):
            await create_log(session, "orders")
        assert (await find_log(session, "orders", create=True)).incarnation == LOG


@on_loop
async def test_a_node_that_lags_does_not_hand_out_a_log_that_is_gone() -> None:
    """With ``create`` there is a log afterwards: it is not the one that another client deleted."""
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(CreateLog, NotLeader("n1 does not lead; leader: n2", leader=NodeId("n2")))
        nodes[1].will(CreateLog, found(nodes[1], incarnation=LOG + 1))
        assert (await find_log(session, "orders", create=True)).incarnation == LOG + 1


@on_loop
async def test_a_node_that_lags_does_not_hand_out_an_earlier_life_of_a_log() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(CreateLog, NotLeader("n1 does not lead; leader: n2", leader=NodeId("n2")))

        def exists(_: CreateLog) -> LogExists:
            session.routing.catalog.reader = "n1"  # which is asked next
            return LogExists(f"log orders exists, with incarnation {LOG + 1:032x}")

        nodes[1].will(CreateLog, exists)
        nodes[1].will(FindLog, found(nodes[1], incarnation=LOG + 1))
        assert (await find_log(session, "orders", create=True)).incarnation == LOG + 1
        assert nodes[0].count(FindLog) == 1


@on_loop
async def test_a_node_that_still_has_what_was_deleted_is_behind() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(DeleteLog, Done())
        nodes[0].will(ListLogs, Logs([found(nodes[0], leader="n1")]))
        nodes[1].will(FindLog, LogNotFound("log orders does not exist"))
        assert await delete_log(session, "orders") == LOG
        with pytest.raises(LogNotFound):
            await find_log(session, "orders")


@on_loop
async def test_a_node_that_lags_does_not_choose_which_life_is_deleted() -> None:
    """The catalog's leader has forgotten that life already, and answers that it is deleted."""
    async with cluster("n1") as (session, [node]):
        node.will(FindLog, found(node, incarnation=LOG))
        node.will(ListLogs, Logs([found(node, incarnation=LOG + 1)]))
        node.will(DeleteLog, Done())
        assert await delete_log(session, "orders") == LOG + 1
        [asked] = [one for one in node.asked if isinstance(one, DeleteLog)]
        assert asked.incarnation == wire_id(LOG + 1)


@on_loop
async def test_a_delete_without_an_answer_is_repeated_for_the_same_life() -> None:
    async with cluster("n1") as (session, [node]):
        lives = [Logs([found(node, incarnation=LOG + life)]) for life in range(3)]
        node.will(ListLogs, *lives)
        node.will(DeleteLog, DROP, SILENCE, Done())
        assert await delete_log(session, "orders") == LOG
        asked = [one.incarnation for one in node.asked if isinstance(one, DeleteLog)]
        assert asked == [wire_id(LOG)] * 3


@on_loop
async def test_a_log_that_is_not_there_cannot_be_deleted() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(ListLogs, Logs([]))
        with pytest.raises(LogNotFound, match="orders does not exist"):
            await delete_log(session, "orders")
        assert not node.count(DeleteLog)


@on_loop
async def test_a_fence_is_not_set_twice() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(SetFence, DROP)
        with pytest.raises(OutcomeUnknown):
            await (await log_of(session)).set_fence("w2", expect="w1")
        assert node.count(SetFence) == 1


@on_loop
async def test_a_node_that_hears_nobody_is_not_asked_again_and_again() -> None:
    """It may be one that its peers refuse: it will not know better later."""
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(FindLog, found(nodes[0], leader=None))
        nodes[0].will(AppendRequest, NoQuorum("no leader confirmed the read in 2000 ms"))
        nodes[1].will(AppendRequest, RECEIPT)
        assert await (await log_of(session)).append(b"v") == RECEIPT
        assert nodes[0].count(AppendRequest) == 1


# -- the cluster -------------------------------------------------------------------------------


@on_loop
async def test_status_asks_every_node_and_one_answer_is_enough() -> None:
    async with cluster("n1", "n2", "n3") as (session, nodes):
        for node in nodes[:2]:
            node.will(Status, NodeStatus(node.name, node.address, node.nodes, []))
        await nodes[2].stop()
        status = await cluster_status(session)
        assert [(one["id"], one["up"]) for one in status["nodes"]] == [
            ("n1", True), ("n2", True), ("n3", False),
        ]  # fmt: skip
        await stopped(session, nodes[0])
        status = await cluster_status(session)
        assert [one["up"] for one in status["nodes"]] == [False, True, False]
        await stopped(session, nodes[1])
        with pytest.raises(Timeout, match="no node answered"):
            await cluster_status(session)
        for node in nodes:
            await node.start()


@on_loop
async def test_a_node_of_another_cluster_is_refused_at_once() -> None:
    async with cluster("n1") as (session, [node]):
        node.refusal = WrongCluster("cluster a was asked for, n1 is of b")
        with pytest.raises(WrongCluster):
            await find_log(session, "orders")
        assert node.count(Hello) == 1


@on_loop
async def test_a_refusal_of_one_node_leaves_the_others() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].refusal = WrongCluster("cluster a was asked for, n1 is of b")
        session.routing.endpoints = (nodes[0].address, nodes[1].address)
        assert (await find_log(session, "orders")).incarnation == LOG


@on_loop
async def test_the_cluster_that_answered_first_is_the_only_one_from_then_on() -> None:
    async with cluster("n1") as (session, [node]):
        await find_log(session, "orders")
        await stopped(session, node)
        await node.start()
        await find_log(session, "orders")
        assert [one.cluster for one in node.asked if isinstance(one, Hello)] == [None, "test"]


# -- closing -----------------------------------------------------------------------------------


@on_loop
async def test_closing_ends_what_is_under_way() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, SILENCE)
        node.will(Fetch, SILENCE)
        log = await log_of(session)
        append = asyncio.create_task(log.append(b"v"))
        read = asyncio.create_task(all_of(log.read()))
        await node.until(AppendRequest)
        await node.until(Fetch)
        await session.close()
        with pytest.raises(OutcomeUnknown):
            await append
        with pytest.raises(InvalidArgument, match="closed"):
            await read
        with pytest.raises(InvalidArgument, match="closed"):
            await log.append(b"v")


@on_loop
async def test_closing_ends_a_dial() -> None:
    async with cluster("n1") as (session, [node]):
        node.greets = False
        search = asyncio.create_task(find_log(session, "orders"))
        await node.until(Hello)
        await session.close()
        with pytest.raises(InvalidArgument, match="closed"):
            await search


@on_loop
async def test_a_dial_that_nobody_waits_for_any_more_fails_quietly() -> None:
    async with cluster("n1") as (session, [node]):
        node.greets = False
        session.timeout = SOON
        with pytest.raises(Timeout):
            await find_log(session, "orders")
        assert node.count(Hello) == 1


@on_loop
async def test_a_caller_who_gives_up_leaves_nothing_behind() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(AppendRequest, SILENCE, RECEIPT)
        log = await log_of(session)
        append = asyncio.create_task(log.append(b"v"))
        await node.until(AppendRequest)
        append.cancel()
        with pytest.raises(asyncio.CancelledError):
            await append
        # The connection is still good.
        assert await log.append(b"v") == RECEIPT
        assert node.count(Hello) == 1


# -- operations with several steps -------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "delete", "transfer", "read"])
@on_loop
async def test_all_steps_of_an_operation_share_one_timeout(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step takes most of the time."""
    async with cluster("n1") as (session, [node]):
        node.will(CreateLog, LogExists(f"there is one: incarnation {LOG:032x}"))
        node.will(ListLogs, Logs([found(node, leader="n1")]))
        node.will(DeleteLog, Done())
        node.will(TransferLog, LeaderMoved("n1"))
        node.will(ReadEnds, Ends(0, 1, 1))
        node.will(Fetch, Found(0, 1, entries([b"v"])))
        log = await log_of(session)
        carry_out, clock = session.carry_out, session.clock
        timeouts: list[float] = []

        async def carry_out_slowly(retries: Retries, *arguments: Any) -> Any:
            timeouts.append(retries.timeout)
            return await carry_out(retries, *arguments)

        monkeypatch.setattr(session, "clock", lambda: clock() + len(timeouts) * 0.9 * LATER)
        monkeypatch.setattr(session, "carry_out", carry_out_slowly)
        if operation == "create":
            await find_log(session, "orders", create=True)
        elif operation == "delete":
            await delete_log(session, "orders")
        elif operation == "transfer":
            await transfer_log(session, "orders", None)
        else:
            assert [record.value for record in await all_of(log.read(-1))] == [b"v"]
        assert len(timeouts) == 2
        # The first step has all of it, and the second what is left.
        assert timeouts[1] <= LATER / 10 < timeouts[0]


@on_loop
async def test_a_transfer_to_any_node_is_not_asked_for_twice() -> None:
    """The node that has the leadership by then would give it on, perhaps to where it was."""
    async with cluster("n1", "n2") as (session, nodes):
        for node in nodes:
            node.will(FindLog, found(node, leader="n1"))
            node.will(TransferLog, DROP)
        with pytest.raises(OutcomeUnknown):
            await transfer_log(session, "orders", None)
        assert sum(node.count(TransferLog) for node in nodes) == 1


@on_loop
async def test_both_rounds_of_a_status_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster("n1") as (session, [node]):
        rounds: list[float] = []
        ask = administration._ask_all

        async def ask_slowly(asking: Session, addresses: list[str], deadline: float) -> Any:
            rounds.append(deadline)
            return await ask(asking, addresses, deadline)

        node.will(Status, NodeStatus(node.name, node.address, node.nodes, []))
        monkeypatch.setattr(administration, "_ask_all", ask_slowly)
        await cluster_status(session)
        assert len(rounds) == 2
        assert rounds[0] == rounds[1]
