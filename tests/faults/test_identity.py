"""A node is its name and its disk: whoever has another one is not let in, and loses nothing."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
from faults_rig import PATIENCE_S, SMALL, Writer, lag_free, page, until

from quorate import Client
from quorate.errors import QuorateError
from quorate.testing.processes import Cluster, cluster
from quorate.testing.processes.node import NodeProcess
from quorate.testing.processes.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOG = "orders"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("identity")
    with cluster(logs=[LOG], directory=directory, settings=SMALL) as running:
        with Client(running.endpoints) as client:
            client.log(LOG).append_batch([b"a", b"b", b"c"])
        yield running


@pytest.fixture
def nodes(shared: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """What a test does to the data of a node is undone, and the cluster is whole again."""
    settle(shared)
    with ExitStack() as stack:
        for name in shared.nodes:
            stack.callback(_restore, shared, name, tmp_path / name)
        yield shared
    settle(shared)


def _restore(nodes: Cluster, name: str, kept: Path) -> None:
    """Put back the whole directory of a node that was kept while another disk had its name, or the
    parts that were taken out of it: an older copy of the whole would be refused."""
    whole, parts = kept / "whole", kept / "parts"
    if kept.exists() and nodes.nodes[name].running:
        nodes.kill(name)
    if whole.exists():
        shutil.rmtree(nodes.data(name), ignore_errors=True)
        shutil.move(whole, nodes.data(name))
    for file in [path for path in parts.rglob("*") if path.is_file()]:
        place = nodes.data(name) / file.relative_to(parts)
        place.parent.mkdir(exist_ok=True)
        shutil.move(file, place)
    nodes.begin(name)


def settle(nodes: Cluster) -> None:
    until(lambda: lag_free(nodes, LOG), "all nodes have everything")


def stop_one(nodes: Cluster) -> str:
    """Stop a follower."""
    name = nodes.others(nodes.wait_leader(LOG))[0]
    assert nodes.stop(name) == 0
    return name


def take_down(nodes: Cluster, tmp_path: Path) -> str:
    """Stop a follower and keep a copy of its data, to be put back after the test. Its name must not
    be started on this directory meanwhile: then the copy is an older one."""
    name = stop_one(nodes)
    shutil.copytree(nodes.data(name), tmp_path / name / "whole")
    return name


def take_out(nodes: Cluster, name: str, tmp_path: Path, *paths: Path) -> None:
    """Remove parts of the directory of a node that is down, to be put back after the test."""
    for path in paths:
        place = tmp_path / name / "parts" / path.relative_to(nodes.data(name))
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)


def start_and_fail(nodes: Cluster, name: str) -> str:
    """Start a node that must not start; what it says."""
    node = nodes.nodes[name]
    said = len(node.said)
    nodes.begin(name)
    assert node.wait(PATIENCE_S) == 1
    words = node.said[said:]
    assert "Traceback" not in words
    return words


def serves(nodes: Cluster) -> None:
    """The cluster goes on with the others."""
    with Client(nodes.endpoints) as client:
        with Writer(client, LOG) as writer:
            writer.goes_on()
        writer.check()


# -- another disk ------------------------------------------------------------------------------


def test_a_wiped_node_is_refused_and_does_not_count(nodes: Cluster, tmp_path: Path) -> None:
    wiped = take_down(nodes, tmp_path)
    shutil.rmtree(nodes.data(wiped))
    nodes.begin(wiped)
    node = nodes.nodes[wiped]
    reason = "a wiped or copied disk is not its old self"
    until(lambda: reason in node.said, "it is told why it is refused")
    serves(nodes)
    assert node.running
    assert page(nodes, wiped, "/readyz")[0] == 503
    # With the wiped node there would be a majority: it must not be one.
    other = next(one for one in nodes.others(wiped) if one != nodes.wait_leader(LOG))
    assert reason in nodes.nodes[other].said
    nodes.kill(other)
    with Client(nodes.endpoints, timeout=2.0) as client, pytest.raises(QuorateError):
        client.log(LOG).append(b"nobody can promise this")
    nodes.begin(other)
    serves(nodes)


def test_a_node_that_never_met_the_old_disk_does_not_trust_an_empty_one(tmp_path: Path) -> None:
    """One disk of three is lost before the third node was ever started: no second history."""
    with ExitStack() as stack:
        made = Cluster(tmp_path, settings=SMALL)
        stack.callback(made.close)
        made.begin("n2")
        made.begin("n3")
        until(partial(waits_for, made, "n2", "n1"), "n2 says for whom it waits")
        until(partial(waits_for, made, "n3", "n1"), "n3 says for whom it waits")
        with Client(made.endpoints, timeout=2.0) as client:
            with pytest.raises(QuorateError, match="n2 waits for its first start: it needs n1"):
                client.create_log(LOG)
            with pytest.raises(QuorateError, match="n3 waits for its first start: it needs n1"):
                client.status()
        # The disk of n3 is lost, and n2 is away for a moment.
        made.kill("n3")
        shutil.rmtree(made.data("n3"))
        made.pause("n2")
        made.begin("n3")
        made.begin("n1")
        until(partial(waits_for, made, "n1", "n2"), "n1 waits for n2, which met the old disk")
        until(partial(waits_for, made, "n3", "n2"), "n3 does, too")
        made.resume("n2")
        reason = "a wiped or copied disk is not its old self"
        until(lambda: reason in made.nodes["n3"].said, "n3 is told why it is refused")
        # All start over: nothing was ever acknowledged.
        for name in made.nodes:
            made.kill(name)
            shutil.rmtree(made.data(name))
        made.start([LOG])
        with Client(made.endpoints) as client:
            assert client.log(LOG).append(b"first").offset == 0


def waits_for(nodes: Cluster, name: str, missing: str) -> bool:
    status, body = page(nodes, name, "/readyz")
    return status == 503 and f"{name} waits for its first start: it needs {missing}" in body


def test_a_node_on_an_older_copy_of_its_directory_halts_when_a_peer_tells_it(
    nodes: Cluster, tmp_path: Path
) -> None:
    """Also a peer that was restarted since. Later starts on that directory halt at once."""
    name = take_down(nodes, tmp_path)
    shutil.copytree(nodes.data(name), tmp_path / "backup")
    for _ in range(2):
        nodes.begin(name)
        settle(nodes)
        assert nodes.stop(name) == 0
    # What the test restores in the end is the newest.
    shutil.rmtree(tmp_path / name / "whole")
    shutil.move(nodes.data(name), tmp_path / name / "whole")
    shutil.move(tmp_path / "backup", nodes.data(name))
    for other in nodes.others(name):
        nodes.restart(other)
    reason = f"error: WRONG_DIRECTORY: the data directory of {name} is an older copy"
    assert reason in start_and_fail(nodes, name)
    marked = (nodes.data(name) / "manifest").read_bytes()
    assert b"\noutdated " in marked
    assert reason in start_and_fail(nodes, name)
    assert (nodes.data(name) / "manifest").read_bytes() == marked
    serves(nodes)


def test_the_directory_of_another_node_is_refused(nodes: Cluster, tmp_path: Path) -> None:
    name = take_down(nodes, tmp_path)
    other = next(one for one in nodes.others(name) if one != nodes.wait_leader(LOG))
    nodes.stop(other)
    shutil.rmtree(nodes.data(name))
    shutil.copytree(nodes.data(other), nodes.data(name))
    nodes.begin(other)
    words = start_and_fail(nodes, name)
    place = nodes.data(name)
    assert f"error: WRONG_DIRECTORY: {place} belongs to node {other} of cluster" in words
    serves(nodes)


def test_the_directory_of_another_cluster_is_refused(nodes: Cluster, tmp_path: Path) -> None:
    name = take_down(nodes, tmp_path)
    settings = nodes.nodes[name].settings
    text = settings.read_text()
    settings.write_text(text.replace(nodes.id, "elsewhere"))
    try:
        words = start_and_fail(nodes, name)
    finally:
        settings.write_text(text)
    assert f"of cluster {nodes.id}, not to node {name} of cluster elsewhere" in words
    serves(nodes)


def test_a_directory_is_worked_in_once(nodes: Cluster) -> None:
    name = nodes.others(nodes.wait_leader(LOG))[0]
    with ExitStack() as stack:
        twin = another(nodes, name, name, stack)
        assert twin.wait(PATIENCE_S) == 1
    process = nodes.nodes[name].pid
    assert f"{nodes.data(name)} is in use by process {process}; stop it first" in twin.said
    assert nodes.nodes[name].running
    serves(nodes)


def another(nodes: Cluster, name: str, directory: str, stack: ExitStack) -> NodeProcess:
    """A second process that says it is ``name``, at other ports, with data in ``directory``."""
    ports = Ports()
    stack.callback(ports.close)
    listen, http = ports.take(2)
    text = nodes.nodes[name].settings.read_text()
    text = text.replace(f'listen = "{nodes.address(name)}"', f'listen = "{HOST}:{listen}"')
    text = text.replace(nodes.http(name), f"{HOST}:{http}")
    text = text.replace(f'data_dir = "{name}"', f'data_dir = "{directory}"')
    settings = nodes.directory / "twin.toml"
    settings.write_text(text)
    process = NodeProcess("twin", settings)
    stack.callback(process.kill)
    process.start()
    return process


def test_a_clone_disturbs_nobody(nodes: Cluster) -> None:
    """Both are started on copies of one disk: the one that came second is told so, and halts."""
    name = nodes.others(nodes.wait_leader(LOG))[0]
    assert nodes.stop(name) == 0
    shutil.copytree(nodes.data(name), nodes.directory / "clone")
    nodes.begin(name)
    settle(nodes)
    before = nodes.look(LOG)
    assert before is not None
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, nodes.directory / "clone")
        clone = another(nodes, name, "clone", stack)
        assert clone.wait(PATIENCE_S) == 1
        assert "error: WRONG_DIRECTORY: " in clone.said
        assert "as another process. It was rolled back, or a copy of it was started" in clone.said
        serves(nodes)
        assert nodes.nodes[name].running
    after = nodes.look(LOG)
    assert after is not None
    assert after["term"] == before["term"]
    settle(nodes)


def test_a_copy_of_a_node_that_runs_is_refused_and_the_node_goes_on(nodes: Cluster) -> None:
    """Its start is a later one; to believe it would put out a healthy node for good."""
    name = nodes.others(nodes.wait_leader(LOG))[0]
    shutil.copytree(nodes.data(name), nodes.directory / "copy")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, nodes.directory / "copy")
        copy = another(nodes, name, "copy", stack)
        until(lambda: "a copy of the data directory of a node that runs" in copy.said, "refused")
        assert page(nodes, name, "/readyz")[0] == 200
        serves(nodes)
        # It gives up: otherwise it would be let in when the node restarts.
        assert copy.wait(PATIENCE_S) == 1
        assert f"error: WRONG_DIRECTORY: the data directory of {name} is a copy of one" in copy.said
    assert nodes.nodes[name].running
    # The next start of the node itself is let in, after a crash too.
    for end in (nodes.stop, nodes.kill):
        end(name)
        nodes.begin(name)
        settle(nodes)


def test_lists_that_differ_form_no_cluster_and_a_formed_one_keeps_its_list(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = Cluster(tmp_path, settings=SMALL)
        stack.callback(made.close)
        settings = made.nodes["n1"].settings
        right = settings.read_text()
        lines = right.splitlines(keepends=True)
        short = "".join(line for line in lines if not line.startswith("n3 = "))
        settings.write_text(short)
        for name in made.nodes:
            made.begin(name)
        lists = "[cluster.nodes] of {} has {}, that of {} has {}; give all nodes the same list"
        all_three = "n1, n2, n3"
        said = lists.format("n2", all_three, "n1", "n1, n2")
        until(lambda: said in made.nodes["n1"].said, "n1 refuses n2, with both lists")
        until(lambda: lists.format("n1", "n1, n2", "n2", all_three) in made.nodes["n2"].said, "n2")
        for name in made.nodes:
            until(partial(_is_refused, made, name), f"{name} says why it is not ready")
        made.kill("n1")
        settings.write_text(right)
        made.begin("n1")
        made.start([LOG])
        serves(made)
        # Now the list is settled.
        assert made.stop("n1") == 0
        settings.write_text(short)
        words = start_and_fail(made, "n1")
        assert "[cluster.nodes] has n1, n2; this node was made for a cluster of n1, n2, n3" in words
        settings.write_text(right)
        made.begin("n1")
        settle(made)


def _is_refused(nodes: Cluster, name: str) -> bool:
    status, body = page(nodes, name, "/readyz")
    return status == 503 and "this node: " in body and "[cluster.nodes]" in body


# -- parts of a disk ---------------------------------------------------------------------------


def test_a_log_that_was_removed_by_hand_is_not_made_anew(nodes: Cluster, tmp_path: Path) -> None:
    name = stop_one(nodes)
    found = nodes.look(LOG)
    assert found is not None
    place = nodes.data(name) / "logs" / found["incarnation"]
    take_out(nodes, name, tmp_path, place)
    for _ in range(2):
        said = len(nodes.nodes[name].said)
        nodes.restart(name)
        until(partial(_has_said, nodes, name, said, f"{place} is missing"), "it is told")
        assert not place.exists()
    serves(nodes)


def _has_said(nodes: Cluster, name: str, since: int, words: str) -> bool:
    return f"DAMAGED: log {LOG} was made here and {words}" in nodes.nodes[name].said[since:]


def test_all_logs_of_a_node_are_not_made_anew(nodes: Cluster, tmp_path: Path) -> None:
    """The catalog among them."""
    name = stop_one(nodes)
    take_out(nodes, name, tmp_path, *(nodes.data(name) / "logs").iterdir())
    assert "error: DAMAGED: log " in start_and_fail(nodes, name)
    serves(nodes)


@pytest.mark.parametrize("file", ["manifest", "identity"])
def test_a_file_that_says_whose_it_is_must_be_there(
    nodes: Cluster, tmp_path: Path, file: str
) -> None:
    name = stop_one(nodes)
    take_out(nodes, name, tmp_path, nodes.data(name) / file)
    words = start_and_fail(nodes, name)
    assert f"{file} is missing" in words or f"restore {nodes.data(name) / file}" in words
    serves(nodes)


def test_votes_are_not_forgotten(nodes: Cluster, tmp_path: Path) -> None:
    name = stop_one(nodes)
    take_out(nodes, name, tmp_path, *(nodes.data(name) / "logs").glob("*/vote-*"))
    assert "vote-a is missing; never put the folder of one log back" in start_and_fail(nodes, name)
    serves(nodes)


def test_a_log_without_files_is_not_made_anew(nodes: Cluster, tmp_path: Path) -> None:
    name = stop_one(nodes)
    take_out(nodes, name, tmp_path, *(nodes.data(name) / "logs").glob("*/*"))
    for _ in range(2):
        assert "vote-a is missing; never put the folder of one log back" in start_and_fail(
            nodes, name
        )
    serves(nodes)


def test_lost_segments_come_back_from_the_others(nodes: Cluster) -> None:
    name = nodes.others(nodes.wait_leader(LOG))[0]
    assert nodes.stop(name) == 0
    for segment in (nodes.data(name) / "logs").glob("*/*.segment"):
        segment.unlink()
    nodes.begin(name)
    until(lambda: "sure-again" in nodes.nodes[name].said, "it has learnt what it lost")
    settle(nodes)
    serves(nodes)
    # It has everything again: it is enough with one other.
    other = next(one for one in nodes.others(name) if one != nodes.wait_leader(LOG))
    nodes.kill(other)
    serves(nodes)
