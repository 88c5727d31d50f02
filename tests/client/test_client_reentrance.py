"""A call is made amid another one of the same thread, by a signal handler or a finalizer, or in the
client's own thread: it does its work or raises, and never waits for ever."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from interruption_rig import each_interruption
from session_rig import cluster, log_of, on_loop

from quorate.client import blocking, worker
from quorate.client.blocking import Client
from quorate.client.produce import accumulator
from quorate.client.produce.accumulator import Accumulator, BatchLimits
from quorate.client.produce.producer import Producer
from quorate.client.produce.settings import ProducerSettings
from quorate.client.produce.tickets import Delivery, Ticket
from quorate.commands import OpenProducer, ProducerOpened, Receipt
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.client.session import Session

# No process listens there.
NOWHERE = "127.0.0.1:1"
LIMITS = BatchLimits("n1", record_bytes=5_000, batch_bytes=1_000)
DONE = Receipt(0, 1, 2, 1, 2)
# A test that would hang fails after this long.
HANG_S = 20.0


def within(action: Callable[[], object]) -> None:
    """Do ``action`` in another thread: if that hangs, the test fails."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  # it is raised below
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive(), "it waits for ever"
    for error in errors:
        raise error


@pytest.fixture
def client() -> Iterator[Client]:
    opened = Client(NOWHERE, timeout=0.2)
    yield opened
    within(opened.close)


def in_own_thread(client: Client, action: Callable[[], object]) -> None:
    async def work(_: Session) -> None:
        action()

    within(lambda: client._run(work))


async def nothing(_: Session) -> str:
    return "done"


# -- the client's own thread -------------------------------------------------------------------


def test_a_call_in_the_own_thread_is_refused(client: Client) -> None:
    calls = (client.logs, client.status, client.close, Delivery(Ticket(), 0).result)
    for call in calls:
        with pytest.raises(InvalidArgument, match="a client's own thread"):
            in_own_thread(client, call)
    # Nothing is left of it.
    assert client._run(nothing) == "done"


def test_a_thread_of_another_client_is_refused_too(client: Client) -> None:
    other = Client(NOWHERE)
    other._run(nothing)
    with pytest.raises(InvalidArgument, match="make it in another thread"):
        in_own_thread(client, lambda: other._run(nothing))
    other.close()


def test_a_finalizer_in_the_own_thread_does_not_stop_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: raised.append(told.exc_value))

    class Closing:
        def __del__(self) -> None:
            client.close()

    def collect() -> None:
        garbage = Closing()
        garbage.itself = garbage  # type: ignore[attr-defined]
        del garbage
        gc.collect()

    in_own_thread(client, collect)
    assert [type(error) for error in raised] == [InvalidArgument]
    assert client._run(nothing) == "done"


@on_loop
async def test_a_producer_without_room_does_not_wait_in_the_own_thread() -> None:
    async with cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        opened = await (await log_of(session)).producer("loader", memory_bytes=1 << 10)
        client = Client(NOWHERE)
        producer = Producer(client, opened._sender)
        opened._records.add(bytes(1000), None, None, None)
        # Before this loop runs again, so that the record has no outcome yet.
        with pytest.raises(InvalidArgument, match="a client's own thread"):
            in_own_thread(client, lambda: producer.send(bytes(1000)))
        client.close()


# -- a signal handler amid a send --------------------------------------------------------------


def records() -> Accumulator:
    return Accumulator(ProducerSettings(5, 300, 1 << 20), LIMITS, lambda: 100.0, lambda: None)


def count_taken(taken: Accumulator) -> int:
    """How many records were taken; each batch gets its outcome."""
    count = 0
    taken.end_linger()
    while (ticket := taken.take(1000.0)) is not None:
        count += ticket.count
        ticket.resolve(DONE)
    return count


