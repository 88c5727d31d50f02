"""A few seconds of chaos: enough to see that its parts work together."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from verification.chaos import failover
from verification.chaos.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)


def test_a_short_run_breaks_no_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seconds", "8", "--seed", "3", "--logs", "2", "--clients", "1", "--tasks", "40"]
    status = main([*options, "--keep", str(tmp_path)])
    said = capsys.readouterr().out
    assert status == 0, said
    counts = dict(re.findall(r"(\w+)=(\w+)", said.splitlines()[-1]))
    assert counts["violations"] == counts["catalog_problems"] == counts["gave_up"] == "0"
    assert counts["stop_problems"] == "0"
    assert counts["disks"] == "whole"
    assert int(counts["appends"]) > 100
    assert int(counts["reads"]) > 100
    assert int(counts["faults"]) > 0
    assert int(counts["logs"]) > 0
    # Those at the end, if no other.
    assert int(counts["stops"]) >= 3


def test_a_leader_is_replaced_and_the_time_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert failover.main(["--kills", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kills"] == 1
    assert found["max_s"] > 0
