"""A leader whose clients flood it with short requests, over many connections at once."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import quorate
from quorate.net.dialling import parse_address
from quorate.wire.calls import FindLog, encode_call
from quorate.wire.handshake import Hello, encode_hello

if TYPE_CHECKING:
    from quorate.client.blocking import Client
    from quorate.client.results import LogSummary

LOG = "orders"
CONNECTIONS = 200
# What a node reads at once, full of the shortest requests.
FLOOD = encode_call(1, FindLog("o")) * 6000
HANG_S = 60.0


def summary(client: Client) -> LogSummary:
    [found] = client.status()["logs"]
    return found


def welcomed(address: tuple[str, int]) -> socket.socket:
    flooding = socket.create_connection(address, timeout=HANG_S)
    flooding.sendall(encode_hello(Hello("client")))
    assert flooding.recv(1 << 16)
    # A node that reads no more stops nothing here.
    flooding.setblocking(False)
    return flooding


@pytest.mark.timeout(120)
def test_a_flood_of_short_requests_costs_no_leadership() -> None:
    with quorate.testing.cluster(nodes=3, logs=[LOG]) as nodes, ExitStack() as open_sockets:
        leader = nodes.wait_leader(LOG)
        with nodes.client(timeout=HANG_S) as client:
            log = client.log(LOG)
            log.append(b"before")
            before = summary(client)
            address = parse_address(nodes.address(leader))
            floods = [open_sockets.enter_context(welcomed(address)) for _ in range(CONNECTIONS)]
            for flooding in floods:
                flooding.send(FLOOD)
            # The flood is in the node's sockets. Its requests come before this append.
            receipt = log.append(b"after")
            assert receipt.offset == 1
            after = summary(client)
        assert (after["leader"], after["term"]) == (before["leader"], before["term"])
