"""Runs without a violation are not blamed, whatever their shape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checker_rig import VOTERS, valid_run

from verification.checker import BadHistory, History, ViolationKind, check
from verification.checker.model import MemoryRecorder, Model

RUNS = 200
PARTS = 4


@pytest.mark.parametrize("trimmed", [0, 1, 25, 10_000])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_valid_run_is_not_blamed(part: int, trimmed: int) -> None:
    for seed in range(part, RUNS, PARTS):
        verdict = valid_run(f"valid/{seed}", trimmed=trimmed).judge()
        assert not verdict.violations, f"{seed}: {verdict.violations[0]}"
        assert verdict.appends > 50
        assert verdict.reads > 50
        assert verdict.unknown > 0


def test_logs_are_judged_apart_and_counted_together() -> None:
    histories: dict[str, History] = {}
    model = Model(7, 400, lambda *args: MemoryRecorder(histories, *args), logs=("a", "b"))
    model.run()
    finals = model.finals()
    assert not check(histories, finals, VOTERS).violations
    for final in finals["b"]:
        final.values.append(finals["a"][0].values[0])  # sent, but not to this log
    verdict = check(histories, finals, VOTERS)
    [violation] = verdict.violations
    assert (violation.kind, violation.log) == (ViolationKind.PHANTOM, "b")
    assert verdict.operations == verdict.appends + verdict.reads >= 400


def test_a_log_that_nobody_used_is_fine() -> None:
    assert not check({}, {"idle": []}).counts


def test_a_run_without_final_logs_is_not_judged() -> None:
    run = valid_run(0)
    run.finals = []
    with pytest.raises(BadHistory, match="no final log"):
        run.judge()
    with pytest.raises(BadHistory, match="log orders"):
        check({"orders": run.history}, {})


def test_a_value_may_be_sent_again_under_its_sequence_only() -> None:
    run = valid_run(1)
    value = run.history.appends.value[0]
    run.history.begin(9, 0, value)
    with pytest.raises(BadHistory, match="sent twice"):
        run.judge()


def test_every_kind_is_explained() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "internals" / "checker.md"
    row = re.compile(r"^\| ([a-z ]+) \| (C\d+) \| (.+) \|$", re.MULTILINE)
    assert row.findall(page.read_text(encoding="utf-8")) == [kind.value for kind in ViolationKind]
