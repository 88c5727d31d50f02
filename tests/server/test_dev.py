"""``quorate dev``: a cluster of real processes that are killed, stopped and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dev_rig import (
    PATIENCE_S,
    alive,
    command,
    dev_cluster,
    free_ports,
    plain_environment,
    wait_until,
)
from quorate import OutcomeUnknown
from quorate.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dev_rig import DevCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Tests that share it leave all nodes up."""
    with dev_cluster(
        tmp_path_factory.mktemp("dev"), "--log", "orders", "--log", "bills"
    ) as running:
        yield running


# -- a cluster that runs -----------------------------------------------------------------------


def test_its_logs_are_there_when_it_is_ready(cluster: DevCluster) -> None:
    with cluster.client() as client:
        assert client.logs() == ["bills", "orders"]


def test_nodes_are_real_processes_with_data_pid_and_log(cluster: DevCluster) -> None:
    assert len(set(cluster.pids)) == 3
    for number, pid in enumerate(cluster.pids, 1):
        arguments = (cluster.directory.parent / "/proc" / str(pid) / "cmdline").read_bytes()
        assert b"serve" in arguments.split(b"\0")
        assert (cluster.directory / f"n{number}" / "identity").exists()
        assert "node ready" in (cluster.directory / f"n{number}.log").read_text()


def test_pages_say_how_a_node_is(cluster: DevCluster) -> None:
    for node in ("n1", "n2", "n3"):
        assert cluster.page(node, "/livez") == (200, "alive\n")
        assert cluster.page(node, "/readyz") == (200, "ready\n")
        assert cluster.page(node, "/nothing")[0] == 404


def test_metrics_have_the_promised_names(cluster: DevCluster) -> None:
    with cluster.client() as client:
        client.log("orders").append(b"counted")
    leads = cluster.leader("orders")
    status, text = cluster.page(leads, "/metrics")
    assert status == 200
    names = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[0] != "#"}
    assert names >= {
        "quorate_appended_records_total",
        "quorate_append_duration_seconds_count",
        "quorate_fsync_duration_seconds_count",
        "quorate_log_first_offset",
        "quorate_log_end_offset",
        "quorate_replica_is_leader",
        "quorate_replica_lag_entries",
        "quorate_staged_bytes",
        "quorate_elections_total",
        "quorate_damaged_ranges",
        "quorate_disk_free_bytes",
        "quorate_build_info",
    }
    assert "# TYPE quorate_append_errors_total counter" in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert float(values['quorate_replica_is_leader{log="orders"}']) == 1
    assert float(values['quorate_appended_records_total{log="orders"}']) >= 1
    assert float(values["quorate_fsync_duration_seconds_count"]) >= 1


def test_a_killed_leader_is_replaced_and_started_again(cluster: DevCluster) -> None:
    with cluster.client() as client:
        log = client.log("orders")
        before = log.append_batch([b"a", b"b"])
        leads = cluster.leader("orders")
        killed = cluster.pid(leads)
        os.kill(killed, signal.SIGKILL)
        with suppress(OutcomeUnknown):  # it had reached the one who was killed, or not
            log.append(b"c")
        after = log.append(b"d")
        assert after.term > before.term
        wait_until(
            lambda: cluster.pid(leads) != killed and cluster.page(leads, "/readyz")[0] == 200,
            f"{leads} is back",
        )
        values = [record.value for record in log.read(start=before.offset)]
        assert values in ([b"a", b"b", b"c", b"d"], [b"a", b"b", b"d"])