@pytest.mark.parametrize(
    "send",
    [
        lambda into: into.add(b"outer", None, None, 7),
        lambda into: into.add_batch([b"outer"], None, None, 7),
        lambda into: into.add(b"x" * 300, None, None, 7),
    ],
    ids=["record", "batch", "full"],
)
def test_a_record_that_is_sent_amid_a_send_is_taken_or_refused(
    send: Callable[[Accumulator], object],
) -> None:
    refused = 0
    sending: list[Accumulator] = []
    nested: list[bool] = []

    def handle() -> None:
        try:
            nested.append(sending[-1].add(b"nested", None, None, 7) is not None)
        except InvalidArgument as error:
            assert "amid another send" in str(error)
            nested.append(False)

    for interruption in each_interruption(accumulator, handler=handle):
        sending.append(records())
        sending[-1].add(b"before", None, None, 7)
        interruption.during(lambda: send(sending[-1]))
        taken = interruption.where != "" and nested[-1]
        refused += interruption.where != "" and not nested[-1]
        assert count_taken(sending[-1]) == 2 + taken, interruption.where
    assert 0 < refused < len(nested)


def outcomes(client: Client, handle: Callable[[Accumulator], object]) -> set[str]:
    """What becomes of ``handle`` before each byte code of a send. The loop needs the lock."""
    sending: list[Accumulator] = []
    found: set[str] = set()

    def handler() -> None:
        taken = sending[-1]
        client._call_soon(lambda _: taken.end_linger())
        try:
            handle(taken)
            found.add("done")
        except InvalidArgument as error:
            assert "amid the send of a producer" in str(error)
            found.add("refused")

    client._run(nothing)
    for interruption in each_interruption(accumulator, handler=handler):
        sending.append(records())
        send = partial(sending[-1].add, b"outer", None, None, 7)
        within(partial(interruption.during, send))
        assert client._run(nothing) == "done", interruption.where
    return found


def test_a_call_amid_a_send_ends_or_is_refused(client: Client) -> None:
    assert outcomes(client, lambda _: client._run(nothing)) == {"done", "refused"}


def test_a_wait_for_a_delivery_amid_a_send_ends_or_is_refused(client: Client) -> None:
    def wait(_: Accumulator) -> None:
        ticket = Ticket()
        client._call_soon(lambda _: ticket.resolve(DONE))
        assert Delivery(ticket, 0).result() == DONE

    assert outcomes(client, wait) == {"done", "refused"}


def test_a_client_that_is_closed_amid_a_send_is_closed_or_as_before() -> None:
    clients: list[Client] = []
    found: set[bool] = set()

    def close() -> None:
        client = clients[-1]
        client._call_soon(lambda _: taken.end_linger())
        try:
            client.close()
        except InvalidArgument as error:
            assert "amid the send of a producer" in str(error)
        found.add(client._closed)

    for interruption in each_interruption(accumulator, handler=close):
        taken = records()
        clients.append(Client(NOWHERE, timeout=0.2))
        clients[-1]._run(nothing)
        within(partial(interruption.during, partial(taken.add, b"outer", None, None, 7)))
        clients[-1].close()
    assert found == {False, True}


def test_a_client_may_be_closed_amid_its_close() -> None:
    clients: list[Client] = []
    for interruption in each_interruption(blocking, worker, handler=lambda: clients[-1].close()):
        clients.append(Client(NOWHERE, timeout=0.2))
        clients[-1]._begin()
        interruption.during(clients[-1].close, clients[-1]._workers[os.getpid()]._closing)
        assert clients[-1]._workers == {}, interruption.where


class _Loop:
    """A loop at which a signal handler runs before the call to it is made."""

    def __init__(self, handler: Callable[[], None]) -> None:
        self.calls = 0
        self.calls_of_handler = 0
        self._handler: Callable[[], None] | None = handler

    def call_soon_threadsafe(self, _: Callable[[], None]) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler()
            self.calls_of_handler = self.calls
        self.calls += 1


@on_loop
async def test_a_send_amid_the_wake_of_another_wakes_the_loop_itself() -> None:
    """Its caller may wait for the record, and only then the other one goes on."""
    async with cluster("n1") as (session, [node]):
        node.will(OpenProducer, ProducerOpened(5, 0))
        sender = (await (await log_of(session)).producer("loader"))._sender
        real, loop = sender._loop, _Loop(sender.wake)
        sender._loop = loop  # type: ignore[assignment]
        sender.wake()
        assert loop.calls_of_handler == 1
        sender.wake()  # the loop was asked, and has not come yet
        assert loop.calls == 2
        sender._loop = real
