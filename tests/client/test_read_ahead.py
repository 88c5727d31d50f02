"""Reading ahead of the caller, and from several replicas: nodes that answer as they are told."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from session_rig import LATER, all_of, cluster, log_of, on_loop

from dev_rig import wait_until
from quorate import Client
from quorate.client.read.prefetch import Prefetch
from quorate.client.read.ranges import LEADER, _choice
from quorate.client.read.reading import FETCH_BYTES, Reader, records_of
from quorate.errors import Behind, Busy, Corrupt, InvalidArgument, Timeout, Trimmed
from quorate.wire.calls import Ends, FindLog, ReadEnds
from quorate.wire.requests import Fetch
from scripted_node import DROP, SILENCE, Found, ScriptedNode, entries, found, in_a_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from quorate.client.results import Record
    from quorate.client.session import Session
    from quorate.entry import Entry

STORED = entries(*([b"%d" % number] for number in range(10)))
VALUES = [b"%d" % number for number in range(10)]


def one_by_one(stored: list[Entry] = STORED, end: int = 10) -> object:
    """A node whose every answer holds one entry."""
    return lambda fetch: Found(0, end, stored[fetch.offset : fetch.offset + 1])


# -- one answer ahead ----------------------------------------------------------------------------


@on_loop
async def test_the_next_answer_is_asked_for_while_the_caller_works() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, one_by_one())
        records = (await log_of(session)).read()
        assert (await anext(records)).value == b"0"
        # The caller asks for nothing meanwhile.
        await node.until(Fetch, 2)
        assert (await anext(records)).value == b"1"
        await node.until(Fetch, 3)
        assert [record.value async for record in records] == VALUES[2:]


@on_loop
async def test_no_more_than_one_answer_waits_for_a_caller_who_takes_his_time() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, one_by_one())
        node.will(ReadEnds, Ends(0, 10, 11))
        log = await log_of(session)
        records = log.read()
        await anext(records)
        await node.until(Fetch, 2)
        # What it brings has come when a request that was sent after it is answered.
        await session.ends(log._route, barrier=False)
        assert node.count(Fetch) == 2
        assert len(await all_of(records)) == 9


@on_loop
async def test_nothing_is_asked_before_the_first_record_is_wanted() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, one_by_one())
        log = await log_of(session)
        log.read()
        assert node.count(Fetch) == 0


@on_loop
async def test_what_went_wrong_ahead_is_told_after_what_came_before() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 10, STORED[:2]), Trimmed("offset 2 is gone"))
        seen: list[bytes] = []
        with pytest.raises(Trimmed):
            async for record in (await log_of(session)).read():
                seen.append(record.value)  # noqa: PERF401  # what came before the error counts
        assert seen == VALUES[:2]


@pytest.mark.parametrize("leave", ["close", "forget"])
@on_loop
async def test_who_leaves_the_loop_leaves_nothing_behind(leave: str) -> None:
    """A node that does not answer would keep a forgotten request for a long time."""
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 10, STORED[:1]), SILENCE)
        records = (await log_of(session)).read(follow=True)
        await anext(records)
        await node.until(Fetch, 2)
        before = asyncio.all_tasks()
        if leave == "close":
            await records.aclose()  # type: ignore[attr-defined]  # it has one
        else:
            del records
            gc.collect()
        if session._tasks:
            await asyncio.wait(session._tasks)
        assert len(asyncio.all_tasks()) < len(before)


@on_loop
async def test_a_client_that_is_closed_ends_what_is_under_way() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, Found(0, 10, STORED[:1]), SILENCE)
        records = (await log_of(session)).read()
        await anext(records)
        waiting = asyncio.create_task(all_of(records))
        await node.until(Fetch, 2)
        await session.close()
        with pytest.raises(InvalidArgument, match="the client is closed"):
            await waiting


@on_loop
async def test_who_is_cancelled_while_waiting_may_ask_again() -> None:
    """As it is with every request."""
    async with cluster("n1") as (session, [node]):
        log = await log_of(session)
        node.will(Fetch, Found(0, 2, STORED[:1]), Found(0, 2, STORED[1:2]))
        prefetch = Prefetch(Reader(log._route))
        waiting = asyncio.create_task(prefetch.next(session))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        values = []
        while (pieces := await prefetch.next(session)) is not None:
            values += [record.value for record in records_of(pieces)]
        assert values == VALUES[:2]


def test_a_client_that_waits_is_read_ahead_for_as_well() -> None:
    with in_a_thread(ScriptedNode()) as node:
        node.will(FindLog, lambda _: found(node, leader="n1"))
        node.will(Fetch, one_by_one())
        with Client(node.address) as client:
            records = client.log("orders").read()
            assert next(records).value == b"0"
            wait_until(lambda: node.count(Fetch) == 2, "the next answer is asked for")
            assert [record.value for record in records] == VALUES[1:]


@pytest.mark.parametrize("arrow", [False, True])
def test_a_reader_that_is_dropped_ends_by_itself(arrow: bool) -> None:
    with in_a_thread(ScriptedNode()) as node:
        node.will(FindLog, lambda _: found(node, leader="n1"))
        node.will(Fetch, Found(0, 10, STORED[:1]), SILENCE)
        with Client(node.address) as client:
            log = client.log("orders")
            records = log.read_arrow() if arrow else log.read()
            next(iter(records))
            wait_until(lambda: node.count(Fetch) == 2, "the next answer is asked for")
            [worker] = client._workers.values()
            assert worker._session._tasks
            del records
            gc.collect()
            wait_until(lambda: not worker._session._tasks, "nothing is under way")


# -- while a long answer comes -------------------------------------------------------------------

# Half of one is more than a read of a connection takes.
LONG = entries(*([b"%d" % number * 700_000] for number in range(10)))
LONG_VALUES = [b"%d" % number * 700_000 for number in range(10)]


async def grown(
    session: Session, node: ScriptedNode, rest: asyncio.Future[None], then: object
) -> AsyncIterator[Record]:
    """A read of which two answers were given, after which they are long. Of the third one half
    comes until ``rest`` is done; what is asked meanwhile is answered by ``then``."""
    first = [Found(0, 10, LONG[number : number + 1]) for number in range(2)]
    node.will(Fetch, *first, Found(0, 10, LONG[2:3], rest), then)
    records = (await log_of(session)).read()
    assert [(await anext(records)).value for _ in range(2)] == LONG_VALUES[:2]
    return records


@on_loop
async def test_the_answer_behind_a_long_one_is_asked_for_when_that_begins_to_come() -> None:
    async with cluster("n1") as (session, [node]):
        rest = asyncio.get_running_loop().create_future()
        records = await grown(session, node, rest, one_by_one(LONG))
        await node.until(Fetch, 4)
        assert [one.offset for one in node.asked if isinstance(one, Fetch)] == [0, 1, 2, 3]
        rest.set_result(None)
        assert [record.value async for record in records] == LONG_VALUES[2:]
        assert node.count(Fetch) == 10


@on_loop
async def test_no_more_than_two_long_answers_wait_for_a_caller_who_takes_his_time() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(ReadEnds, Ends(0, 10, 11))
        rest = asyncio.get_running_loop().create_future()
        records = await grown(session, node, rest, one_by_one(LONG))
        await node.until(Fetch, 4)
        rest.set_result(None)
        # What it brings has come when a request that was sent after it is answered.
        log = await log_of(session)
        await session.ends(log._route, barrier=False)
        assert node.count(Fetch) == 4
        # From now on it is known where the fourth ends.
        assert (await anext(records)).value == LONG_VALUES[2]
        await node.until(Fetch, 5)
        assert [record.value async for record in records] == LONG_VALUES[3:]


@on_loop
async def test_what_stood_behind_an_answer_that_came_shorter_in_the_end_is_asked_for_anew() -> None:
    """Its replica went away half-way, and another one gives less."""
    async with cluster("n1", "n2") as (session, nodes):
        rest = asyncio.get_running_loop().create_future()
        log = await log_of(session)
        nodes[0].will(Fetch, one_by_one(LONG))
        reader = Reader(log._route)
        reader._bytes, reader._more = FETCH_BYTES, True
        reader._replicas._replica = "n2"  # type: ignore[attr-defined]  # of the default choice
        nodes[1].will(Fetch, Found(0, 10, LONG[:3], rest), SILENCE, one_by_one(LONG))
        prefetch = Prefetch(reader)
        values: list[bytes] = []
        first = asyncio.create_task(prefetch.next(session))
        await nodes[1].until(Fetch, 2)
        assert [one.offset for one in nodes[1].asked if isinstance(one, Fetch)] == [0, 3]
        rest.set_exception(ConnectionResetError())
        pieces = await first
        while pieces is not None:
            values += [record.value for record in records_of(pieces)]
            pieces = await prefetch.next(session)
        assert values == LONG_VALUES


@on_loop
async def test_who_leaves_while_a_long_answer_comes_leaves_nothing_behind() -> None:
    async with cluster("n1") as (session, [node]):
        rest = asyncio.get_running_loop().create_future()
        records = await grown(session, node, rest, SILENCE)
        await node.until(Fetch, 4)
        await records.aclose()  # type: ignore[attr-defined]  # it has one
        if session._tasks:
            await asyncio.wait(session._tasks)
        rest.set_result(None)
        assert not session._tasks


@on_loop
async def test_an_answer_has_its_time_behind_the_one_before_it() -> None:
    """Over a slow line each takes more than half of the client's time."""
    async with cluster("n1") as (session, [node]):
        session.timeout = 2.0
        # Not what is tested here: on a line something moves all the time.
        session.retry_limits = replace(session.retry_limits, answer_s=LATER)
        loop = asyncio.get_running_loop()
        rests = [loop.create_future() for _ in range(2)]
        log = await log_of(session)
        halves = [Found(0, 2, LONG[number : number + 1], rests[number]) for number in range(2)]
        node.will(Fetch, *halves)
        reader = Reader(log._route, 0, 2)
        reader._bytes = FETCH_BYTES
        prefetch = Prefetch(reader)
        first = asyncio.create_task(prefetch.next(session))
        await node.until(Fetch, 2)
        for number, rest in enumerate(rests, start=1):
            loop.call_later(1.3 * number, rest.set_result, None)
        values: list[bytes] = []
        pieces = await first
        while pieces is not None:
            values += [record.value for record in records_of(pieces)]
            pieces = await prefetch.next(session)
        assert values == LONG_VALUES[:2]