def test_a_directory_in_use_is_left_alone(
    cluster: DevCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = cluster.pids
    assert main(["dev", "--dir", str(cluster.directory), "--port", str(free_ports())]) == 1
    place = cluster.directory / "n1"
    error = f"error: WRONG_DIRECTORY: {place} is in use by process {pids[0]}; stop it first\n"
    assert capsys.readouterr() == ("", error)
    assert cluster.pids == pids
    assert all(map(alive, pids))


def test_a_port_in_use_is_named(
    cluster: DevCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for port, taken in ((cluster.port, cluster.port + 1), (cluster.port + 100, cluster.port + 101)):
        assert main(["dev", "--dir", str(tmp_path / "new"), "--port", str(port)]) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert f"n1 cannot listen at port {taken} of 127.0.0.1: Address already in use" in error


# -- its end, and the next beginning -----------------------------------------------------------


def test_whatever_ends_it_the_same_directory_resumes(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, "--log", "orders") as cluster:
        killed = cluster.pids
        with cluster.client() as client:
            client.log("orders").append_batch([b"a", b"b"])
        cluster.process.kill()
        cluster.process.wait(PATIENCE_S)
        wait_until(lambda: not any(map(alive, killed)), "the nodes are gone")
    # What could not be cleaned up is in nobody's way.
    assert len(list(tmp_path.glob("*.pid"))) == 3
    again = dev_cluster(tmp_path, "--log", "orders", "--log", "more", port=cluster.port)
    with again as cluster, cluster.client() as client:
        pids = cluster.pids
        assert set(pids).isdisjoint(killed)
        log = client.log("orders")
        assert [record.value for record in log.read(start=0)] == [b"a", b"b"]
        assert log.append(b"c").offset == 2
        assert client.logs() == ["more", "orders"]
        # One that was stopped goes on to hear that it is to end.
        os.kill(pids[1], signal.SIGSTOP)
        assert cluster.stop() == 0
        assert not any(map(alive, pids))
    assert not list(tmp_path.glob("*.pid"))
    for number in (1, 2, 3):
        text = (tmp_path / f"n{number}.log").read_text()
        assert "node stops" in text
        assert "Traceback" not in text


def test_a_node_that_ended_is_left_down_if_that_is_wanted(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, "--no-restart", "--log", "orders") as cluster:
        os.kill(cluster.pid("n2"), signal.SIGKILL)
        wait_until(lambda: not (tmp_path / "n2.pid").exists(), "n2 is gone")
        with cluster.client() as client:
            assert client.log("orders").append(b"a").offset == 0
        assert not (tmp_path / "n2.pid").exists()
        assert cluster.process.poll() is None


def test_it_ends_when_all_nodes_did_and_none_is_started_again(tmp_path: Path) -> None:
    dev = command("dev", "--no-restart", "--dir", tmp_path, "--port", str(free_ports()))
    with subprocess.Popen(
        dev, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plain_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        for number in (1, 2, 3):
            os.kill(int((tmp_path / f"n{number}.pid").read_text()), signal.SIGKILL)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert error.splitlines()[-1] == (
        f"error: NO_QUORUM: all 3 nodes have ended, and --no-restart leaves them down; to go on, "
        f"start again with --dir {tmp_path}"
    )
    assert sum("ended with signal 9" in line for line in error.splitlines()) == 3


def test_a_directory_keeps_its_number_of_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        text = '[cluster]\nid = "dev"\n[cluster.nodes]\nn1 = "a:1"\nn2 = "b:2"\n'
        (tmp_path / f"n{number}.toml").write_text(text)
    assert main(["dev", "--dir", str(tmp_path), "--nodes", "3"]) == 1
    error = f"error: INVALID_ARGUMENT: {tmp_path} was made with 2 nodes, not with 3\n"
    assert capsys.readouterr() == ("", error)


def test_a_node_that_cannot_start_ends_it_all(tmp_path: Path) -> None:
    """As a process: the loop that it began keeps its signals after its end."""
    (tmp_path / "n2").mkdir(mode=0o700)
    (tmp_path / "n2" / "letter.txt").touch()
    dev = command("dev", "--dir", str(tmp_path), "--port", str(free_ports()))
    ran = subprocess.run(dev, capture_output=True, text=True, check=False, env=plain_environment())
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "n2 did not start: WRONG_DIRECTORY" in ran.stderr
    assert "letter.txt" in ran.stderr
    assert not list(tmp_path.glob("*.pid"))


def test_without_a_directory_nothing_is_left(tmp_path: Path) -> None:
    environment = {**plain_environment(), "TMPDIR": str(tmp_path)}
    dev = command("dev", "--nodes", "1", "--port", str(free_ports()))
    with subprocess.Popen(dev, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready 127.0.0.1:")
        assert list(tmp_path.glob("quorate-dev-*/n1.pid"))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "a/b"], "the name of a log is 1 to 249 letters"),
        (["--nodes", "0"], "0 is not in the range 1<=x<=7"),
        (["--port", "65500"], "65500 is not in the range"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", *arguments]) == 2
    assert message in capsys.readouterr().err
