"""Disks without room under real nodes: what is refused, what goes on, and who is told."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
from faults_rig import MIB, Writer, lag_free, page, until

from quorate.errors import DiskFull
from quorate.testing.processes import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOG = "orders"


def settle(nodes: Cluster) -> None:
    until(lambda: lag_free(nodes, LOG), "all nodes have everything")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """Nodes on disks of a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    settings = {
        "limits": {"batch_bytes": 128 << 10, "pending_bytes": 1 * MIB},
        "storage": {"segment_bytes": 1 * MIB, "disk_usage_max": 100},
    }
    with ExitStack() as stack:
        made = Cluster(tmp_path, settings=settings)
        for name in made.nodes:
            try:
                _mount(made.data(name))
            except subprocess.CalledProcessError as error:
                made.close()
                pytest.skip(f"no tmpfs can be mounted: {error.stderr.decode().strip()}")
            stack.callback(_unmount, made.data(name))
        stack.callback(made.close)
        made.start([LOG])
        # A disk that is filled before has no room for the log.
        settle(made)
        until(
            lambda: all(page(made, name, "/readyz")[0] == 200 for name in made.nodes), "all serve"
        )
        yield made


def _all_serve(nodes: Cluster) -> bool:
    return all(page(nodes, name, "/readyz")[0] == 200 for name in nodes.nodes)


def _mount(place: Path) -> None:
    """A file system of a few megabytes, in memory."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "none", str(place)]
    subprocess.run(command, check=True, capture_output=True)


def _unmount(place: Path) -> None:
    # Lazily: a node that was just killed may still hold a file.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(nodes: Cluster, name: str) -> Path:
    """Leave no room on a node's disk; the file that takes it."""
    place = nodes.data(name) / "logs" / "ballast"
    with place.open("wb") as file:
        room = shutil.disk_usage(place).free
        os.posix_fallocate(file.fileno(), 0, room)
    return place


def test_a_full_disk_of_one_node_is_no_trouble(small: Cluster) -> None:
    leader = small.wait_leader(LOG)
    log = small.client().log(LOG)
    log.append(b"first")
    ballast = fill(small, leader)
    with Writer(small.client(), LOG, threads=4) as writer:
        until(lambda: small.leader(LOG) not in (None, leader) or _full(writer, 3 * MIB), "it moves")
        writer.goes_on()
    assert small.nodes[leader].running
    writer.check()
    ballast.unlink()
    settle(small)
    writer.check()


def _full(writer: Writer, size: int) -> bool:
    # Its threads go on meanwhile.
    return sum(map(len, list(writer.acked))) > size


def test_full_disks_refuse_appends_and_let_read(small: Cluster) -> None:
    log = small.client(timeout=2.0).log(LOG)
    values = [bytes([number % 256]) * 60_000 for number in range(1000)]
    ballasts = [fill(small, name) for name in small.nodes]
    kept = 0
    with pytest.raises(DiskFull):
        for value in values:
            log.append(value)
            kept += 1
    assert kept > 0
    # Nothing of what was refused is there; everything else is, and can be read.
    assert log.end_offset() == kept
    assert [record.value for record in log.read(0)] == values[:kept]
    assert all(node.running for node in small.nodes.values())
    # There is room again.
    for ballast in ballasts:
        ballast.unlink()
    patient = small.client().log(LOG)
    assert patient.append(b"at last").offset == kept
    settle(small)


def test_nodes_on_full_disks_start_again(small: Cluster) -> None:
    log = small.client(timeout=2.0).log(LOG)
    ballasts = [fill(small, name) for name in small.nodes]
    kept = 0
    with pytest.raises(DiskFull):
        while True:
            log.append(bytes(60_000))
            kept += 1
    for name in small.nodes:
        small.kill(name)
    for name in small.nodes:
        small.begin(name)
    until(lambda: small.leader(LOG) is not None, "somebody leads")
    patient = small.client().log(LOG)
    assert patient.end_offset() == kept
    assert sum(1 for _ in patient.read(0)) == kept
    for ballast in ballasts:
        ballast.unlink()
    assert patient.append(b"at last").offset == kept
    settle(small)