@on_loop
async def test_who_leaves_when_the_answer_has_just_come_is_given_it() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(Fetch, one_by_one())
        records = (await log_of(session)).read()
        await anext(records)
        waiting: asyncio.Task[Record] = asyncio.create_task(anext(records))  # type: ignore[arg-type]
        [ahead] = session._tasks
        # Before whoever waits for the answer is awake.
        ahead.add_done_callback(lambda _: records._end())  # type: ignore[attr-defined]
        assert (await waiting).value == b"1"
        assert not session._tasks


@on_loop
async def test_nothing_is_asked_behind_the_stop() -> None:
    async with cluster("n1") as (session, [node]):
        rest = asyncio.get_running_loop().create_future()
        log = await log_of(session)
        node.will(Fetch, Found(0, 10, LONG[:3], rest))
        reader = Reader(log._route, 0, 2)
        reader._bytes = FETCH_BYTES
        prefetch = Prefetch(reader)
        first = asyncio.create_task(prefetch.next(session))
        await node.until(Fetch, 1)
        rest.set_result(None)
        pieces = await first
        assert pieces is not None
        assert [record.value for record in records_of(pieces)] == LONG_VALUES[:2]
        assert await prefetch.next(session) is None
        assert node.count(Fetch) == 1


# -- replicas ------------------------------------------------------------------------------------


