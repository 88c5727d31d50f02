"""``quorate bench``: it says what it did, and leaves nothing that was not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
