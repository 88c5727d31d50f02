"""The kit for users' own tests: every name of it, on real processes, and how it refuses misuse."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quorate
from quorate.errors import InvalidArgument, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 40.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with quorate.testing.cluster(nodes=3, logs=["orders"]) as running:
        yield running


@pytest.fixture
def nodes(shared: Cluster) -> Iterator[Cluster]:
    """All nodes run and hear each other, before and after."""
    yield shared
    shared.heal()
    for name in shared.nodes:
        shared.resume(name)
        shared.begin(name)
    shared.wait_leader("orders", timeout=PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    # Who is dead and not yet waited for does nothing any more.
    return state != "Z"


# -- the names -----------------------------------------------------------------------------------


def test_the_package_has_it_without_another_import() -> None:
    code = (
        "import sys, quorate\n"
        "print('quorate.testing' in sys.modules)\n"
        "testing = quorate.testing\n"
        "print({'quorate.testing.processes', 'quorate.client'} & set(sys.modules))\n"
        "print(testing.cluster.__name__, 'verification.sim' in sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\nset()\ncluster False\n"
    with pytest.raises(AttributeError, match="no attribute 'kafka'"):
        getattr(quorate.testing, "kafka")  # noqa: B009  # an attribute would not pass the checker


def test_it_takes_what_was_promised() -> None:
    parameters = inspect.signature(quorate.testing.cluster).parameters
    assert list(parameters)[:2] == ["nodes", "logs"]
    assert parameters["nodes"].default == 3
    wait = inspect.signature(quorate.testing.Cluster.wait_leader).parameters
    assert list(wait) == ["self", "log", "timeout"]


def test_nodes_and_clients(nodes: Cluster) -> None:
    assert list(nodes.nodes) == ["n1", "n2", "n3"]
    assert nodes.endpoints == ",".join(nodes.address(name) for name in nodes.nodes)
    with quorate.Client(nodes.endpoints) as own:
        assert own.logs()[:1] == ["orders"]
    log = nodes.client().log("orders")
    receipt = log.append(b"v")
    assert next(nodes.client(timeout=20.0).log("orders").read(receipt.offset)).value == b"v"
    assert nodes.leader("orders") == nodes.wait_leader("orders")
    assert nodes.leader("nothing of that name") is None


# -- what is done to nodes -----------------------------------------------------------------------


def test_a_killed_leader_is_replaced_and_comes_back(nodes: Cluster) -> None:
    leader = nodes.wait_leader("orders")
    killed = nodes.nodes[leader].pid
    nodes.kill(leader)
    assert not alive(killed)
    assert nodes.wait_leader("orders") != leader
    nodes.restart(leader)
    assert nodes.nodes[leader].pid != killed
    assert nodes.client().log("orders").append(b"v").count == 1


def test_a_paused_leader_is_replaced(nodes: Cluster) -> None:
    leader = nodes.wait_leader("orders")
    nodes.pause(leader)
    assert nodes.nodes[leader].running
    assert nodes.wait_leader("orders") != leader
    nodes.resume(leader)


def test_a_leader_that_is_cut_off_is_replaced(nodes: Cluster) -> None:
    leader = nodes.wait_leader("orders")
    nodes.partition([leader], nodes.others(leader))
    assert nodes.wait_leader("orders") != leader
    nodes.heal()


def test_a_majority_apart_is_no_majority(nodes: Cluster) -> None:
    nodes.partition(*([name] for name in nodes.nodes))
    with pytest.raises(Timeout, match=r"no node leads orders after 0\.5 s; n1 is up.*n1 to n2"):
        nodes.wait_leader("orders", timeout=0.5)
    nodes.heal()
    nodes.wait_leader("orders", timeout=PATIENCE_S)


def test_a_running_node_is_restarted_in_good_order(nodes: Cluster) -> None:
    before = nodes.nodes["n2"].pid
    nodes.restart("n2")
    assert nodes.nodes["n2"].pid != before
    assert "node stops" in nodes.nodes["n2"].said or "node stopped" in nodes.nodes["n2"].said


def test_a_node_outlives_the_thread_that_restarted_it(nodes: Cluster) -> None:
    """The kernel ends it with the thread that started it, which must not be one of the test's."""
    thread = threading.Thread(target=nodes.restart, args=("n3",))
    thread.start()
    thread.join()
    status = nodes.client().status()
    until(lambda: next(one["up"] for one in nodes.client().status()["nodes"] if one["id"] == "n3"))
    assert nodes.nodes["n3"].running, status