async def values_of(reader: Reader, session: Session) -> list[bytes]:
    prefetch = Prefetch(reader)
    values: list[bytes] = []
    while (pieces := await prefetch.next(session)) is not None:
        values += [record.value for record in records_of(pieces)]
    return values


@on_loop
async def test_no_answer_shortens_a_range_that_is_known_to_be_committed() -> None:
    async with cluster("n1") as (session, [node]):
        # It names the end of the records that it gives.
        node.will(Fetch, lambda fetch: Found(0, fetch.offset + 1, [STORED[fetch.offset]]))
        route = (await log_of(session))._route
        reader = Reader(route, 0, 10, replicas=_choice(route, LEADER, turn=0))
        assert await values_of(reader, session) == VALUES


@on_loop
async def test_a_replica_that_is_the_only_one_allowed_is_waited_for() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(ReadEnds, Ends(0, 10, 11))
        nodes[1].will(Fetch, Behind("lags"), DROP, one_by_one())
        route = (await log_of(session))._route
        reader = Reader(route, 0, 10, replicas=_choice(route, "n2", turn=0))
        assert await values_of(reader, session) == VALUES
        assert [node.count(Fetch) for node in nodes] == [0, 12]


@on_loop
async def test_the_only_replica_allowed_is_given_up_when_the_time_is_over() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(ReadEnds, Ends(0, 10, 11))
        nodes[1].will(Fetch, Behind("lags"))
        session.timeout = 0.1
        route = (await log_of(session))._route
        reader = Reader(route, 0, 10, replicas=_choice(route, "n2", turn=0))
        with pytest.raises(Timeout, match="n2 has not given offset 0 of orders"):
            await values_of(reader, session)


