"""The thread of a blocking client: how it begins, what it waits for, and that it ends."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

import quorate
from quorate.client import blocking
from quorate.client.blocking import Client
from quorate.client.session import Session
from quorate.errors import Busy, InvalidArgument, Timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nobody listens there.
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