# -- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "misuse",
    [
        lambda nodes: nodes.kill("n4"),
        lambda nodes: nodes.pause("n4"),
        lambda nodes: nodes.resume("n4"),
        lambda nodes: nodes.restart("n4"),
        lambda nodes: nodes.address("n4"),
        lambda nodes: nodes.others("n4"),
        lambda nodes: nodes.partition(["n1"], ["n4"]),
    ],
)
def test_a_name_that_no_node_has_is_refused(
    nodes: Cluster, misuse: Callable[[Cluster], object]
) -> None:
    with pytest.raises(InvalidArgument, match="no node is called 'n4'; there are n1, n2, n3"):
        misuse(nodes)


@pytest.mark.parametrize(
    "sides", [["n1", "n2"], [["n1"]], [], [["n1"], ["n1", "n2"]], [["n1", "n1"], ["n2"]]]
)
def test_sides_that_are_none_are_refused(nodes: Cluster, sides: list[list[str]]) -> None:
    with pytest.raises(InvalidArgument, match="side"):
        nodes.partition(*sides)


def test_a_node_that_is_down_cannot_be_killed_or_paused(nodes: Cluster) -> None:
    nodes.kill("n1")
    for misuse in (nodes.kill, nodes.pause, nodes.stop):
        with pytest.raises(InvalidArgument, match=r"n1 is down; start it with restart\('n1'\)"):
            misuse("n1")
    nodes.restart("n1")


def test_links_that_cannot_be_cut_are_named() -> None:
    with quorate.testing.cluster(nodes=1, cuttable=False) as one:
        with pytest.raises(InvalidArgument, match="made without cuttable"):
            one.cut("n1", "n2")
        with pytest.raises(InvalidArgument, match="it is one node"):
            one.cut("n1", "n1")


def test_a_cluster_has_a_node(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="at least one"):
        quorate.testing.Cluster(tmp_path, 0)


def test_a_cluster_that_cannot_serve_says_why(tmp_path: Path) -> None:
    bad = {"limits": {"no_such_limit": 1}}
    with (
        pytest.raises(InvalidArgument, match=r"n1 ended: .*no_such_limit"),
        quorate.testing.cluster(nodes=1, directory=tmp_path, settings=bad),
    ):
        pass


# -- nothing is left -----------------------------------------------------------------------------


def test_nothing_is_left_when_the_context_ends() -> None:
    threads = threading.active_count()
    with quorate.testing.cluster(nodes=1, logs=["orders"]) as one:
        pid, place = one.nodes["n1"].pid, one.directory
        client = one.client()
        assert client.logs() == ["orders"]
    assert not alive(pid)
    assert not place.exists()
    assert threading.active_count() == threads
    with pytest.raises(InvalidArgument, match="the client is closed"):
        client.logs()


def test_nothing_is_left_when_the_test_process_is_killed() -> None:
    code = (
        "import quorate\n"
        "with quorate.testing.cluster(nodes=2) as cluster:\n"
        "    cluster.pause('n2')\n"
        "    print(*(node.pid for node in cluster.nodes.values()), cluster.directory, flush=True)\n"
        "    input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        *pids, directory = process.stdout.readline().split()
        assert all(alive(int(pid)) for pid in pids)
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(alive(int(pid)) for pid in pids))
    # Nobody was there to remove it.
    subprocess.run(["rm", "-r", directory], check=True)


# -- what users read -----------------------------------------------------------------------------


def run_pytest(place: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_example_passes() -> None:
    assert "4 passed" in run_pytest(ROOT / "examples" / "test_orders.py")


def test_the_suite_in_the_guide_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
    suite = "".join(re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    (tmp_path / "test_guide.py").write_text(suite, encoding="utf-8")
    assert "2 passed" in run_pytest(tmp_path / "test_guide.py")
