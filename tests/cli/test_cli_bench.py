"""``quorate bench``: it says what it did, and leaves nothing that was not there."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from dev_rig import PATIENCE_S, command, plain_environment, wait_until
from quorate.cli.main import main
from quorate.cli.workloads import WORKLOADS

if TYPE_CHECKING:
    from cli_rig import Run

    from dev_rig import DevCluster

SECONDS = "0.3"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_log_that_is_there_is_loaded_and_kept(
    quorate: Run, cluster: DevCluster, log: str, workload: str
) -> None:
    ran = quorate("bench", "--workload", workload, "--seconds", SECONDS, "--log", log)
    assert (ran.status, ran.err) == (0, "")
    [document] = ran.documents
    assert list(document) == [
        "workload", "records_per_s", "mb_per_s", "p50_ms", "p99_ms", "errors",
    ]  # fmt: skip
    assert (document["workload"], document["errors"]) == (workload, 0)
    shape, rate = WORKLOADS[workload], document["records_per_s"]
    assert document["mb_per_s"] == pytest.approx(rate * shape.value_bytes / 1e6, abs=0.001)
    with cluster.client() as client:
        end = client.log(log).end_offset()
    # As many as are under way are answered at least, however slow the machine is.
    assert end >= shape.in_flight * shape.records
    assert end % shape.records == 0
    assert end >= rate * float(SECONDS)


@pytest.mark.parametrize("options", [[], ["--log", "for-a-while"], ["--json"]])
def test_a_log_that_it_made_is_gone(quorate: Run, cluster: DevCluster, options: list[str]) -> None:
    with cluster.client() as client:
        before = client.logs()
        ran = quorate("bench", "--workload", "W2", "--seconds", SECONDS, *options)
        assert (ran.status, len(ran.documents)) == (0, 1)
        assert client.logs() == before


def test_a_log_that_somebody_made_meanwhile_is_left_alone(cluster: DevCluster) -> None:
    line = command("bench", "--workload", "W1", "--seconds", "600", "--log", "taken")
    with cluster.client() as client:
        with subprocess.Popen(
            [*line, "--endpoints", cluster.endpoints],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain_environment(),
        ) as process:
            wait_until(lambda: "taken" in client.logs(), "it has made its log")
            loaded = client.log("taken")
            wait_until(lambda: loaded.end_offset() > 100, "it loads it")
            client.delete_log("taken")
            client.create_log("taken").append(b"somebody's")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)
        assert [record.value for record in client.log("taken").read()] == [b"somebody's"]
        client.delete_log("taken")


@pytest.mark.parametrize("workload", ["W1", "W2"])
def test_ctrl_c_ends_it_in_one_line_and_takes_its_log_away(
    cluster: DevCluster, workload: str
) -> None:
    line = command(
        "bench", "--workload", workload, "--seconds", "600", "--log", f"short-{workload}"
    )
    with cluster.client() as client:
        before = client.logs()
        with subprocess.Popen(
            [*line, "--endpoints", cluster.endpoints],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain_environment(),
        ) as process:
            wait_until(lambda: client.logs() != before, "it has made its log")
            loaded = client.log(f"short-{workload}")
            # The first append of each connection is not under load yet.
            wait_until(lambda: loaded.end_offset() > 100, "it loads it")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (1, b"")
        # A terminal shows what was typed: the line after that is ours.
        assert err == b"\nerror: INTERRUPTED: stopped before the end\n"
        assert client.logs() == before


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([], "Missing option '--workload'. Choose from: W1, W2, W3, W4, W5"),
        (["--workload", "W9"], "Invalid value for '--workload': 'W9' is not one of"),
        (["--workload", "W1", "--seconds", "0"], "Invalid value for '--seconds': 0.0 is not in"),
        (["--workload", "W1", "--seconds", "x"],
         "Invalid value for '--seconds': 'x' is not a valid number."),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_status_2(
    capsys: pytest.CaptureFixture[str], wrong: list[str], why: str
) -> None:
    assert main(["bench", *wrong]) == 2
    assert f"error: INVALID_ARGUMENT: {why}" in capsys.readouterr().err
