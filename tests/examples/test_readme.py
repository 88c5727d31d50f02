"""The first screen of the README is true: its job runs, its table is what the demo prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from quorate.cli.demo import demo

if TYPE_CHECKING:
    from quorate.testing import Cluster

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text(encoding="utf-8")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blank ones apart.
JOB_LINES = 9


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")
def test_the_job_of_the_first_screen_runs(spark_cluster: Cluster, tmp_path: Path) -> None:
    job = next(text for language, text in _FENCE.findall(README) if "quorate.spark" in text)
    assert len(job.replace("\n\n", "\n").splitlines()) == JOB_LINES
    client = spark_cluster.client()
    job = job.replace("127.0.0.1:7401", spark_cluster.endpoints).replace("/data/", f"{tmp_path}/")
    for name in ("orders", "paid"):
        job = job.replace(f'log="{name}"', f'log="readme-{name}"')
        client.create_log(f"readme-{name}")
    client.log("readme-orders").append_batch(
        [
            b'{"id": 1, "amount": 2.5, "currency": "EUR"}',
            b'{"id": 2, "amount": 3.5, "currency": "USD"}',
        ]
    )
    for _ in range(2):
        exec(job, {})
    [record] = client.log("readme-paid").read(linearizable=True)
    assert json.loads(record.value) == {"id": 1, "amount": 2.5, "currency": "EUR"}


def test_the_two_commands_are_there() -> None:
    language, commands = _FENCE.findall(README)[0]
    assert (language, commands) == ("console", "$ pip install '.[spark]'\n$ quorate demo\n")
    assert CliRunner().invoke(demo, ["--help"]).exit_code == 0


def test_the_table_is_that_of_a_run_that_came_out_exactly() -> None:
    text = _FENCE.findall(README)[1][1]
    cells = dict(re.findall(r"^(\S.*?) {2,}(\S.*)$", text, re.MULTILINE))
    to_be_written = cells["orders to be written"].split()
    naive, ours = cells["records in the log"].split()
    assert to_be_written == [ours, ours]
    assert naive != ours
    assert cells["lost"].split() == ["0", "0"]
    assert cells["duplicates"].split()[1] == "0"
    passed, all_of_them = cells["checks that hold"].split(" of ")
    assert passed == all_of_them
