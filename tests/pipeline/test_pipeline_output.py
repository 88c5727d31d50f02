"""What a command says while it runs, to a file: only what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.cli import pipeline_output
from quorate.pipeline.jobs import Progress

if TYPE_CHECKING:
    import pytest


def test_one_who_waits_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline_output, "LINE_S", 0.0)
    with pipeline_output.ProgressLine("paid") as line:
        for portion, rate in ((1, 9.0), (1, 0.0), (1, 0.1), (2, 5.0), (2, 0.0)):
            line(Progress(portion, 4 * portion, rate, {"written": portion}, {}, 0))
    assert capsys.readouterr().err.splitlines() == [
        "paid: read 4, 9/s, lag 0, written 1, portion 1",
        "paid: read 8, 5/s, lag 0, written 2, portion 2",
    ]
