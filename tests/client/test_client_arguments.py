"""What cannot be meant is refused before anybody is asked, and named as the caller named it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from quorate import AsyncClient, Client
from quorate.client.blocking import Log
from quorate.client.pool import reason
from quorate.client.routing import Route
from quorate.errors import InvalidArgument
from quorate.wire.requests import AppendRequest, encode_append

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nobody listens there.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(NOWHERE, timeout=60.0) as made:
        yield made


@pytest.mark.parametrize("endpoints", [None, 5, b"127.0.0.1:7401", ["127.0.0.1:7401", None]])
def test_endpoints(endpoints: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidArgument, match=r"^endpoints = .* is not host:port"):
            kind(endpoints)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".org", "\ud800.org", "."])
def test_a_host_that_no_name_server_could_be_asked_for(host: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidArgument, match=r"^address .* is not the name of a host"):
            kind([f"{host}:7401", NOWHERE])


@pytest.mark.parametrize("timeout", [None, 0, -1, "30", float("nan"), float("inf"), 86_401])
def test_no_timeout_means_for_ever(timeout: Any) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidArgument, match=r"^timeout = .* is not a number of seconds"):
            kind(NOWHERE, timeout=timeout)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", None, 5])
def test_the_name_of_a_log(client: Client, name: Any) -> None:
    for act in (client.log, client.create_log, client.delete_log):
        with pytest.raises(InvalidArgument, match=r"^the name of a log is 1 to 249 letters"):
            act(name)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, None, 5])
def test_the_name_of_a_producer(client: Client, name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^producer name .* is no name: 1 to 255 bytes"):
        Log(client, Route("orders", 1, [])).producer(name)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, 5, 0, b"writer"])
def test_a_fence(client: Client, name: Any) -> None:
    log = Log(client, Route("orders", 1, []))
    with pytest.raises(InvalidArgument, match=r"^fence .* is no name: 1 to 255 bytes"):
        log.producer("loader", fence=name)
    with pytest.raises(InvalidArgument, match=r"^fence .* is no name: 1 to 255 bytes"):
        encode_append(AppendRequest(0, 1, b"", fence=name))
    for arguments in ({"fence": name, "expect": None}, {"fence": "writer", "expect": name}):
        with pytest.raises(InvalidArgument, match=r"^fence .* is no name: 1 to 255 bytes"):
            log.set_fence(**arguments)


@pytest.mark.parametrize("offset", [0.0, 1.5, "", "x", [], -1, 1 << 64])
def test_an_expected_offset(offset: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^expect_offset is .*, not a whole number"):
        encode_append(AppendRequest(0, 1, b"", expect_offset=offset))


@pytest.mark.parametrize("stop", ["x", "", 1.5, 0.0, [], -1])
def test_where_a_read_stops(client: Client, stop: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^stop = .* is no offset"):
        Log(client, Route("orders", 1, [])).read(0, stop)


@pytest.mark.parametrize("name", ["linger_ms", "batch_bytes", "memory_bytes"])
@pytest.mark.parametrize("value", ["x", None, [], -1, float("nan")])
def test_how_a_producer_gathers(client: Client, name: str, value: Any) -> None:
    log = Log(client, Route("orders", 1, []))
    with pytest.raises(InvalidArgument, match=rf"^{name} = .* is not between"):
        log.producer("loader", **{name: value})


def test_a_time_of_a_record(client: Client) -> None:
    when: Any = 1.5
    with pytest.raises(InvalidArgument, match=r"^timestamp = 1\.5 is not a whole number"):
        Log(client, Route("orders", 1, [])).append(b"a", timestamp=when)


def test_a_host_that_nobody_knows_is_told_in_words() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert reason(error) == "Name or service not known"
