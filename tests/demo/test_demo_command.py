"""``quorate demo`` as its user has it: what it prints, how it ends, who is left."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from demo_rig import DOCUMENT

import quorate.cli.demo
from quorate.cli.main import main
from quorate.demo.counting import SinkTally
from quorate.demo.findings import Check, DemoFailed, DemoFindings, Kill, Sample, Step

if TYPE_CHECKING:
    from quorate.demo.steps import Teller


def findings(*checks: Check) -> DemoFindings:
    """What a run found."""
    return DemoFindings(
        orders=DOCUMENT["orders"],
        steps=[Step(**step) for step in DOCUMENT["steps"]],
        kills=[Kill(**kill) for kill in DOCUMENT["kills"]],
        samples=[Sample(**sample) for sample in DOCUMENT["samples"]],
        checks=list(checks),
        tallies={name: SinkTally(**tally) for name, tally in DOCUMENT["sinks"].items()},
        letters=60,
        archived=13_960,
        replicas=3,
        failover_ms=412,
        seconds=61.5,
    )


class FinishedDemo:
    """A demo that has been carried out."""

    found = findings()
    failure: str | None = None

    def __init__(self, place: Path, count: int, teller: Teller) -> None:
        self._place = place
        self._teller = teller

    def carry_out(self) -> DemoFindings:
        assert self._place.is_dir()
        for step in self.found.steps:
            self._teller.live("on the way")
            self._teller.done(step)
        if self.failure is not None:
            raise DemoFailed(self.failure)
        return self.found


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FinishedDemo]:
    """Stands for the minutes that a run takes. Everything else is real."""
    kind = type("FinishedDemo", (FinishedDemo,), {})
    monkeypatch.setattr(quorate.cli.demo, "DemoRun", kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return kind


def test_the_closing_table(
    finished: type[FinishedDemo], capsys: pytest.CaptureFixture[str]
) -> None:
    finished.found = findings(Check("lost by quorate", 0, 0))
    assert main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "three nodes ready (1.4 s)",
        "AFTER THE SAME KILLS NAIVE SINK QUORATE",
        "orders to be written 13,960 13,960",
        "records in the log 14,650 13,960",
        "lost 0 0",
        "duplicates 690 0",
        "checks that hold 1 of 1",
        "replicas that are the same 3 of 3",
    ):
        assert line in lines, out
    report = Path("quorate-demo-report.html").absolute()
    assert lines[-1] == f"report: {report}"
    assert "all 1 checks passed" in report.read_text(encoding="utf-8")


def test_a_mismatch_is_named_and_fails(
    finished: type[FinishedDemo], capsys: pytest.CaptureFixture[str]
) -> None:
    finished.found = findings(Check("lost by quorate", 0, 3), Check("dead letters", 6, 6))
    assert main(["demo", "--json", "--report", "page.html"]) == 1
    out, err = capsys.readouterr()
    message = "lost by quorate: expected 0, found 3"
    assert err.splitlines()[-1] == f"error: MISMATCH: {message}"
    document, error = map(json.loads, out.splitlines())
    assert document["report"] == "page.html"
    assert document["sinks"]["naive"]["duplicates"] == 690
    assert error == {"error": {"code": "MISMATCH", "message": message, "retriable": False}}
    assert "1 of 2 checks failed" in Path("page.html").read_text(encoding="utf-8")


def test_a_demo_that_cannot_go_on_fails(
    finished: type[FinishedDemo], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    finished.failure = "naive ended with status 1: no room"
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == f"error: DEMO_FAILED: {finished.failure}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", [True, False])
def test_the_directory_is_removed_unless_it_is_kept(
    finished: type[FinishedDemo], tmp_path: Path, capsys: pytest.CaptureFixture[str], keep: bool
) -> None:
    assert main(["demo", *(["--keep"] if keep else [])]) == 0
    kept = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(kept) == keep
    assert capsys.readouterr().err == "".join(f"kept: {path}\n" for path in kept)


@pytest.mark.usefixtures("finished")
def test_too_few_events_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--events", "10"]) == 2
    assert "10 is not in the range" in capsys.readouterr().err


def test_help_says_what_it_does() -> None:
    said = CliRunner().invoke(quorate.cli.demo.demo, ["--help"]).output
    assert "No process is left running." in " ".join(said.split())
