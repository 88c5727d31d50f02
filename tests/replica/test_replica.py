"""Replicas at work: real directories, real syncs, threads, and an event loop."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import uvloop
from replica_rig import CONFIG, LOG, SMALL, Cluster, append_all, in_loop, quiet, read_all, until

from quorate.commands import (
    FenceChanged,
    OpenProducer,
    ProducerOpened,
    ProducerStamp,
    Receipt,
    SetFence,
)
from quorate.errors import (
    Busy,
    DiskFailed,
    DiskFull,
    InvariantBroken,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ReplicaHalted,
)
from quorate.replica.engine_io import Deliver
from quorate.replica.writer import Writer
from quorate.state.judge import UNCONDITIONAL, AppendConditions
from quorate.storage.checkpoint import CHECKPOINT
from quorate.storage.directory import LOGS, log_name
from quorate.storage.layout import CLEAN
from quorate.storage.offline.verify import verify
from quorate.types import NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from quorate.replica.engine_io import Result
    from quorate.replica.replica import Replica

N1 = NodeId("n1")
BATCHES = [b"order %d" % number for number in range(3000)]


def batches(count: int, name: str = "order") -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


# -- three replicas ----------------------------------------------------------------------------


@in_loop
async def test_thousands_of_appends_get_dense_receipts(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        receipts = await append_all(leader, BATCHES)
        assert [receipt.offset for receipt in receipts] == list(range(len(BATCHES)))
        assert all(receipt.count == 1 for receipt in receipts)
        assert all(2 <= receipt.synced <= 3 for receipt in receipts)
        await cluster.reached(len(BATCHES))
        for replica in cluster.of().values():
            assert await read_all(replica) == BATCHES
        assert cluster.halts == []


@in_loop
async def test_a_follower_refuses_and_names_the_leader(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        follower = await cluster.follower()
        await until(lambda: follower.leader)
        with pytest.raises(NotLeader, match=f"leader: {follower.leader}") as refused:
            await follower.append(b"x", 1)
        assert refused.value.leader == follower.leader


@in_loop
async def test_a_barrier_on_any_replica_shows_what_was_acknowledged(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        for end in range(1, 6):
            await leader.append(b"x", 1)
            answers = await asyncio.gather(*(one.barrier() for one in cluster.of().values()))
            assert [answer.end_offset for answer in answers] == [end] * 3
            assert all(one.end_offset == end for one in cluster.of().values())


@in_loop
async def test_a_leader_that_is_cut_off_says_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await append_all(leader, batches(10))
        cluster.isolate(leader.engine.node)
        with pytest.raises(OutcomeUnknown):
            await leader.append(b"lost or not", 1)
        with pytest.raises(NoQuorum):
            await leader.barrier()
        with pytest.raises(NotLeader):
            await leader.append(b"not logged", 1)
        newer = await cluster.leader()
        assert newer is not leader
        await newer.append(b"after", 1)
        cluster.cut.clear()
        await cluster.reached(11)
        for replica in cluster.of().values():
            assert (await read_all(replica))[10:] == [b"after"]


@in_loop
async def test_whatever_was_acknowledged_outlives_kills_of_the_leader(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        acknowledged: dict[int, bytes] = {}
        for life in range(4):
            leader = await cluster.leader()
            asked = batches(300, f"life {life}")
            appends = [asyncio.ensure_future(leader.append(batch, 1)) for batch in asked]
            await appends[life * 60]
            await cluster.kill(leader.engine.node)
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            for batch, outcome in zip(asked, outcomes, strict=True):
                if isinstance(outcome, Receipt):
                    acknowledged[outcome.offset] = batch
                else:
                    assert isinstance(outcome, OutcomeUnknown | NotLeader)
            await cluster.start(leader.engine.node)
        leader = await cluster.leader()
        end = (await leader.barrier()).end_offset
        await cluster.reached(end)
        logs = [await read_all(one) for one in cluster.of().values()]
        assert logs[0] == logs[1] == logs[2]
        assert len(logs[0]) == len(set(logs[0])) == end
        assert len(acknowledged) > 4
        assert all(logs[0][offset] == batch for offset, batch in acknowledged.items())
        assert cluster.halts == []


@in_loop
async def test_all_are_killed_and_come_back_with_everything(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await append_all(await cluster.leader(), BATCHES)
        for name in cluster.names:
            await cluster.kill(name)
        for name in cluster.names:
            await cluster.start(name)
        leader = await cluster.leader()
        assert (await leader.append(b"one more", 1)).offset == len(BATCHES)
        await cluster.reached(len(BATCHES) + 1)
        for replica in cluster.of().values():
            assert await read_all(replica) == [*BATCHES, b"one more"]


@in_loop
async def test_producers_and_fences_are_operations_of_the_log(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        opening = OpenProducer("loader", bytes(16), 8, 3_600_000_000)
        opened = await leader.operate(opening)
        assert isinstance(opened, ProducerOpened)
        stamp = ProducerStamp("loader", opened.epoch, 1)
        first = await leader.append(b"a", 1, AppendConditions(producer=stamp))
        again = await leader.append(b"a", 1, AppendConditions(producer=stamp))
        assert (first.offset, first.index) == (again.offset, again.index)
        assert isinstance(await leader.operate(SetFence("writer-1", None)), FenceChanged)
        assert leader.end_offset == 1


# -- one replica -------------------------------------------------------------------------------


@in_loop
async def test_a_callback_that_fails_harms_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        results: list[Result] = []

        def fail(_: Result) -> None:
            raise ZeroDivisionError

        leader.propose(b"a", 1, UNCONDITIONAL, fail)
        leader.propose(b"b", 1, UNCONDITIONAL, results.append)
        await until(lambda: results)
        assert isinstance(results[0], Receipt)
        assert "ZeroDivisionError" in caplog.text
        assert cluster.halts == []


@in_loop
async def test_a_callback_is_never_called_within_the_call(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        results: list[Result] = []
        ask: list[Callable[[Callable[[Result], None]], None]] = [
            partial(leader.propose, b"", 0, UNCONDITIONAL),
            leader.read,
        ]
        for one in ask:
            one(results.append)
            assert results == []
            await until(lambda: results)
            results.clear()
        await cluster.stop(N1)
        for one in ask:
            one(results.append)
            assert results == []
            await until(lambda: results)
            assert isinstance(results.pop(), NotLeader)


@in_loop
async def test_what_is_cancelled_is_answered_to_nobody(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        given_up = asyncio.ensure_future(leader.append(b"a", 1))
        await asyncio.sleep(0)
        given_up.cancel()
        assert (await leader.append(b"b", 1)).offset == 1
        assert given_up.cancelled()


@in_loop
async def test_a_bug_stops_the_replica(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        append = asyncio.ensure_future(leader.append(b"a", 1))
        await asyncio.sleep(0)
        leader.give(Deliver(None))  # type: ignore[arg-type]  # what no caller should do
        with pytest.raises(OutcomeUnknown):
            await append
        ((_, halt),) = cluster.halts
        assert isinstance(halt, InvariantBroken)
        assert "AttributeError" in str(halt)


# -- stopping ----------------------------------------------------------------------------------


@in_loop
async def test_a_clean_stop_leaves_directories_without_a_flaw(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await append_all(await cluster.leader(), BATCHES)
        for name in cluster.names:
            await cluster.stop(name)
        report = verify([tmp_path / name for name in cluster.names])
        logs = [log for directory in report.directories for log in directory.logs]
        assert [log.clean for log in logs] == [True] * 3
        assert [log.damage for log in logs] == [[]] * 3
        for name in cluster.names:
            await cluster.start(name)
        assert (await (await cluster.leader()).barrier()).end_offset == len(BATCHES)


@in_loop
async def test_who_waits_at_a_stop_is_told_what_can_be_known(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        cluster.isolate(leader.engine.node)
        logged = asyncio.ensure_future(leader.append(b"logged", 1))
        read = asyncio.ensure_future(leader.barrier())
        poll = asyncio.ensure_future(leader.fetch(0, 1000, wait_s=60))
        last = leader.status().last
        await until(lambda: leader.status().last > last)
        results: list[Result] = []
        leader.propose(b"not looked at", 1, UNCONDITIONAL, results.append)
        await cluster.stop(leader.engine.node)
        outcomes = await asyncio.gather(logged, read, poll, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, NotLeader, NotLeader]
        assert [type(result) for result in results] == [NotLeader]


@in_loop
async def test_a_stop_waits_for_the_flush_under_way(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await quiet(leader)
        faults = cluster.faults(N1)
        begun = faults.syncs
        faults.may_sync.clear()
        append = asyncio.ensure_future(leader.append(b"a", 1))
        await until(lambda: faults.syncs > begun)
        stop = asyncio.ensure_future(cluster.stop(leader.engine.node))
        with pytest.raises(OutcomeUnknown):
            await append
        assert not stop.done()
        faults.may_sync.set()
        await stop
        # It had got as far as the disk, so it is there.
        await cluster.start(N1)
        assert await read_all(await cluster.leader()) == [b"a"]


@in_loop
async def test_a_stop_whose_last_flush_fails_is_not_clean(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await quiet(leader)
        faults = cluster.faults(N1)
        begun = faults.syncs
        faults.may_sync.clear()
        append = asyncio.ensure_future(leader.append(b"a", 1))
        await until(lambda: faults.syncs > begun)
        stop = asyncio.ensure_future(cluster.stop(N1))
        with pytest.raises(OutcomeUnknown):
            await append
        faults.errors["sync"] = errno.EIO
        faults.may_sync.set()
        with pytest.raises(DiskFailed):
            await stop
        assert not (tmp_path / N1 / LOGS / log_name(LOG) / CLEAN).exists()


@in_loop
async def test_stopping_twice_is_stopping_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        leader = await cluster.leader()
        await asyncio.gather(leader.close(), leader.close(clean=False), leader.close())
        await leader.close()
        assert (tmp_path / N1 / LOGS / log_name(LOG) / CLEAN).exists()


@in_loop
async def test_a_replica_knows_alone_what_its_disk_proves_to_be_committed(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 3, SMALL) as cluster:
        leader = await cluster.leader()
        await append_all(leader, [bytes(300)] * 2000)
        await cluster.reached(2000)
        place = tmp_path / N1 / LOGS / log_name(LOG) / CHECKPOINT
        await until(place.exists)
        for name in cluster.names:
            await cluster.kill(name)
        alone = await cluster.start(N1)
        assert 0 < alone.end_offset <= 2000
        assert len(await read_all(alone)) == alone.end_offset
        assert alone.leader is None


# -- disks that fail ---------------------------------------------------------------------------


@in_loop
async def test_a_failed_sync_halts_and_nothing_is_acknowledged_or_sent(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        name = leader.engine.node
        await append_all(leader, batches(10))
        cluster.cut = {(one, two) for one in cluster.names for two in cluster.names}
        cluster.faults(name).errors["sync"] = errno.EIO
        with pytest.raises(OutcomeUnknown):
            await leader.append(b"on no disk", 1)
        ((halted, halt),) = cluster.halts
        assert halted == name
        assert isinstance(halt, DiskFailed)
        sent = len([envelope for envelope in cluster.sent if envelope.source == name])
        cluster.cut.clear()
        for refused in (leader.append(b"x", 1), leader.barrier(), leader.fetch(0, 100)):
            with pytest.raises(NotLeader):
                await refused
        assert (await cluster.leader()) is not leader
        assert len([one for one in cluster.sent if one.source == name]) == sent
        assert len(cluster.halts) == 1
        del cluster.faults(name).errors["sync"]
        await cluster.kill(name)
        await cluster.start(name)
        await cluster.reached(10)


@in_loop
async def test_the_disk_of_a_follower_fails_and_the_others_go_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader, follower = await cluster.leader(), await cluster.follower()
        cluster.faults(follower.engine.node).errors["sync"] = errno.EIO
        receipts = await append_all(leader, batches(100))
        await until(lambda: cluster.halts)
        assert [receipt.offset for receipt in receipts] == list(range(100))
        assert [name for name, _ in cluster.halts] == [follower.engine.node]
        assert follower.status().persisted < receipts[-1].index


@in_loop
async def test_a_majority_of_disks_is_waited_for(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await append_all(leader, batches(10))
        await cluster.reached(10)
        others = [name for name in cluster.names if name != leader.engine.node]
        for name in others:
            cluster.faults(name).may_sync.clear()
        append = asyncio.ensure_future(leader.append(b"a", 1))
        await until(lambda: leader.status().persisted == leader.status().last)
        await until(
            lambda: all(
                cluster.replicas[name, LOG].status().last == leader.status().last for name in others
            )
        )
        assert leader.end_offset == 10
        assert not append.done()
        cluster.faults(others[0]).may_sync.set()
        assert (await append).synced == 2


@in_loop
async def test_a_disk_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        await append_all(await cluster.leader(), batches(10))
        cluster.faults(N1).errors["sync"] = errno.EIO
        with pytest.raises(ReplicaHalted, match="n1 cannot open log"):
            await cluster.start(N1, LOG + 1)


@in_loop
async def test_chores_that_fail_halt_as_well(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        cluster.faults(N1).errors["rename index"] = errno.EIO
        with pytest.raises((OutcomeUnknown, NotLeader)):
            await append_all(leader, [bytes(300)] * 3000)
        ((_, halt),) = cluster.halts
        assert isinstance(halt, DiskFailed)


@in_loop
async def test_a_full_disk_takes_appends_again_when_it_has_room(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1, SMALL) as cluster:
        leader = await cluster.leader()
        cluster.faults(N1).full = True
        with pytest.raises(DiskFull):
            await append_all(leader, [bytes(300)] * 3000)
        end = (await leader.barrier()).end_offset
        assert len(await read_all(leader)) >= end > 0
        cluster.faults(N1).full = False
        while (await leader.fetch(0, 1)).end_offset < end + 2000:
            try:
                await append_all(leader, [b"again"] * 100)
            except (Busy, DiskFull):
                await asyncio.sleep(0.01)
        assert (await read_all(leader))[-1] == b"again"
        assert cluster.halts == []


# -- many logs ---------------------------------------------------------------------------------


@in_loop
async def test_many_logs_share_one_writer(tmp_path: Path) -> None:
    # Nobody is to be replaced because 36 replicas in one process were slow.
    patient = replace(CONFIG, timing=replace(CONFIG.timing, election_ms=5000, heartbeat_ms=100))
    async with Cluster(tmp_path, config=patient) as cluster:
        logs = range(1, 13)
        for log in logs:
            for name in cluster.names:
                await cluster.start(name, log)

        async def fill(log: int) -> Replica:
            leader = await cluster.leader(log)
            await append_all(leader, batches(200, f"log {log}"))
            return leader

        leaders = await asyncio.gather(*map(fill, logs))
        for log in logs:
            await cluster.reached(200, log)
            for replica in cluster.of(log).values():
                assert await read_all(replica) == batches(200, f"log {log}")
        # Their first leaders are spread by incarnation, and nothing made anybody step down.
        assert {leader.engine.node for leader in leaders} == set(cluster.names)
        assert all(leader.status().role is Role.LEADER for leader in leaders)
        assert cluster.halts == []


@in_loop
async def test_a_leader_says_how_far_the_others_are(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        leader = await cluster.leader()
        await append_all(leader, batches(10))
        last = leader.status().last
        await until(lambda: all(peer.match == last for peer in leader.status().peers))
        assert {peer.state for peer in leader.status().peers} == {"append"}
        assert leader.status().role is Role.LEADER
        follower = await cluster.follower()
        assert follower.status().peers == ()
        await cluster.kill(follower.engine.node)

        def state() -> str:
            (found,) = [one for one in leader.status().peers if one.node == follower.engine.node]
            return found.state

        await until(lambda: state() == "down")
        assert leader.serves
        await cluster.start(follower.engine.node)
        await until(lambda: state() == "append")


def test_another_loop_will_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with Cluster(tmp_path, 3, SMALL) as cluster:
            await append_all(await cluster.leader(), BATCHES)
            await cluster.reached(len(BATCHES))
            for replica in cluster.of().values():
                assert await read_all(replica) == BATCHES

    uvloop.run(work())


@in_loop
async def test_a_writer_thread_outlives_whoever_waited_for_it() -> None:
    writer = Writer(1)
    go = threading.Event()

    def plan() -> Generator[str, None, int]:
        go.wait()
        yield "a step"
        return 1

    running = asyncio.ensure_future(writer.carry_out(plan()))
    waiting = asyncio.ensure_future(writer.carry_out(plan()))
    await asyncio.sleep(0)
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    go.set()
    assert await writer.carry_out(plan()) == 1
    writer.close()
