"""More than a node can take: BUSY for what is too much, bounded memory, and then all is well."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from faults_rig import MIB, Raw, Writer, batch_of, grow, lag_free, until

from quorate.errors import Busy, QuorateError
from quorate.testing.processes import cluster
from quorate.wire.calls import Status, encode_call
from quorate.wire.frames import FrameKind
from quorate.wire.requests import (
    AppendRequest,
    Fetch,
    decode_failure,
    decode_receipts,
    encode_append,
    encode_fetch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.testing.processes import Cluster

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

PENDING_APPENDS = 64
PENDING_BYTES = 1 * MIB
CONNECTIONS = 40
SETTINGS = {
    "limits": {
        "batch_bytes": 1 * MIB,
        "pending_appends": PENDING_APPENDS,
        "pending_bytes": PENDING_BYTES,
        "connections": CONNECTIONS,
    },
    "storage": {"segment_bytes": 16 * MIB},
}
# The newest entries that stay in memory, and what an interpreter needs for its own purposes.
MEMORY_BYTES = 32 * MIB + 48 * MIB
# What waits for clients that do not read, for all of them together. What the allocator keeps of
# pieces that were given back comes on top.
UNSENT_BYTES = 256 * MIB


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared: every test leaves all nodes up and equal."""
    directory = tmp_path_factory.mktemp("overload")
    with cluster(logs=["orders"], directory=directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Cluster]:
    """With memory that nothing was done with yet."""
    with cluster(logs=["orders"], directory=tmp_path, settings=SETTINGS) as running:
        yield running


class Flood:
    """One connection that sends appends as fast as it can, and counts what they are answered."""

    def __init__(self, address: str, batch: bytes, count: int) -> None:
        self._raw = Raw(address)
        self._raw.say_hello()
        self._log = self._raw.find("orders")
        self._batch = batch
        self._count = count
        self.answers: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._count_)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._raw.socket.close()

    def _send(self) -> None:
        for request in range(self._count):
            append = AppendRequest(request, self._log, self._batch)
            self._raw.send(encode_append(append), self._batch)

    def _count_(self) -> None:
        while self.answers.total() < self._count:
            frame = self._raw.receive()
            if frame is None:
                return
            if frame.kind is FrameKind.FAILURE:
                self.answers[decode_failure(frame).error.code] += 1
            elif frame.kind is FrameKind.RECEIPTS:
                self.answers["acked"] += sum(1 for _ in decode_receipts(frame).answers())


def flood(address: str, connections: int, size: int, count: int) -> Counter[str]:
    """What ``connections`` times ``count`` appends of ``size`` bytes were answered."""
    floods = [Flood(address, batch_of(bytes(size)), count) for _ in range(connections)]
    for one in floods:
        one.join()
    answers: Counter[str] = Counter()
    for one in floods:
        answers += one.answers
    return answers


def test_ten_times_the_load_is_busy_and_takes_no_memory(fresh: Cluster) -> None:
    leader = fresh.wait_leader("orders")
    log = fresh.client().log("orders")
    log.append(b"first")
    before = fresh.nodes[leader].memory_bytes
    answers = flood(fresh.address(leader), connections=8, size=8 << 10, count=2500)
    # Whatever was sent has an answer; what was refused is not in the log.
    assert answers.total() == 8 * 2500
    assert answers.keys() <= {"acked", "BUSY"}
    assert answers["BUSY"] > 0
    assert answers["acked"] > 0
    assert log.end_offset() == 1 + answers["acked"]
    assert fresh.nodes[leader].memory_peak_bytes < before + MEMORY_BYTES
    # And then it is as before.
    assert flood(fresh.address(leader), 1, 100, PENDING_APPENDS // 2) == {
        "acked": PENDING_APPENDS // 2
    }
    until(lambda: lag_free(fresh, "orders"), "all nodes have everything")


def test_a_leader_that_nobody_answers_takes_no_more(fresh: Cluster) -> None:
    """Its appends stay open until it knows that it leads no more; meanwhile others are BUSY."""
    leader = fresh.wait_leader("orders")
    log = fresh.client().log("orders")
    log.append(b"first")
    before = fresh.nodes[leader].memory_bytes
    for other in fresh.others(leader):
        fresh.pause(other)
    answers = flood(fresh.address(leader), connections=4, size=8 << 10, count=2500)
    assert answers.total() == 4 * 2500
    assert answers["BUSY"] > 0
    assert answers["OUTCOME_UNKNOWN"] <= PENDING_APPENDS
    assert answers.keys() <= {"BUSY", "OUTCOME_UNKNOWN", "NOT_LEADER", "acked"}
    assert fresh.nodes[leader].memory_peak_bytes < before + MEMORY_BYTES
    for other in fresh.others(leader):
        fresh.resume(other)
    log.append(b"again")
    until(lambda: lag_free(fresh, "orders"), "all nodes have everything")
    kept = log.end_offset() - 2 - answers["acked"]
    assert 0 <= kept <= answers["OUTCOME_UNKNOWN"]