# -- who is told -------------------------------------------------------------------------------


def said(nodes: Cluster, name: str, event: str) -> int:
    """How many lines of a node tell of ``event``."""
    return sum(f'event="{event}"' in line for line in nodes.nodes[name].said.splitlines())


def led(nodes: Cluster, name: str) -> str:
    """The lines with which a node told that it leads something."""
    lines = nodes.nodes[name].said.splitlines()
    return "\n".join(line for line in lines if 'event="replica leads"' in line)


def told_once(nodes: Cluster, name: str, event: str) -> bool:
    return said(nodes, name, event) == 1


def test_a_log_is_not_made_without_room_and_the_refusal_says_where(small: Cluster) -> None:
    ballasts = [fill(small, name) for name in small.nodes]
    client = small.client(timeout=3.0)
    share = r"\(\d+ % of the disk are in use, storage\.disk_usage_max = 100\)"
    each = ", ".join(f"n{number} {share}" for number in (1, 2, 3))
    with pytest.raises(DiskFull, match=f"^no room for another log on {each}; free some space"):
        client.create_log("more")
    for name in small.nodes:
        until(partial(told_once, small, name, "disk without room"), "it is told")
        assert "quorate_disk_full 1.0" in page(small, name, "/metrics")[1]
    assert all(node["full"] and node["disk_used"] == 100 for node in client.status()["nodes"])
    for ballast in ballasts:
        ballast.unlink()
    patient = small.client()
    # Nothing was logged, so nothing comes to be by itself.
    assert patient.logs() == [LOG]
    patient.create_log("more").append(b"x")
    for name in small.nodes:
        until(partial(told_once, small, name, "disk has room again"), "it is told")
        assert said(small, name, "disk without room") == 1
        assert said(small, name, "the catalog waits") == 0


def test_a_log_is_made_while_one_disk_is_full(small: Cluster) -> None:
    """Unless it is the one on which the catalog is led."""
    client = small.client()
    followers = [name for name in small.nodes if "log=/catalog" not in led(small, name)]
    ballast = fill(small, followers[0])
    until(lambda: sum(bool(one["full"]) for one in client.status()["nodes"]) == 1, "it is known")
    client.create_log("another").append(b"x")
    ballast.unlink()


def test_a_follower_without_room_is_shown_and_told_once(small: Cluster) -> None:
    leader = small.wait_leader(LOG)
    follower = small.others(leader)[0]
    ballast = fill(small, follower)
    log = small.client().log(LOG)
    # More than two segments, and one that shows how far the follower is behind.
    for _ in range(40):
        log.append(bytes(100_000))

    def shown() -> bool:
        found = small.look(LOG)
        assert found is not None
        full = {one["node"]: one["full"] for one in found["replicas"]}
        return full == {name: name == follower for name in full}

    until(shown, "the follower is shown without room")
    until(partial(told_once, small, follower, "replica without room"), "it tells")
    until(partial(told_once, small, leader, "peer without room"), "the leader tells")
    assert f'quorate_replica_full{{log="{LOG}"}} 1.0' in page(small, follower, "/metrics")[1]
    stalls = said(small, leader, "replica peer-stalled")
    ballast.unlink()
    settle(small)
    until(partial(told_once, small, leader, "peer has room again"), "it tells of the end, too")
    assert said(small, leader, "replica peer-stalled") == stalls <= 1
    assert said(small, leader, "peer without room") == 1


def test_a_refused_append_names_the_nodes_without_room(small: Cluster) -> None:
    log = small.client(timeout=2.0).log(LOG)
    for name in small.nodes:
        fill(small, name)
    with pytest.raises(DiskFull) as refused:
        while True:
            log.append(bytes(60_000))
    text = str(refused.value)
    assert text.startswith("no room for ")
    assert "% of the disk are in use, storage.disk_usage_max = 100" in text
    assert text.endswith("; free some space there, or raise storage.disk_usage_max")
