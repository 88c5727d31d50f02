"""``quorate append``, as a user and as a program meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dev_rig import command, plain_environment
from quorate.cli.append import BATCH_BYTES, append
from quorate.cli.main import main
from quorate.commands import Receipt
from quorate.wire.calls import FindLog
from quorate.wire.requests import AppendRequest
from scripted_node import DROP, SILENCE, ScriptedNode, found, in_a_thread

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from cli_rig import Run

    from dev_rig import DevCluster


class Appending:
    """``quorate append --json`` while it runs."""

    def __init__(self, cluster: DevCluster, log: str, *options: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command("append", log, "--endpoints", cluster.endpoints, "--json", *options),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=plain_environment(),
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.input, self.output = self.process.stdin, self.process.stdout
        self.errors = self.process.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)

    def give(self, text: bytes) -> None:
        self.input.write(text)
        self.input.flush()

    def receipt(self) -> Any:
        return json.loads(self.output.readline())


def test_lines_become_records(quorate: Run, log: str) -> None:
    ran = quorate("append", log, given=b"a\n\nb")
    assert (ran.status, ran.out, ran.err) == (0, b"appended 3 records, offsets 0 to 2\n", "")
    assert quorate("read", log).out == b"a\n\nb\n"


@pytest.mark.parametrize(
    ("given", "values"),
    [(b"", []), (b"\n", [b""]), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"a\n\n", [b"a", b""]),
     (b"\xff\r\n\0\n", [b"\xff\r", b"\0"])],
)  # fmt: skip
def test_a_final_newline_adds_nothing(
    quorate: Run, log: str, given: bytes, values: list[bytes]
) -> None:
    assert quorate("append", log, "-", given=given).status == 0
    assert quorate("read", log).out == b"".join(value + b"\n" for value in values)


def test_each_batch_has_its_receipt(quorate: Run, log: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(1200)))
    ran = quorate("append", log, str(path), "--json")
    assert [(one["log"], one["offset"], one["count"]) for one in ran.documents] == [
        (log, 0, 500), (log, 500, 500), (log, 1000, 200),
    ]  # fmt: skip
    assert all(one.keys() == {"log", "offset", "count", "index", "term", "synced"}
               for one in ran.documents)  # fmt: skip
    assert (
        quorate("append", log, str(path), "--json", "--batch", "1000").documents[0]["count"] == 1000
    )


def test_long_lines_make_shorter_batches(quorate: Run, log: str) -> None:
    line = bytes(BATCH_BYTES // 4 - 100)
    ran = quorate("append", log, "--json", given=(line + b"\n") * 10)
    assert [one["count"] for one in ran.documents] == [4, 4, 2]


def test_what_records_take_besides_counts_towards_a_batch(quorate: Run, log: str) -> None:
    """Of many short lines that is most of it: as values alone they would be one batch, too large
    for any node."""
    lines, header = 400_000, "k=" + "v" * 20
    ran = quorate(
        "append", log, "--json", "--batch", str(lines), "--header", header, given=b"\n" * lines
    )
    assert (ran.status, ran.err) == (0, "")
    assert sum(one["count"] for one in ran.documents) == lines


def test_bytes_that_are_no_text_are_values_and_keys(quorate: Run, log: str) -> None:
    strange = os.fsdecode(b"\xff")
    ran = quorate(
        "append", log, "--key-separator", strange, "--header", f"k={strange}", given=b"a\xffb\n"
    )
    assert (ran.status, ran.err) == (0, "")
    [record] = quorate("read", log, "--json").documents
    assert (record["key"], record["value"]) == ("a", "b")
    assert record["headers"] == [["k", {"base64": "/w=="}]]


def test_keys_and_headers(quorate: Run, log: str) -> None:
    ran = quorate(
        "append", log, "--key-separator", "::", "--header", "a=1", "--header", "b=x=y",
        given=b"k::v::w\nplain\n::empty\n",
    )  # fmt: skip
    assert ran.status == 0
    records = quorate("read", log, "--json").documents
    assert [(one["key"], one["value"]) for one in records] == [
        ("k", "v::w"), (None, "plain"), ("", "empty"),
    ]  # fmt: skip
    assert all(one["headers"] == [["a", "1"], ["b", "x=y"]] for one in records)


def test_a_producer_skips_what_the_log_has(quorate: Run, log: str) -> None:
    lines = [b"%d\n" % number for number in range(700)]
    options = ("--producer", "loader", "--batch", "100")
    assert quorate("append", log, *options, given=b"".join(lines[:250])).status == 0
    ran = quorate("append", log, *options, "--json", given=b"".join(lines))
    assert [(one["offset"], one["count"]) for one in ran.documents] == [
        (250, 100), (350, 100), (450, 100), (550, 100), (650, 50),
    ]  # fmt: skip
    ran = quorate("append", log, *options, given=b"".join(lines))
    assert ran.out == b"appended 0 records; the log had 700 lines already\n"
    assert quorate("read", log).out == b"".join(lines)


def test_a_producer_whose_input_is_shorter_than_before_adds_nothing(quorate: Run, log: str) -> None:
    quorate("append", log, "--producer", "loader", given=b"a\nb\nc\n")
    assert quorate("append", log, "--producer", "loader", given=b"a\n").status == 0
    assert quorate("read", log).out == b"a\nb\nc\n"


def test_one_record_has_one_offset(quorate: Run, log: str) -> None:
    assert quorate("append", log, given=b"a\n").out == b"appended 1 record, offset 0\n"


@pytest.mark.parametrize(
    "wrong",
    [("--batch", "0"), ("--producer", ""), ("--producer", "a\tb"), ("--timeout", "nan"),
     ("--header", "novalue"), ("--header", "=v"), ("--header", "\udcff=v"), ("--key-separator", ""),
     ("--timeout", "0"), ("--endpoints", "nowhere"), ("/no/such/file",), ("--no-such-option",)],
)  # fmt: skip
def test_a_wrong_command_line_is_status_2(
    capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...]
) -> None:
    assert main(["append", "orders", *wrong]) == 2
    assert "error: INVALID_ARGUMENT: " in capsys.readouterr().err


def test_a_log_that_is_not_there(quorate: Run) -> None:
    ran = quorate("append", "nowhere", "--json", given=b"a\n")
    assert (ran.status, ran.err) == (1, "error: LOG_NOT_FOUND: log nowhere does not exist\n")
    [last] = ran.documents
    assert last == {
        "error": {
            "code": "LOG_NOT_FOUND", "message": "log nowhere does not exist", "retriable": False,
        }
    }  # fmt: skip


def test_no_cluster_is_told_within_the_time_given(quorate: Run) -> None:
    ran = quorate("append", "orders", "--endpoints", "127.0.0.1:1", "--timeout", "0.2")
    assert ran.status == 1
    assert ran.err.startswith("error: TIMEOUT: ")
    assert "127.0.0.1:1: Connection refused" in ran.err


def test_how_far_it_came_is_told(quorate: Run, log: str) -> None:
    given = b"a\nb\n" + bytes(32 << 20) + b"\nc\n"
    ran = quorate("append", log, "--batch", "2", "--json", given=given)
    assert ran.status == 1
    told, error = ran.err.splitlines()
    assert told == "lines 1 to 2 are in the log"
    assert error.startswith("error: TOO_LARGE: ")
    assert [next(iter(one)) for one in ran.documents] == ["log", "error"]


def test_an_interrupted_append_is_an_unknown_outcome(quorate: Run) -> None:
    """Ctrl-C comes when the append has reached its node."""
    node = ScriptedNode()

    def interrupt(_: AppendRequest) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return SILENCE

    node.will(FindLog, lambda _: found(node, leader=node.name))
    node.will(AppendRequest, interrupt)
    with in_a_thread(node):
        ran = quorate("append", "orders", "--endpoints", node.address, "--json", given=b"a\n")
    assert (ran.status, node.count(AppendRequest)) == (3, 1)
    assert ran.err.startswith("error: OUTCOME_UNKNOWN: interrupted ")
    assert ran.documents[-1]["error"]["code"] == "OUTCOME_UNKNOWN"


def test_what_is_done_is_told_when_it_is_interrupted_between_batches(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    with Appending(cluster, log, "--batch", "1") as appending:
        appending.give(b"a\nb\n")
        for _ in range(2):
            assert appending.receipt()["count"] == 1
        # Both have their receipts, and nothing else is on its way.
        appending.process.send_signal(signal.SIGINT)
        _, err = appending.process.communicate()
    assert appending.process.returncode == 1
    told = [line for line in err.decode().splitlines() if line]
    assert told == ["lines 1 to 2 are in the log", "error: INTERRUPTED: stopped before the end"]
    assert quorate("read", log).out == b"a\nb\n"


def test_a_closed_output_does_not_stop_an_append_in_silence(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    with Appending(cluster, log, "--batch", "1") as appending:
        appending.give(b"a\n")
        assert appending.receipt()["offset"] == 0
        appending.output.close()
        appending.give(b"b\n")
        told = appending.errors.read().decode()
        assert appending.process.wait() == 1
    assert told.splitlines() == [
        "lines 1 to 2 are in the log",
        "error: OUTPUT_FAILED: standard output: Broken pipe",
    ]
    assert quorate("read", log).out == b"a\nb\n"


def test_a_batch_leaves_when_no_other_line_comes(cluster: DevCluster, log: str) -> None:
    """As with ``tail -f``: the input stays open, and the batch is far from full."""
    with Appending(cluster, log) as appending:
        taken = 0
        for text in (b"a\nb\nhalf a ", b"line\n"):
            appending.give(text)
            whole = text.count(b"\n") + taken
            while taken < whole:
                taken += appending.receipt()["count"]
        appending.input.close()
        assert appending.process.wait() == 0
    with cluster.client() as client:
        assert [record.value for record in client.log(log).read()] == [b"a", b"b", b"half a line"]


def test_an_append_without_an_answer_is_status_3(quorate: Run) -> None:
    node = ScriptedNode()
    node.will(FindLog, lambda _: found(node, leader=node.name))
    node.will(AppendRequest, Receipt(7, 1, 2, 1, 2), DROP)
    with in_a_thread(node):
        ran = quorate(
            "append", "orders", "--endpoints", node.address, "--json", "--batch", "1",
            given=b"a\nb\nc\n",
        )  # fmt: skip
    assert (ran.status, node.count(AppendRequest)) == (3, 2)
    assert ran.documents[0]["offset"] == 7
    assert ran.documents[1]["error"]["code"] == "OUTCOME_UNKNOWN"
    assert not ran.documents[1]["error"]["retriable"]
    assert ran.err.splitlines()[0] == "line 1 is in the log"


def test_a_batch_leaves_as_soon_as_it_is_full(cluster: DevCluster, log: str) -> None:
    """The next line may be long in coming. Output is flushed although it goes into a pipe."""
    with Appending(cluster, log, "--batch", "1") as appending:
        for number in range(3):
            appending.give(b"line\n")
            assert appending.receipt()["offset"] == number
        appending.input.close()
        assert appending.process.wait() == 0


def test_help_names_every_option() -> None:
    flags = {flag for parameter in append.params for flag in parameter.opts}
    assert flags >= {
        "--batch", "--key-separator", "--header", "--producer", "--endpoints", "--timeout",
        "--json",
    }  # fmt: skip