def test_a_crowd_over_the_cap_is_refused_and_peers_are_not(nodes: Cluster) -> None:
    leader = nodes.wait_leader("orders")
    writer = nodes.client().log("orders")
    before = writer.append(b"before")
    refused: list[str] = []
    with ExitStack() as stack:
        for _ in range(3 * CONNECTIONS):
            raw = stack.enter_context(Raw(nodes.address(leader)))
            try:
                raw.say_hello()
            except QuorateError as error:
                assert isinstance(error, Busy), error
                refused.append(str(error))
        assert len(refused) >= 2 * CONNECTIONS
        assert f"limit {CONNECTIONS}" in refused[0]
        # Peers come and go as before, and so do those clients who were there first.
        follower = nodes.others(leader)[0]
        nodes.kill(follower)
        assert writer.append(b"meanwhile").term == before.term
        nodes.begin(follower)
        until(lambda: f"peer={leader} purpose=control" in _last_life(nodes, follower), "it is back")
        assert writer.append(b"in the crowd").term == before.term
    until(lambda: lag_free(nodes, "orders"), "all nodes have everything")
    with Raw(nodes.address(leader)) as raw:
        assert raw.say_hello().node == leader


def _last_life(nodes: Cluster, name: str) -> str:
    """The links of a node that came up since it was last started."""
    said = nodes.nodes[name].said.splitlines()
    starts = [place for place, line in enumerate(said) if "node serves" in line]
    return "\n".join(line for line in said[starts[-1] - 6 :] if "link up" in line)


def test_silent_strangers_make_room_for_others(nodes: Cluster) -> None:
    """Connections that never say HELLO: the oldest of them go, and nobody else has to wait."""
    leader = nodes.wait_leader("orders")
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(Raw(nodes.address(leader)))
        with nodes.client() as client:
            client.log("orders").append(b"through the crowd")
        with Raw(nodes.address(leader)) as raw:
            assert raw.say_hello().node == leader


def test_a_burst_of_calls_is_answered(nodes: Cluster) -> None:
    """More questions at once than a connection may have: each has an answer or is BUSY."""
    leader = nodes.wait_leader("orders")
    count = 2000
    with Raw(nodes.address(leader)) as raw:
        raw.say_hello()
        raw.send(*(encode_call(request, Status()) for request in range(count)))
        kinds = Counter(_kind(raw) for _ in range(count))
    assert kinds.total() == count
    assert kinds.keys() <= {"RESULT", "BUSY"}
    assert kinds["RESULT"] > 0


def _kind(raw: Raw) -> str:
    frame = raw.receive()
    assert frame is not None
    return decode_failure(frame).error.code if frame.kind is FrameKind.FAILURE else frame.kind.name


def test_readers_that_do_not_read_cost_little(fresh: Cluster) -> None:
    """Each asks for a lot and takes nothing; what they were given is bounded, for all together."""
    leader = fresh.wait_leader("orders")
    log = fresh.client().log("orders")
    # More than stays in memory: the beginning is read from disk.
    grow(log, 48 * MIB)
    before = fresh.nodes[leader].memory_bytes
    with ExitStack() as stack:
        for _ in range(32):
            reader = stack.enter_context(Raw(fresh.address(leader)))
            reader.say_hello()
            incarnation = reader.find("orders")
            reader.send(*(encode_fetch(Fetch(one, incarnation, 0, MIB)) for one in range(256)))
        with Writer(fresh.client(), "orders") as writer:
            writer.goes_on(200)
        assert fresh.nodes[leader].memory_peak_bytes < before + 3 * UNSENT_BYTES
    assert fresh.nodes[leader].running


@pytest.mark.parametrize("seed", range(2))
def test_a_node_that_stood_still_serves_its_queue(nodes: Cluster, seed: int) -> None:
    """Everything that piled up in front of a stopped leader is answered when it goes on."""
    draw = random.Random(seed)
    leader = nodes.wait_leader("orders")
    node = nodes.nodes[leader]
    with Raw(nodes.address(leader)) as raw:
        raw.say_hello()
        log = raw.find("orders")
        node.signal(signal.SIGSTOP)
        batch = batch_of(bytes(100))
        count = draw.randrange(50, 300)
        raw.send(*(encode_append(AppendRequest(one, log, batch)) + batch for one in range(count)))
        node.signal(signal.SIGCONT)
        answered = 0
        while answered < count:
            frame = raw.receive()
            assert frame is not None
            failed = frame.kind is FrameKind.FAILURE
            answered += 1 if failed else sum(1 for _ in decode_receipts(frame).answers())
        assert answered == count
