"""The progress that a command writes to a file while it runs: only news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.cli.pipeline import output
from quorate.pipeline.job_progress import JobProgress

if TYPE_CHECKING:
    import pytest


def test_one_who_waits_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "LINE_S", 0.0)
    with output.ProgressLine("paid") as line:
        for batches, rate in ((1, 9.0), (1, 0.0), (1, 0.1), (2, 5.0), (2, 0.0)):
            line(JobProgress(batches, 4 * batches, rate, {"written": batches}, {}, 0))
    assert capsys.readouterr().err.splitlines() == [
        "paid: read 4, 9/s, lag 0, written 1, micro-batch 1",
        "paid: read 8, 5/s, lag 0, written 2, micro-batch 2",
    ]
