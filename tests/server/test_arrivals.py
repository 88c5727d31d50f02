"""When a request arrived, and appends that waited at a node past their deadline."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from server_rig import Cluster, WireClient, create, in_loop, outcomes, until

from quorate.config import NetworkLimits
from quorate.server.sessions import arrivals
from quorate.server.sessions.arrivals import DRAIN_MS, LOOK_MS, STILL_MS, Arrivals, LoopWatch
from quorate.wire.calls import ReadEnds, Status

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.server.logs.replicas import HostedLog


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 5000
        monkeypatch.setattr(arrivals, "now_ms", lambda: self.now)

    def run(self, watch: LoopWatch, ms: int) -> None:
        """Let time pass in a loop that does not stand still."""
        while ms:
            step = min(ms, LOOK_MS)
            ms -= step
            self.now += step
            watch.look(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# -- the clock ---------------------------------------------------------------------------------


def test_what_is_read_by_a_loop_that_runs_has_just_arrived(clock: Clock) -> None:
    watch = LoopWatch()
    requests = Arrivals(watch)
    for _ in range(50):
        clock.now += LOOK_MS
        watch.look(clock.now)
        clock.now += STILL_MS
        assert requests.newest() == clock.now
        clock.now -= STILL_MS


@pytest.mark.parametrize("looks_first", [True, False])
def test_a_stop_of_the_process_counts_from_its_beginning(clock: Clock, looks_first: bool) -> None:
    """The watch may look before the sockets are read after the stop, or behind it."""
    watch = LoopWatch()
    requests = Arrivals(watch)
    stopped = clock.now
    clock.now += 30_000
    if looks_first:
        watch.look(clock.now)
    assert requests.newest() == stopped
    watch.look(clock.now)
    clock.run(watch, DRAIN_MS - 1)
    assert requests.newest() == stopped
    clock.run(watch, 1)
    assert requests.newest() == clock.now


def test_a_stop_soon_after_another_counts_from_the_first(clock: Clock) -> None:
    watch = LoopWatch()
    stopped = clock.now
    for _ in range(3):
        clock.now += STILL_MS + 1
        watch.look(clock.now)
    assert watch.arrival(clock.now) == stopped
    clock.run(watch, DRAIN_MS)
    assert watch.arrival(clock.now) == clock.now


def test_each_of_many_stops_counts_only_for_the_requests_that_waited_in_it(clock: Clock) -> None:
    """Otherwise a busy node would refuse all appends in the end, however new they are."""
    watch = LoopWatch()
    requests = Arrivals(watch)
    for _ in range(50):
        clock.run(watch, 300)
        clock.now += STILL_MS + 50
        watch.look(clock.now)
        requests.pause(paused=True)
        clock.now += STILL_MS + 50
        requests.pause(paused=False)
        assert clock.now - requests.newest() <= DRAIN_MS + 2 * (STILL_MS + 50)


@in_loop
async def test_the_time_before_the_first_look_is_no_stop(clock: Clock) -> None:
    watch = LoopWatch()
    clock.now += 60_000
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    assert watch.arrival(clock.now) == clock.now
    running.cancel()
    await asyncio.wait([running])


def test_a_connection_that_is_not_read_counts_from_the_pause(clock: Clock) -> None:
    watch = LoopWatch()
    requests, others = Arrivals(watch), Arrivals(watch)
    paused = clock.now
    requests.pause(paused=True)
    for _ in range(20):
        clock.run(watch, LOOK_MS)
        requests.pause(paused=True)
    requests.pause(paused=False)
    assert requests.newest() == paused
    assert others.newest() == clock.now


# -- a node ------------------------------------------------------------------------------------


async def end_of(client: WireClient, log: int) -> int:
    return (await client.call(ReadEnds(log.to_bytes(16, "little")))).end


@in_loop
async def test_an_append_in_its_socket_while_the_loop_stands_still_is_not_logged(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            late = client.begin_append(log, [b"late"], deadline_ms=STILL_MS)
            fenceless = client.begin_append(log, [b"late"], deadline_ms=STILL_MS, expect_offset=0)
            patient = client.begin_append(log, [b"patient"], deadline_ms=60_000)
            time.sleep(3 * STILL_MS / 1000)  # noqa: ASYNC251  # the node's loop is this one
            assert await outcomes([late, fenceless, patient]) == ["TIMEOUT", "TIMEOUT", "OK"]
            assert await end_of(client, log) == 1


@in_loop
async def test_an_append_that_waits_for_its_log_is_not_logged_past_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        node = cluster.nodes["n1"].service
        found = asyncio.Event()
        here = node.replicas.get(log)
        assert here is not None

        async def hosted(_: int) -> HostedLog:
            await found.wait()
            return here

        monkeypatch.setattr(node.catalog_service, "hosted", hosted)
        monkeypatch.setattr(node.replicas, "get", lambda _: None)
        async with WireClient.to(cluster.address("n1")) as client:
            late = client.begin_append(log, [b"late"], deadline_ms=20)
            patient = client.begin_append(log, [b"patient"], deadline_ms=60_000)
            await client.call(Status())
            await asyncio.sleep(0.05)
            found.set()
            assert await outcomes([late, patient]) == ["TIMEOUT", "OK"]


@in_loop
async def test_an_append_that_waits_for_its_share_of_a_pass_counts_from_its_arrival(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1) as cluster:
        log = await create(cluster, "orders")
        node = cluster.nodes["n1"].service
        async with WireClient.to(cluster.address("n1")) as client:
            await client.call(Status())
            # The share is used up, and there is no other pass for now.
            share = node.share
            share.frames_left, share._pass_ends = 0, True
            late = client.begin_append(log, [b"late"], deadline_ms=20)
            patient = client.begin_append(log, [b"patient"], deadline_ms=60_000)
            await until(lambda: share._waiting)
            await asyncio.sleep(0.05)
            share._next_pass()
            assert await outcomes([late, patient]) == ["TIMEOUT", "OK"]


# Of a connection that is soon not read any more.
NARROW = NetworkLimits(
    write_pause_bytes=64 << 10, write_buffer_bytes=2 << 20, peer_buffer_bytes=64 << 10
)


@in_loop
async def test_an_append_behind_answers_that_its_client_does_not_read_is_not_logged(
    tmp_path: Path,
) -> None:
    async with Cluster.started(tmp_path, 1, network=NARROW) as cluster:
        log = await create(cluster, "orders")
        async with WireClient.to(cluster.address("n1")) as client:
            for _ in range(20):
                await client.append(log, b"x" * 50_000)
            client.connection.pause_reading()
            reads = [asyncio.create_task(client.fetch(log, 0)) for _ in range(100)]
            [answers] = cluster.nodes["n1"].service.answers.buffers
            await until(lambda: answers.clogged)
            late = client.begin_append(log, [b"late"], deadline_ms=STILL_MS)
            patient = client.begin_append(log, [b"patient"], deadline_ms=60_000)
            await asyncio.sleep(3 * STILL_MS / 1000)
            client.connection.resume_reading()
            assert await outcomes([late, patient]) == ["TIMEOUT", "OK"]
            assert set(await outcomes(reads)) <= {"OK", "BUSY"}
            assert await end_of(client, log) == 21
