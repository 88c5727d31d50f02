"""The thread of a blocking client: how it begins, what it waits for, and that it ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from interruption_rig import each_interruption

import quorate
from quorate.client import blocking, worker
from quorate.client.blocking import Client
from quorate.client.session import Session
from quorate.errors import Busy, InvalidArgument, Timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

# No process listens there.
NOWHERE = "127.0.0.1:1"
# A test that would hang fails after this long.
HANG_S = 20.0


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "quorate-client"]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = workers()
    yield
    assert workers() == before


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Client(NOWHERE, timeout=0.2) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(Busy, match="can't start new thread"):
                client.logs()
        with pytest.raises(Timeout, match="no node could be reached"):
            client.logs()


def test_a_client_that_is_closed_during_its_first_call_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(NOWHERE, timeout=0.2)

    def close_first(*arguments: Any) -> Session:
        client.close()
        return Session(*arguments)

    monkeypatch.setattr(blocking, "Session", close_first)
    with pytest.raises(InvalidArgument, match="the client is closed"):
        client.logs()


def test_of_two_first_calls_one_begins_the_thread_and_both_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = threading.Barrier(2)

    def together(*arguments: Any) -> Session:
        both.wait(HANG_S)
        return Session(*arguments)

    monkeypatch.setattr(blocking, "Session", together)
    with Client(NOWHERE, timeout=0.2) as client:
        errors: list[quorate.QuorateError] = []

        def call() -> None:
            try:
                client.logs()
            except quorate.QuorateError as error:
                errors.append(error)

        callers = [threading.Thread(target=call) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(HANG_S)
        assert [type(error) for error in errors] == [Timeout, Timeout]
        assert len(client._workers) == 1


def test_closing_does_not_wait_for_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def resolve(*_: object, **__: object) -> list[Any]:
        asked.set()
        answer.wait(HANG_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    client = Client("db.example:7401", timeout=0.2)
    try:
        with pytest.raises(Timeout):
            client.logs()
        client.close()
        assert asked.is_set()
        assert not answer.is_set()
    finally:
        answer.set()


def test_a_timeout_that_comes_from_below_is_raised_as_it_is() -> None:
    async def fail(_: Session) -> None:
        raise TimeoutError("from below")

    raised: list[BaseException] = []
    with Client(NOWHERE) as client:

        def call() -> None:
            try:
                client._run(fail)
            except TimeoutError as error:
                raised.append(error)

        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        caller.join(HANG_S)
        assert [str(error) for error in raised] == ["from below"]


@pytest.fixture
def alarm() -> Iterator[None]:
    """An application whose handler raises TimeoutError, as many do."""

    def ring(*_: object) -> None:
        raise TimeoutError("of the application")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.signal(signal.SIGALRM, before)


def waits(thread: int) -> bool:
    """Whether a thread waits for the result of its call."""
    return sys._current_frames()[thread].f_code is worker._Call.wait.__code__


@pytest.mark.usefixtures("alarm")
def test_what_a_signal_handler_raises_ends_the_call() -> None:
    caller = threading.get_ident()
    ended = threading.Event()

    async def work(_: Session) -> None:
        # Not sooner: asyncio takes an OSError, such as TimeoutError, that a handler raises within
        # its wake of the loop for a failure of that wake, and drops it.
        while not waits(caller):  # noqa: ASYNC110  # a frame sets no event
            await asyncio.sleep(0)
        signal.pthread_kill(caller, signal.SIGALRM)
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    with Client(NOWHERE) as client:
        with pytest.raises(TimeoutError, match="of the application"):
            client._run(work)
        assert ended.wait(HANG_S / 2), "its caller is gone"


def test_an_interrupted_call_keeps_no_lock_that_the_loop_needs() -> None:
    async def nothing(_: Session) -> str:
        return "done"

    with Client(NOWHERE) as client:
        client._run(nothing)
        for interruption in each_interruption(
            blocking, worker, threading, concurrent.futures._base
        ):
            interruption.during(lambda: client._run(nothing))
            answers: list[str] = []
            caller = threading.Thread(
                target=lambda answers=answers: answers.append(client._run(nothing)), daemon=True
            )
            caller.start()
            caller.join(HANG_S)
            assert answers == ["done"], interruption.where


def test_a_close_that_was_interrupted_can_be_repeated() -> None:
    before = workers()
    for interruption in each_interruption(blocking, worker):
        client = Client(NOWHERE, timeout=0.2)
        client._begin()
        interruption.during(client.close, client._workers[os.getpid()]._closing)
        client.close()
        assert workers() == before, interruption.where
        with pytest.raises(InvalidArgument, match="the client is closed"):
            client.logs()


def test_two_threads_may_close_a_client() -> None:
    for _ in range(5):
        client = Client(NOWHERE, timeout=0.2)
        client._begin()
        errors: list[Exception] = []

        def close(client: Client = client, errors: list[Exception] = errors) -> None:
            try:
                client.close()
            except (quorate.QuorateError, RuntimeError) as error:
                errors.append(error)

        closers = [threading.Thread(target=close) for _ in range(2)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(HANG_S)
        assert errors == []