@on_loop
async def test_readers_of_one_client_read_from_different_replicas() -> None:
    async with cluster("n1", "n2", "n3") as (session, nodes):
        for node in nodes:
            node.will(Fetch, one_by_one())
        log = await log_of(session)
        reads = await asyncio.gather(*(all_of(log.read()) for _ in range(3)))
        assert all([record.value for record in read] == VALUES for read in reads)
        # The leader is asked by each where the log ends; the rest is shared out evenly.
        assert [node.count(Fetch) for node in nodes] == [3 + 9, 9, 9]


@on_loop
async def test_a_replica_is_asked_only_for_what_it_must_have() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        for node in nodes:
            node.will(Fetch, one_by_one())
        log = await log_of(session)
        await asyncio.gather(*(all_of(log.read()) for _ in range(2)))
        fetches = [one for node in nodes for one in node.asked if isinstance(one, Fetch)]
        assert {one.session_end for one in fetches if one.offset} == set(range(2, 11))


@pytest.mark.parametrize("failure", [DROP, SILENCE, Behind("lags"), Corrupt("bad"), Busy("much")])
@on_loop
async def test_a_replica_that_cannot_is_left_for_the_leader(failure: object) -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(Fetch, one_by_one())
        nodes[1].will(Fetch, failure)
        log = await log_of(session)
        for _ in range(2):
            assert [record.value async for record in log.read()] == VALUES
        assert nodes[1].count(Fetch) >= 1


@on_loop
async def test_a_replica_that_lags_does_not_end_a_read() -> None:
    async with cluster("n1", "n2") as (session, nodes):
        nodes[0].will(Fetch, one_by_one())
        # It has five records, and gives them one by one until it has no more.
        nodes[1].will(
            Fetch,
            lambda fetch: (
                Found(0, 5, STORED[fetch.offset : fetch.offset + 1])
                if fetch.session_end <= 5
                else Behind(f"ends with 5, {fetch.session_end} was seen")
            ),
        )
        log = await log_of(session)
        for _ in range(2):
            assert [record.value async for record in log.read()] == VALUES


@on_loop
async def test_the_end_of_a_log_that_is_followed_is_asked_of_the_leader() -> None:
    """It knows first of what comes next."""
    async with cluster("n1", "n2") as (session, nodes):
        nodes[1].will(Fetch, one_by_one())
        nodes[0].will(Fetch, lambda fetch: Found(0, fetch.offset + 1, [STORED[fetch.offset]]))
        log = await log_of(session)
        for _ in range(2):
            assert [record.value async for record in log.read(0, 10, follow=True)] == VALUES
        # The second reader knows from the first that there are ten, and was told of one at a time.
        assert nodes[1].count(Fetch) == 0
