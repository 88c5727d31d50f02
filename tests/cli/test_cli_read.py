"""``quorate read``, as a user and as a program meet it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from dev_rig import plain_environment
from quorate.cli.main import main

if TYPE_CHECKING:
    from cli_rig import Run

    from dev_rig import DevCluster


@pytest.fixture
def digits(quorate: Run, log: str) -> str:
    """A log with ten records in four batches."""
    lines = b"".join(b"%d\n" % number for number in range(10))
    assert quorate("append", log, "--batch", "3", given=lines).status == 0
    return log


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ((), 0, 9),
        (("--from", "earliest"), 0, 9),
        (("--from", "4"), 4, 9),
        (("--from", "4", "--to", "7"), 4, 6),
        (("--to", "100"), 0, 9),
        (("--from", "-3"), 7, 9),
        (("--from=-100",), 0, 9),
        (("-n", "2"), 0, 1),
        (("--from", "-4", "-n", "2"), 6, 7),
        (("--from", "4", "-n", "0"), 1, 0),
        (("--from", "latest"), 1, 0),
        (("--from", "-0"), 1, 0),
        (("--from", "10"), 1, 0),
        (("--from", "@2001-01-01"), 0, 9),
        (("--from", "@2999-01-01T00:00:00Z"), 1, 0),
        (("--follow", "-n", "4"), 0, 3),
        (("--follow", "--to", "10"), 0, 9),
    ],
)
def test_ranges(quorate: Run, digits: str, options: tuple[str, ...], first: int, last: int) -> None:
    ran = quorate("read", digits, *options)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == b"".join(b"%d\n" % number for number in range(first, last + 1))


@pytest.mark.parametrize("zone", [None, UTC, timezone(timedelta(hours=-7))])
def test_a_time_is_when_records_were_appended(
    cluster: DevCluster, quorate: Run, log: str, zone: timezone | None
) -> None:
    """Without a zone it is UTC, wherever the command runs."""
    for value in (b"a", b"b", b"c"):
        quorate("append", log, given=value)
    with cluster.client() as client:
        times = [record.append_time for record in client.log(log).read()]
    for place, time_us in enumerate(times):
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
        text = when.astimezone(zone or UTC).isoformat()
        text = text.removesuffix("+00:00") if zone is None else text
        ran = quorate("read", log, "--from", f"@{text}", "--json")
        assert [one["offset"] for one in ran.documents] == [place, *range(place + 1, 3)]


def test_documents(quorate: Run, log: str) -> None:
    quorate("append", log, "--header", "h=1", "--key-separator", ":", given=b"k:v\n\xff\xfe\n")
    ran = quorate("read", log, "--json")
    first, second = ran.documents
    assert isinstance(first["timestamp_us"], int)
    assert first == {
        "offset": 0, "timestamp_us": first["timestamp_us"], "key": "k", "value": "v",
        "headers": [["h", "1"]],
    }  # fmt: skip
    assert (second["key"], second["value"]) == (None, {"base64": "//4="})


def test_what_is_past_the_end_is_an_error(quorate: Run, digits: str) -> None:
    ran = quorate("read", digits, "--from", "11", "--json")
    assert ran.status == 1
    assert ran.err.startswith("error: OFFSET_OUT_OF_RANGE: ")
    assert [one["error"]["code"] for one in ran.documents] == ["OFFSET_OUT_OF_RANGE"]


@pytest.mark.parametrize(
    "wrong",
    [("--from", "newest"), ("--from", "@yesterday"), ("--from", "@"), ("--to", "-1"),
     ("-n", "-1"), ("-n", "x"), ("-n", "9" * 20), ("--to", "9" * 20), ("--endpoints", ",")],
)  # fmt: skip
def test_a_wrong_command_line_is_status_2(
    capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...]
) -> None:
    assert main(["read", "orders", *wrong]) == 2
    assert "error: INVALID_ARGUMENT: " in capsys.readouterr().err


def test_following_goes_on_until_it_is_interrupted(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    command = [sys.executable, "-m", "quorate", "read", log, "--endpoints", cluster.endpoints]
    with subprocess.Popen(
        [*command, "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
    ) as process:
        assert process.stdout is not None
        for value in (b"a", b"b", b"c"):
            quorate("append", log, given=value)
            # Every record is flushed, although it goes into a pipe.
            assert json.loads(process.stdout.readline())["value"] == value.decode()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_has_seen_enough_is_no_error(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    quorate("append", log, given=b"0123456789abcdef\n" * 20_000)
    command = [sys.executable, "-m", "quorate", "read", log, "--endpoints", cluster.endpoints]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=plain_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0123456789abcdef\n"
        process.stdout.close()
        assert process.stderr.read() == b""
