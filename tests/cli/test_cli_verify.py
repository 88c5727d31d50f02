"""``quorate verify``, as an operator and as a program meet it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from directory_rig import Writer, copied, flip, log_path, sample_bits, written
from quorate import __version__
from quorate.cli.main import main
from quorate.storage.layout import PAGE, segment_name

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG = "00000000000000000000000000c0ffee"
FIRST = segment_name(1)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in order; a test that changes it must undo that."""
    return written(tmp_path_factory.mktemp("clean") / "n1")


def spoil(path: Path) -> None:
    """The body of entry 1."""
    flip(log_path(path) / FIRST, 8 * (PAGE + 64 + 100))


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err.splitlines()


# -- text --------------------------------------------------------------------------------------


def test_a_whole_directory_is_summed_up(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(clean)]) == 0
    out, err = lines(capsys)
    storage = (clean / "identity").read_text().splitlines()[3]
    held = "64 entries (1 to 64); 192 records (offsets 0 to 191)"
    assert out == [
        f"{clean}: node n1 of cluster shop, {storage}",
        f"  log orders {LOG}, closed in order",
        f"    3 segments, 1 sealed; {held}; 178056 bytes",
        "    ends at index 64, term 3, chain 60a78f78; committed up to 45",
        "  whole",
    ]
    assert err == []


