"""One line for each event, with keys that a program can find."""

from __future__ import annotations

import logging
import sys

import pytest

from quorate.server.loglines import LineFormatter


def line(message: str, *values: object, error: bool = False) -> str:
    record = logging.LogRecord(
        "quorate.server.node", logging.INFO, "node.py", 1, message, values,
        sys.exc_info() if error else None,
    )  # fmt: skip
    record.created, record.msecs = 1_700_000_000.0, 7.0
    return LineFormatter("n1").format(record)


HEAD = "time=2023-11-14T22:13:20.007Z level=info node=n1 from=server.node "


@pytest.mark.parametrize(
    ("message", "values", "text"),
    [
        ("node ready", (), 'event="node ready"'),
        ("stopped", (), "event=stopped"),
        ("leader log=%s term=%d", ("orders", 3), "event=leader log=orders term=3"),
        ("gone error=%s", ("disk full", ), 'event=gone error="disk full"'),
        ("gone error=%s", ('a "quote"\n', ), r'event=gone error="a \"quote\"\n"'),
        ("gone error=%s", ("", ), 'event=gone error=""'),
        ("gone error=%s", (ValueError("no = sign"), ), 'event=gone error="no = sign"'),
        ("link down peer=%s: %s", ("n2", "refused"), 'event="link down peer=n2: refused"'),
        ("100%", (), "event=100%"),
        ("waits seconds=%d", (11.0099, ), "event=waits seconds=11"),
        ("gone error=%s", ("größe", ), "event=gone error=größe"),
        ("gone error=%s", ("zu groß", ), 'event=gone error="zu groß"'),
        ("gone error=%s", ("a\u2028time=0", ), r'event=gone error="a\u2028time=0"'),
        ("gone error=%s", ("\x9b2J", ), r'event=gone error="\u009b2J"'),
        ("gone error=%s", ("\x7f", ), r'event=gone error="\u007f"'),
        ("peer: %s", ("\u2029x", ), r'event="peer: \u2029x"'),
    ],
)  # fmt: skip
def test_words_and_keys(message: str, values: tuple[object, ...], text: str) -> None:
    assert line(message, *values) == HEAD + text


def test_a_traceback_follows_its_line() -> None:
    try:
        raise ValueError("of a bug")
    except ValueError:
        first, *rest = line("request failed", error=True).splitlines()
    assert first == HEAD + 'event="request failed"'
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == "ValueError: of a bug"
