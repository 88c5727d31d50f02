"""``quorate inspect``: shows what is there, whatever became of the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from directory_rig import Writer, copied, flip, log_path, sample_bits, written
from quorate.cli.main import main
from quorate.storage.flusher import Flush
from quorate.storage.layout import PAGE, segment_name
from quorate.types import Index

if TYPE_CHECKING:
    from pathlib import Path

LOG = "00000000000000000000000000c0ffee"
VOTE = "boot 1, number 7, entries from 1, segments to 3"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in order; a test that changes it must undo that."""
    return written(tmp_path_factory.mktemp("clean") / "n1")


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main(["inspect", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    [line] = shown(capsys, *arguments, "--json")
    found: dict[str, Any] = json.loads(line)
    return found


# -- a directory -------------------------------------------------------------------------------


def test_a_directory_is_shown_with_its_logs(
    clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = (clean / "identity").read_text().splitlines()[3]
    moment = "2023-11-14T22:13:20.0000"
    assert shown(capsys, clean) == [
        f"{clean}: node n1 of cluster shop, {storage}",
        f"log orders {LOG}, closed in order at entry 64",
        f"  vote record, both copies: term 2, voted for n2, {VOTE}",
        f"  segment   state  entries  offsets   bytes    used  {'from':>27}  {'to':>27}",
        f"        1  sealed     1-35    0-104  36,864  32,768  {moment}01Z  {moment}35Z",
        f"        2  rolled    36-62  105-185  40,960  32,768  {moment}36Z  {moment}62Z",
        f"        3  active    63-64  186-191  40,960  12,288  {moment}63Z  {moment}64Z",
        "  spare segment of 40,960 bytes",
    ]


def test_a_directory_as_a_document(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, clean)
    assert list(found) == ["path", "identity", "process", "logs"]
    assert (found["identity"]["node"], found["process"]) == ("n1", None)
    [log] = found["logs"]
    last = {"index": 64, "term": 3, "chain": "60a78f78"}
    assert (log["incarnation"], log["clean"], log["spare_bytes"]) == (LOG, True, 40960)
    assert log["mark"] == {"boot": 1, "segment": 3, "end": 12288, "last": last}
    assert log["votes"]["vote-a"] == log["votes"]["vote-b"]
    assert log["votes"]["vote-a"] == {
        "number": 7,
        "term": 2,
        "vote": "n2",
        "boot": 1,
        "first": 1,
        "segment": 3,
        "unsure": False,
        "cutting": 0,
        "before": None,
    }
    assert log["segments"][0] == {
        "number": 1,
        "state": "sealed",
        "bytes": 36864,
        "used": 32768,
        "first": 1,
        "last": 35,
        "first_offset": 0,
        "end_offset": 105,
        "first_time": 1_700_000_000_000_001,
        "last_time": 1_700_000_000_000_035,
        "unreadable": [],
    }


def test_a_running_node_may_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(2))
    out = shown(capsys, tmp_path / "n1")
    assert out[1].startswith(f"in use by process {os.getpid()}: ")
    assert out[2] == f"log orders {LOG}, not closed in order"
    writer.flush(writer.entries(2))  # it was not disturbed
    writer.stop()
    assert "in use" not in "\n".join(shown(capsys, tmp_path / "n1"))


def test_a_log_without_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Writer.open(tmp_path / "n1").stop()
    out = shown(capsys, tmp_path / "n1")
    assert out[2] == (
        "  vote record, both copies: term 0, no vote, boot 1, number 1, entries from 1, "
        "segments to 0"
    )


def test_one_of_several_logs_is_chosen_by_how_its_id_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for incarnation in (0xA << 124, 0xB << 124):
        writer = Writer.open(tmp_path / "n1", incarnation=incarnation)
        writer.flush(writer.entries(1))
        writer.stop()
    assert len(document(capsys, tmp_path / "n1")["logs"]) == 2
    [log] = document(capsys, tmp_path / "n1", "--log", "b0")["logs"]
    assert log["incarnation"] == "b" + "0" * 31
    assert document(capsys, tmp_path / "n1", "--log", "b", "--segment", 1)["segment"]["last"] == 1
    assert main(["inspect", str(tmp_path / "n1"), "--segment", "1"]) == 2
    assert f"the logs here are log-a{'0' * 31}, log-b0" in capsys.readouterr().err


def test_a_cut_under_way_is_shown_and_what_it_takes_away_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.open(tmp_path / "n1")
    for _ in range(8):
        writer.flush(writer.entries(8), committed=0)
    for step in writer.flusher.plan(Flush(90, truncate_from=Index(10))):
        if step == "sync vote-b":
            break
    writer.crash()
    with (log_path(tmp_path / "n1") / segment_name(1)).open("r+b") as file:
        file.seek(5 * PAGE)
        file.write(b"x" * PAGE)
    place = writer.log.record.cutting
    out = shown(capsys, tmp_path / "n1")
    before = writer.log.record.before
    after = f"index 9, term {before.term}, chain {before.chain:08x}"
    assert out[2].endswith(f", segments to 1, being cut off at byte {place} of it, after {after}")
    assert [line.split()[1:4] for line in out[4:7]] == [
        ["active", "1-9", "0-26"],
        ["cut", "off", "30-56"],
        ["cut", "off", "57-64"],
    ]
    assert "no block can be read" not in "\n".join(out)
    assert document(capsys, tmp_path / "n1")["logs"][0]["votes"]["vote-a"]["cutting"] == place
    segment = document(capsys, tmp_path / "n1", "--segment", 1)["segment"]
    assert [one["entry_count"] for one in segment["blocks"]] == [8, 1]
    assert segment["unreadable"] == []


# -- a segment ---------------------------------------------------------------------------------


def test_a_segment_is_shown_block_by_block(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = (clean / "identity").read_text().splitlines()[3]
    made = "offsets from 186; made with 40,960 bytes"
    assert shown(capsys, clean, "--segment", 3) == [
        "segment 3, active, 40,960 bytes",
        f"  log {LOG}, {storage}",
        f"  after index 62, term 3, chain 65ba6614; {made}; the segment before ended at 32,768",
        "  block at       write  entries  bytes  readable  durable  committed",
        "      4096  4294967311    63-64   1544      1544     4096         30",
        "      8192  4294967312     none      0         0     8192         30",
    ]
    assert shown(capsys, clean, "--segment", 1)[-1] == (
        "  footer at 32768: ends at index 35, term 2, chain 7da5cabb, next offset 105, "
        "write 4294967303"
    )


def test_entries_are_shown_on_request(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, clean, "--segment", 3, "--entries")
    moment = "2023-11-14T22:13:20.0000"
    assert out[3:] == [
        "  block at 4096, write 4294967311, 1544 bytes; durable below 4096, committed up to 30",
        f"    entry  term  kind  offsets  batches  bytes    at  {'append time':>27}     chain",
        f"       63     3  DATA  186-188        1    772  4160  {moment}63Z  4b13f2bc",
        f"       64     3  DATA  189-191        1    772  4932  {moment}64Z  60a78f78",
        "  block at 8192, write 4294967312, 0 bytes; durable below 8192, committed up to 30",
    ]


def test_a_truncated_block_says_so(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, clean, "--segment", 2, "--entries")
    assert "    1544 more bytes: truncated, or they cannot be read" in out


def test_a_segment_as_a_document(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = document(capsys, clean, "--segment", 3, "--entries")["segment"]
    assert (segment["number"], segment["state"], segment["footer"]) == (3, "active", None)
    assert segment["header"]["capacity"] == 40960
    block, empty = segment["blocks"]
    assert block["before"] == {"index": 62, "term": 3, "chain": "65ba6614"}
    assert (block["position"], block["write_number"], block["durable_end"]) == (
        4096,
        (1 << 32) + 15,
        4096,
    )
    assert (block["length"], block["readable"], block["entry_count"]) == (1544, 1544, 2)
    assert (empty["entry_count"], empty["entries"]) == (0, [])
    assert block["entries"][1] == {
        "index": 64,
        "term": 3,
        "chain": "60a78f78",
        "kind": "DATA",
        "base_offset": 189,
        "count": 3,
        "runs": 1,
        "append_time": 1_700_000_000_000_064,
        "position": 4932,
        "bytes": 772,
        "whole": True,
    }
    without = document(capsys, clean, "--segment", 3)["segment"]["blocks"]
    assert all("entries" not in one for one in without)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entries"], "--entries needs --segment"),
        (["--segment", "4"], "there is no segment 4; the log has 1 to 3"),
        (["--segment", "x"], "'x' is not a valid integer"),
        (["--log", "d"], "no log in "),
    ],
)
def test_a_wrong_question_is_status_2(
    arguments: list[str], message: str, clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(clean), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_something_else_is_no_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert "error: WRONG_DIRECTORY: " in capsys.readouterr().err


# -- damage ------------------------------------------------------------------------------------


def test_no_damage_keeps_the_rest_from_being_shown(
    clean: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, bit in sample_bits(clean, 12):
        flip(file, bit)
        try:
            out = shown(capsys, clean)
            blocks = shown(capsys, clean, "--segment", 1, "--entries")
        finally:
            flip(file, bit)
        assert any("active" in line for line in out) or file.name == segment_name(3)
        assert blocks


def test_what_cannot_be_read_is_named(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n1"
    copied(clean, path)
    for name, position in (
        ("vote-b", 20),
        ("vote-b", PAGE + 20),
        ("clean", 20),
        (segment_name(1), PAGE + 64 + 100),
        (segment_name(2), 20),
        (segment_name(3), PAGE + 20),
    ):
        flip(log_path(path) / name, 8 * position)
    flip(path / "identity", 50)
    out = "\n".join(shown(capsys, path))
    assert "the identity cannot be read" in out
    assert "the mark of a clean stop is bad" in out
    assert "vote-a: term 2, voted for n2" in out
    assert "vote-b: cannot be read" in out
    assert "2  unreadable" in out
    assert "segment 3, bytes 4096 to 8192: no block can be read" in out
    out = "\n".join(shown(capsys, path, "--segment", 1, "--entries"))
    assert "772 (the body is bad)" in out
    out = "\n".join(shown(capsys, path, "--segment", 2))
    assert out == "segment 2: its header is bad, so nothing else can be read"
    out = "\n".join(shown(capsys, path, "--segment", 3))
    assert "bytes 4096 to 8192: no block can be read" in out


def test_a_time_that_no_calendar_has_is_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.open(tmp_path / "n1")
    [entry] = writer.entries(1, time=1 << 63)
    writer.flush([entry])
    writer.stop()
    assert f"{(1 << 63) + 1} us" in "\n".join(shown(capsys, tmp_path / "n1"))


def test_nothing_is_written(clean: Path) -> None:
    before = [(file, file.stat().st_mtime_ns) for file in sorted(clean.rglob("*"))]
    program = [sys.executable, "-W", "error", "-m", "quorate", "inspect", str(clean)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(file, file.stat().st_mtime_ns) for file in sorted(clean.rglob("*"))] == before
