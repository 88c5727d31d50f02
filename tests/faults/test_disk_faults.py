"""Disks that fail or stand still under a real node, and nodes without another file to open."""

from __future__ import annotations

import resource
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from faults_rig import MIB, PATIENCE_S, SMALL, Raw, Writer, batch_of, grow, lag_free, page, until

from quorate.errors import Busy, Corrupt, QuorateError
from quorate.testing.processes import Cluster, cluster
from verification.preload import FaultyDisks, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOG = "orders"


def settle(nodes: Cluster) -> None:
    until(lambda: lag_free(nodes, LOG), "all nodes have everything")


# -- disks that fail ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> FaultyDisks:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    return FaultyDisks(tmp_path_factory.mktemp("disks"))


@pytest.fixture(scope="module")
def shared(disks: FaultyDisks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("nodes")
    with cluster(
        logs=[LOG], directory=directory, settings=SMALL, environment=disks.environment
    ) as running:
        yield running


@pytest.fixture
def nodes(shared: Cluster, disks: FaultyDisks) -> Iterator[Cluster]:
    settle(shared)
    yield shared
    for name in shared.nodes:
        disks.mend(name)
        shared.begin(name)
    settle(shared)


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_sync_that_fails_ends_the_node_at_once(
    nodes: Cluster, disks: FaultyDisks, victim: str
) -> None:
    leader = nodes.wait_leader(LOG)
    failing = leader if victim == "leader" else nodes.others(leader)[0]
    node = nodes.nodes[failing]
    said = len(node.said)
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        disks.fail_sync(failing)
        assert node.wait(PATIENCE_S) == 1
        assert disks.failed(failing)
        # The others go on.
        writer.goes_on()
        words = node.said[said:]
        assert "error: DISK_FAILED: " in words
        assert "Input/output error" in words
        assert "Traceback" not in words
        # The disk works again: so does the node, after a while.
        nodes.begin(failing)
        settle(nodes)
        writer.goes_on()
    assert "the disk failed before: waiting" in node.said[said:]
    writer.check()


def test_a_write_that_fails_ends_the_node_too(nodes: Cluster, disks: FaultyDisks) -> None:
    """Room for it was there: a disk that takes it back is as bad as one that does not write."""
    leader = nodes.wait_leader(LOG)
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        disks.fail_writes(leader)
        assert nodes.nodes[leader].wait(PATIENCE_S) == 1
        writer.goes_on()
        disks.mend(leader)
        nodes.begin(leader)
        settle(nodes)
    assert "No space left on device" in nodes.nodes[leader].said
    writer.check()


def test_what_one_disk_cannot_read_is_read_from_another(nodes: Cluster, disks: FaultyDisks) -> None:
    log = nodes.client().log(LOG)
    mark = log.append_batch([b"one", b"two", b"three"]).offset
    # So much more that the beginning is in nobody's memory.
    grow(log, 40 * MIB)
    settle(nodes)
    leader = nodes.wait_leader(LOG)
    disks.fail_reads(leader)
    reader = nodes.client().log(LOG)
    assert [record.value for record in reader.read(mark, mark + 3)] == [b"one", b"two", b"three"]
    for name in nodes.others(leader):
        disks.fail_reads(name)
    with pytest.raises(Corrupt, match=r"cannot read its disk|cannot be read now"):
        list(reader.read(mark, mark + 3))
    assert all(node.running for node in nodes.nodes.values())
    for name in nodes.nodes:
        disks.mend(name)

    def values() -> list[bytes]:
        """No value while the nodes have not read again what their disks refused."""
        with suppress(Corrupt):
            return [record.value for record in reader.read(mark, mark + 3)]
        return []

    until(values, "the records are read again")
    assert values() == [b"one", b"two", b"three"]


def test_a_leader_with_a_disk_that_stands_still_is_replaced(
    nodes: Cluster, disks: FaultyDisks
) -> None:
    leader = nodes.wait_leader(LOG)
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        disks.slow_down(leader, 5.0)
        until(lambda: nodes.leader(LOG) not in (None, leader), "another one leads")
        writer.goes_on()
        assert page(nodes, leader, "/livez")[0] == 200
        disks.mend(leader)
        settle(nodes)
    assert nodes.nodes[leader].running
    writer.check()


def test_a_follower_with_a_slow_disk_holds_nobody_up(nodes: Cluster, disks: FaultyDisks) -> None:
    leader = nodes.wait_leader(LOG)
    follower = nodes.others(leader)[0]
    found = nodes.look(LOG)
    assert found is not None
    disks.slow_down(follower, 0.1)
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on(300)
    assert not writer.unknown
    assert not writer.refused
    assert {receipt.term for receipt in writer.acked.values()} == {found["term"]}
    disks.mend(follower)
    writer.check()


def test_slow_disks_everywhere_are_slow_and_nothing_else(
    nodes: Cluster, disks: FaultyDisks
) -> None:
    found = nodes.look(LOG)
    assert found is not None
    for name in nodes.nodes:
        disks.slow_down(name, 0.1)
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on(20)
    assert {receipt.term for receipt in writer.acked.values()} == {found["term"]}
    writer.check()


# -- no files left -----------------------------------------------------------------------------

OPEN_FILES = 128


@pytest.fixture
def frugal(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes that may have few files open."""
    settings = {
        "limits": {"batch_bytes": 64 << 10},
        "storage": {"segment_bytes": 512 << 10},
    }
    with cluster(logs=[LOG], directory=tmp_path, settings=settings, open_files=OPEN_FILES) as nodes:
        yield nodes


def crowd(nodes: Cluster, name: str, stack: ExitStack) -> set[str]:
    """More connections than a node can have, half of them without a word; why some were refused."""
    refused = set()
    for number in range(2 * OPEN_FILES):
        raw = stack.enter_context(Raw(nodes.address(name)))
        if number % 2:
            raw.socket.settimeout(0.5)
            try:
                raw.say_hello()
            except QuorateError as error:
                refused.add(f"{error.code}: {error}")
            except (AssertionError, TimeoutError):
                refused.add("kept waiting, or cut off")
    return refused


def test_a_crowd_leaves_a_node_its_files(frugal: Cluster) -> None:
    leader = frugal.wait_leader(LOG)
    client = frugal.client()
    log = client.log(LOG)
    before = log.append(b"before")
    with ExitStack() as stack:
        refused = crowd(frugal, leader, stack)
        assert f"BUSY: too many files are open, limit {OPEN_FILES}" in refused
        # Who was there first goes on. Segments roll and logs are made: that takes files.
        for _ in range(30):
            assert log.append(bytes(60_000)).term == before.term
        for number in range(3):
            client.create_log(f"another-{number}").append(b"x")
        assert frugal.nodes[leader].running
    until(partial(_is_let_in, frugal, leader), "the node knows that the crowd is gone")
    with Raw(frugal.address(leader)) as raw:
        raw.say_hello()
        assert raw.append(raw.find(LOG), batch_of(b"after")).term == before.term


def test_a_node_without_another_file_goes_on_and_makes_up_for_it_later(frugal: Cluster) -> None:
    """The limit is lowered below what it has open: whatever it opens from then on is refused."""
    client = frugal.client()
    client.create_log("doomed")
    until(lambda: lag_free(frugal, "doomed"), "all nodes have it")
    # One that does not lead the catalog: the one that does needs files to lead it.
    led = 'event="replica leads" log=/catalog'
    victim = next(name for name, node in frugal.nodes.items() if led not in node.said)
    node = frugal.nodes[victim]
    _, most = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (8, most))
    client.create_log("another").append(b"x")
    until(lambda: "log put off" in node.said, "it cannot make the log")
    client.delete_log("doomed")
    until(lambda: "deletion put off" in node.said, "it cannot remove the log")
    # Who asks for a page, or connects, finds nobody; that ends nothing either.
    assert page(frugal, victim, "/livez")[0] == 0
    client.log(LOG).append(b"without it, if need be")
    assert node.running
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (most, most))
    until(lambda: lag_free(frugal, "another"), "it makes up for it")
    until(lambda: "log deleted" in node.said, "it removes what was deleted")
    assert frugal.stop(victim) == 0


def _is_let_in(nodes: Cluster, name: str) -> bool:
    with Raw(nodes.address(name)) as raw:
        try:
            raw.say_hello()
        except Busy:
            return False
    return True


def _is_ready(nodes: Cluster, name: str) -> bool:
    return page(nodes, name, "/readyz")[0] == 200


def test_as_many_logs_as_there_are_files_for(frugal: Cluster) -> None:
    made = 0
    with pytest.raises(Busy, match=f"a limit of {OPEN_FILES} open files"):
        client = frugal.client(timeout=5.0)
        for made in range(OPEN_FILES):
            client.create_log(f"another-{made}")
    assert made > OPEN_FILES // 8
    # All is well, also after a start.
    names = [LOG, *(f"another-{number}" for number in range(made))]
    for name in frugal.nodes:
        assert frugal.stop(name) == 0
        frugal.begin(name)
        until(partial(_is_ready, frugal, name), "it is ready")
    client = frugal.client()
    assert sorted(client.logs()) == sorted(names)
    for name in names:
        client.log(name).append(b"x")
