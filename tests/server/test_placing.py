"""The task that brings logs in line with the catalog: their priorities and their leaders."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from server_rig import CONFIG, Cluster, create, find, in_loop, on_any

from quorate.errors import Busy, InvalidArgument, LogNotFound, LogRecreated
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from quorate.server.logs.catalog import Placement
from quorate.server.logs.placing import UP_TIMES, Preferences, next_change
from quorate.types import NodeId
from quorate.wire.calls import SetLog, Status

if TYPE_CHECKING:
    from pathlib import Path

N1, N2, N3 = (NodeId(f"n{number}") for number in (1, 2, 3))
NODES = (N1, N2, N3)
SETTLE_S = 10.0
UP_S = UP_TIMES * SETTLE_S

# -- decisions ---------------------------------------------------------------------------------


def test_a_placement_that_the_membership_does_not_serve_yet_is_the_next_change() -> None:
    placement = Placement(NODES, (), ((N2, 200),), record=7)
    change = next_change(placement, Membership(NODES))
    assert change == MemberChange(Membership(NODES, priorities=((N2, 200),), intent=7))


@pytest.mark.parametrize("intent", [7, 8])
def test_a_placement_never_undoes_a_later_one(intent: int) -> None:
    placement = Placement(NODES, (), ((N2, 200),), record=7)
    assert next_change(placement, Membership(NODES, intent=intent)) is None


def test_a_log_that_was_made_or_deleted_needs_no_change() -> None:
    assert next_change(Placement(NODES), Membership(NODES)) is None
    assert next_change(None, Membership(NODES)) is None


def test_a_leader_gives_way_once_the_other_voter_has_settled_and_was_up_for_long() -> None:
    preferences = Preferences(SETTLE_S)
    assert not preferences.due(1, N2, UP_S, now=0.0)
    assert not preferences.due(1, N2, UP_S, now=SETTLE_S - 0.1)
    assert not preferences.due(1, N2, UP_S - 0.1, now=SETTLE_S)
    assert preferences.due(1, N2, UP_S, now=SETTLE_S)


@pytest.mark.parametrize("between", [None, N3])
def test_a_voter_that_fell_back_settles_anew(between: NodeId | None) -> None:
    preferences = Preferences(SETTLE_S)
    preferences.due(1, N2, UP_S, now=0.0)
    assert not preferences.due(1, between, UP_S, now=5.0)
    assert not preferences.due(1, N2, UP_S, now=SETTLE_S)
    assert preferences.due(1, N2, UP_S, now=2 * SETTLE_S)


def test_logs_settle_by_themselves_and_a_transfer_that_was_asked_for_begins_anew() -> None:
    preferences = Preferences(SETTLE_S)
    preferences.due(1, N2, UP_S, now=0.0)
    assert not preferences.due(2, N2, UP_S, now=SETTLE_S)
    preferences.forget(1)
    assert not preferences.due(1, N2, UP_S, now=SETTLE_S)


# -- nodes -------------------------------------------------------------------------------------

# A voter settles in 50 ms, and was up for long enough after 300.
TIMING = replace(CONFIG.timing, settle_ms=50)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.server.logs.placing.LOOK_S", 0.02)


async def set_priorities(cluster: Cluster, name: str, log: int, **priorities: int) -> None:
    call = SetLog(name, log.to_bytes(16, "little"), 10_000, priorities)
    await on_any(cluster, lambda client: client.call(call))


async def leader_is(cluster: Cluster, name: str, node: str) -> None:
    while (await find(cluster, name)).leader != node:
        pass


@in_loop
async def test_the_node_with_the_highest_priority_leads(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, config=replace(CONFIG, timing=TIMING)) as cluster:
        log = await create(cluster, "orders")
        for node, priority in (("n1", 200), ("n2", 210), ("n3", 220)):
            await set_priorities(cluster, "orders", log, **{node: priority})
            await leader_is(cluster, "orders", node)
        status = await on_any(cluster, lambda client: client.call(Status()))
        [found] = status.logs
        assert found.priorities == {"n1": 200, "n2": 210, "n3": 220}
        # It is a success at once, as it is so already.
        await set_priorities(cluster, "orders", log, n2=210)


@in_loop
async def test_a_restarted_node_gets_its_leadership_back(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path, config=replace(CONFIG, timing=TIMING)) as cluster:
        log = await create(cluster, "orders")
        await set_priorities(cluster, "orders", log, n1=200)
        await leader_is(cluster, "orders", "n1")
        await cluster.stop("n1")
        assert (await find(cluster, "orders")).leader != "n1"
        await cluster.start("n1")
        await leader_is(cluster, "orders", "n1")


@in_loop
async def test_settings_of_a_log_that_is_not_there(tmp_path: Path) -> None:
    async with Cluster.started(tmp_path) as cluster:
        log = await create(cluster, "orders")
        with pytest.raises(LogNotFound, match="log lost does not exist"):
            await set_priorities(cluster, "lost", log, n1=1)
        with pytest.raises(LogRecreated, match="log orders has incarnation"):
            await set_priorities(cluster, "orders", log ^ 1, n1=1)
        with pytest.raises(InvalidArgument, match="n9 has no replica of log orders"):
            await set_priorities(cluster, "orders", log, n9=1)
        status = await on_any(cluster, lambda client: client.call(Status()))
        assert [one.priorities for one in status.logs] == [{}]


@in_loop
async def test_a_change_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster.started(tmp_path, nodes=1) as cluster:
        log = await create(cluster, "orders")
        hosted = cluster.nodes["n1"].service.replicas.get(log)
        assert hosted is not None
        change_members, asked = hosted.replica.change_members, []

        async def refuse(change: MemberChange) -> None:
            asked.append(change)
            if len(asked) < 4:
                raise Busy("another change is under way")
            await change_members(change)

        monkeypatch.setattr(hosted.replica, "change_members", refuse)
        with caplog.at_level(logging.WARNING):
            await set_priorities(cluster, "orders", log, n1=7)
        # The call is answered only now that the members have it.
        assert len(asked) == 4
        [told] = [one.getMessage() for one in caplog.records if "waits for its" in one.msg]
        assert told.endswith("log=orders error=BUSY: another change is under way")
