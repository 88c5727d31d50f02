"""How long a node waits for slow peers and clients, with the limits that it really has.

Takes minutes, so `make test` leaves it out: name this file to pytest. The same rules are tested
with short limits in tests/net.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from faults_rig import MIB, SMALL, Raw, Writer, batch_of, grow

from quorate.errors import Timeout
from quorate.testing.processes import cluster
from quorate.wire.frames import FrameKind
from quorate.wire.handshake import open_welcome
from quorate.wire.requests import AppendRequest, Fetch, encode_append, encode_fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.testing.processes import Cluster

LOG = "orders"
PATIENCE_S = 150.0
# As /proc/net/tcp says it.
ESTABLISHED = "01"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("patience")
    with cluster(logs=[LOG], directory=directory, settings=SMALL) as running:
        yield running


@pytest.fixture
def leader(nodes: Cluster) -> str:
    return nodes.wait_leader(LOG)


def test_a_stranger_that_says_nothing_is_told_to_go(nodes: Cluster, leader: str) -> None:
    with Raw(nodes.address(leader)) as raw:
        frame = raw.receive()
        assert frame is not None
        with pytest.raises(Timeout, match="no HELLO came in 5000 ms"):
            open_welcome(frame)
        assert raw.closed


def test_a_reader_that_does_not_read_is_cut_off(nodes: Cluster, leader: str) -> None:
    log = nodes.client().log(LOG)
    grow(log, 20 * MIB)
    node = nodes.nodes[leader]
    before = node.memory_bytes
    with ExitStack() as stack:
        reader = stack.enter_context(Raw(nodes.address(leader)))
        reader.say_hello()
        incarnation = reader.find(LOG)
        reader.send(*(encode_fetch(Fetch(one, incarnation, 0, MIB)) for one in range(100)))
        writer = stack.enter_context(Writer(nodes.client(), LOG))
        _wait_for(lambda: _cut_off(reader))
        writer.goes_on()
    assert node.memory_peak_bytes < before + 200 * MIB


def _cut_off(reader: Raw) -> bool:
    """Whether no node has an open connection to ``reader`` any more."""
    port = reader.socket.getsockname()[1]
    with open("/proc/net/tcp", encoding="ascii") as lines:  # noqa: PTH123  # not a file of ours
        fields = [line.split() for line in lines]
    return not any(one[2].endswith(f":{port:04X}") and one[3] == ESTABLISHED for one in fields)


def test_a_frame_that_trickles_in_is_not_waited_for(nodes: Cluster, leader: str) -> None:
    """A byte a second, as somebody does who wants to hold connections for nothing."""
    with Raw(nodes.address(leader)) as raw:
        raw.say_hello()
        batch = batch_of(bytes(1000))
        frame = encode_append(AppendRequest(1, raw.find(LOG), batch)) + batch
        ended = threading.Event()

        def trickle() -> None:
            for byte in frame:
                if ended.wait(1.0):
                    return
                try:
                    raw.socket.sendall(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            raw.socket.settimeout(PATIENCE_S)
            while (got := raw.receive()) is not None:
                assert got.kind in (FrameKind.PING, FrameKind.PONG)
        finally:
            ended.set()
            thread.join()


def test_a_client_that_is_idle_stays(nodes: Cluster, leader: str) -> None:
    """It answers PING by itself: idle is not dead."""
    log = nodes.client().log(LOG)
    first = log.append(b"first")
    time.sleep(45)
    assert log.append(b"second").term == first.term


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.2)