def test_damage_fails_and_says_where_it_is(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n1"
    copied(clean, path)
    spoil(path)
    assert main(["verify", str(path)]) == 1
    out, err = lines(capsys)
    assert f"    damage: {FIRST}, bytes 4160 to 4932: the body is bad (entry 1)" in out
    assert out[-1] == "  damaged"
    assert err == [f"error: CORRUPT: 1 damaged place in {path}"]


def test_a_warning_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.crash()
    spoil(tmp_path / "n1")
    assert main(["verify", str(tmp_path / "n1")]) == 0
    out, err = lines(capsys)
    assert f"  log orders {LOG}, not closed in order" in out
    assert f"    warning: {FIRST}, bytes 4160 to 4932: the body is bad (entry 1)" in out
    assert (out[-1], err) == ("  whole, with 1 warning", [])


def test_copies_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for node, stamp in (("n1", 0), ("n2", 0), ("n3", 1)):
        writer = Writer.open(tmp_path / node, node)
        writer.flush(writer.entries(2))
        writer.flush(writer.entries(2, stamp=stamp))
        writer.stop()
        paths.append(str(tmp_path / node))
    assert main(["verify", *paths[:2]]) == 0
    out, _ = lines(capsys)
    assert out[-1] == f"log orders {LOG}: 2 copies, the same up to entry 4"
    assert main(["verify", *paths]) == 1
    out, err = lines(capsys)
    assert out[-4] == f"log orders {LOG}: copies differ, first at entry 3"
    assert [line.partition(": term 2, chain ")[0] for line in out[-3:]] == [f"  {p}" for p in paths]
    assert err == ["error: CORRUPT: copies of 1 log differ"]


def test_any_flipped_bit_of_a_closed_directory_fails(clean: Path) -> None:
    for file, bit in sample_bits(clean, 8):
        flip(file, bit)
        status = main(["verify", str(clean)])
        flip(file, bit)
        assert status == 1, f"bit {bit} of {file.name}"
    assert main(["verify", str(clean)]) == 0


def test_a_name_of_any_bytes_can_be_shown(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not UTF-8, and with what would move a cursor."""
    copied(clean, tmp_path / "n1")
    (log_path(tmp_path / "n1") / os.fsdecode(b"\xff\x1b[2J")).touch()
    assert main(["verify", str(tmp_path / "n1")]) == 1
    out, _ = lines(capsys)
    assert "    damage: ??[2J, bytes 0 to 0: no file of a log has this name" in out
    assert main(["verify", str(tmp_path / "n1"), "--json"]) == 1


# -- JSON --------------------------------------------------------------------------------------


def test_the_document_says_the_same(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "n1"
    copied(clean, path)
    spoil(path)
    assert main(["verify", "--json", str(clean), str(path)]) == 1
    out, err = lines(capsys)
    document, error = (json.loads(line) for line in out)
    assert list(document) == ["whole", "directories", "agreements"]
    assert document["whole"] is False
    first, second = document["directories"]
    assert (first["path"], first["whole"], second["whole"]) == (str(clean), True, False)
    storage = (clean / "identity").read_text().splitlines()[3].removeprefix("storage ")
    assert first["identity"] == {"cluster": "shop", "node": "n1", "storage": storage}
    [log] = second["logs"]
    body = {"start": 4160, "stop": 4932, "first": 1, "last": 1, "what": "the body is bad"}
    assert log == {
        "name": "orders",
        "incarnation": LOG,
        "clean": True,
        "segments": 3,
        "sealed": 1,
        "entries": 63,
        "records": 192,
        "bytes": 178056,
        "first": 1,
        "last": {"index": 64, "term": 3, "chain": "60a78f78"},
        "first_offset": 0,
        "end_offset": 192,
        "committed": 45,
        "damage": [{"file": FIRST, **body}],
        "warnings": [],
    }
    [agreement] = document["agreements"]
    assert agreement == {
        "name": "orders",
        "incarnation": LOG,
        "paths": [str(clean), str(path)],
        "through": 45,
        "difference": None,
    }
    message = f"1 damaged place in {path}"
    assert error == {"error": {"code": "CORRUPT", "message": message, "retriable": False}}
    assert err == [f"error: CORRUPT: {message}"]


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verfy"], "No such command 'verfy'."),
        (["verify"], "Missing argument 'DIR...'."),
        (["verify", "nowhere"], "Invalid value for 'DIR...': Directory 'nowhere' does not exist."),
        (["verify", "--fast", "."], "No such option '--fast'."),
    ],
)
def test_a_wrong_command_line_is_status_2(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 2
    out, err = lines(capsys)
    assert err[0].startswith("Usage: quorate ")
    assert err[-1].startswith(f"error: INVALID_ARGUMENT: {message[:20]}")
    assert json.loads(out[-1])["error"]["code"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_the_directory_of_a_whole_cluster_names_those_in_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n2", "n1"):
        Writer.open(tmp_path / name).stop()
    (tmp_path / "notes").mkdir()
    assert main([command, str(tmp_path)]) == 1
    _, err = lines(capsys)
    assert err == [f"error: WRONG_DIRECTORY: {tmp_path} is not a data directory; name n1, n2 in it"]


def test_a_running_node_is_not_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer.open(tmp_path / "n1")
    assert main(["verify", "--json", str(tmp_path / "n1")]) == 1
    writer.stop()
    out, err = lines(capsys)
    message = f"{tmp_path / 'n1'} is in use by process {os.getpid()}; stop it first"
    assert err == [f"error: WRONG_DIRECTORY: {message}"]
    assert json.loads(out[-1]) == {
        "error": {"code": "WRONG_DIRECTORY", "message": message, "retriable": False}
    }


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (PermissionError(13, "Permission denied", "logs"), "WRONG_DIRECTORY: logs is closed to"),
        (OSError(5, "Input/output error"), "DISK_FAILED: the disk: Input/output error"),
        (OSError(24, "Too many open files"), "BUSY: the disk: Too many open files"),
        (KeyboardInterrupt(), "INTERRUPTED: stopped before the end"),
    ],
)
def test_what_the_system_refuses_is_an_error_too(
    failure: BaseException,
    line: str,
    clean: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Path) -> Any:
        raise failure

    monkeypatch.setattr(Path, "iterdir", fail)
    assert main(["verify", str(clean)]) == 1
    _, err = lines(capsys)
    assert err[-1].startswith(f"error: {line}")


# -- the real command --------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-W", "error", "-m", "quorate", *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_the_command_runs_as_a_program(clean: Path, tmp_path: Path) -> None:
    installed = Path(sys.executable).parent / "quorate"
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"quorate {__version__}\n")
    whole = command("verify", str(clean))
    assert (whole.returncode, whole.stderr) == (0, "")
    copied(clean, tmp_path / "n1")
    spoil(tmp_path / "n1")
    damaged = command("verify", str(tmp_path / "n1"), "--json")
    assert damaged.returncode == 1
    assert damaged.stderr.startswith("error: CORRUPT: ")
    assert command("verify").returncode == 2


def test_help_names_the_commands() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert "verify" in done.stdout
    assert "inspect" in done.stdout


def test_the_command_needs_neither_arrow_nor_spark() -> None:
    code = "import sys, quorate.cli.main\nprint(sorted({'pyarrow', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n"


def test_a_reader_that_has_seen_enough_is_no_error(clean: Path) -> None:
    program = f"{sys.executable} -m quorate verify {clean} {clean} | head -n 1"
    done = subprocess.run(program, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{clean}: ")
    assert done.stderr == ""


WATCHED = """
import sys
from quorate.cli import verify
from quorate.cli.main import main
verify.PROGRESS_BYTES = 1
sys.exit(main(sys.argv[1:]))
"""


def on_a_terminal(*arguments: str) -> str:
    """What somebody who watches sees."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", WATCHED, *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the last one closed it
                break
            if not part:
                break
            seen += part
        process.wait()
    os.close(ours)
    return seen.decode()


def test_colours_and_progress_are_for_a_terminal(clean: Path) -> None:
    seen = on_a_terminal("verify", str(clean))
    assert "\x1b[32mwhole\x1b[0m" in seen
    assert "verifying" in seen
    assert "100%" in seen
    quiet = command("verify", str(clean))
    assert "\x1b" not in quiet.stdout + quiet.stderr
