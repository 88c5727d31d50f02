"""What somebody at a terminal sees, and a pipe does not."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from quorate.cli import output
from quorate.cli.output import Counter, count, print_table, span

if TYPE_CHECKING:
    import pytest
    from cli_rig import Run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The standard error is a terminal, and whoever sits there is impatient.

    No fixture: pytest puts its own standard error in place when the test begins.
    """
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(output, "PATIENCE_S", 0.0)
    monkeypatch.setattr(output, "REFRESH_S", 0.0)
    return made


def test_a_counter_moves_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    with Counter("appended", printing=False) as counter:
        counter.show(1)
        counter.show(23_000)
    assert screen.getvalue() == "\r\x1b[Kappended 1\r\x1b[Kappended 23000\r\x1b[K"


def test_a_counter_waits_for_whoever_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    monkeypatch.setattr(output, "PATIENCE_S", 3600.0)
    with Counter("appended", printing=False) as counter:
        counter.show(1)
    assert screen.getvalue() == ""


def test_a_counter_is_not_for_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    with Counter("appended", printing=False) as counter:
        counter.show(1)
    assert capsys.readouterr() == ("", "")


def test_output_on_the_same_terminal_is_counter_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    with Counter("read", printing=True) as counter:
        counter.show(1)
    assert screen.getvalue() == ""


def test_a_long_append_is_counted(quorate: Run, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_terminal(monkeypatch)
    assert quorate("append", log, "--batch", "10", given=b"line\n" * 30).status == 0
    assert screen.getvalue().split("\r\x1b[K") == [
        "", "appended 10", "appended 20", "appended 30", "",
    ]  # fmt: skip


def test_a_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", "5", "\x1b[32mup\x1b[0m"), ("long", "1000", "")]
    print_table(("NAME", "SIZE", "STATE"), rows, numbers=["SIZE"])
    assert capsys.readouterr().out.splitlines() == [
        "NAME  SIZE  STATE",
        "a        5  up",
        "long  1000",
    ]


def test_numbers_have_their_nouns_and_no_separators() -> None:
    assert (count(1, "record"), count(1200, "record")) == ("1 record", "1200 records")
    assert count(2, "entry", "entries") == "2 entries"
    assert (span(7, 7, "offset"), span(0, 1199, "offset")) == ("offset 7", "offsets 0 to 1199")
    assert (span(3, 3), span(3, 4)) == ("3", "3 to 4")
