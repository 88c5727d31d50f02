"""``quorate log``, as a user and as a program meet it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.cli.main import main

if TYPE_CHECKING:
    from cli_rig import Run


def test_a_log_is_made_listed_described_and_deleted(quorate: Run) -> None:
    ran = quorate("log", "create", "life")
    assert (ran.status, ran.out, ran.err) == (0, b"log life made\n", "")
    assert b"life" in quorate("log", "list").out.splitlines()
    quorate("append", "life", given=b"a\nb\n")
    described = quorate("log", "describe", "life").out.decode()
    assert "log          life\n" in described
    assert "records      offsets 0 to before 2\n" in described
    ran = quorate("log", "delete", "life")
    assert (ran.status, ran.out, ran.err) == (0, b"log life deleted\n", "")
    assert b"life" not in quorate("log", "list").out.splitlines()


def test_documents(quorate: Run) -> None:
    [made] = quorate("log", "create", "papers", "--json").documents
    assert made == {"name": "papers", "incarnation": made["incarnation"]}
    assert len(bytes.fromhex(made["incarnation"])) == 16
    [found] = quorate("log", "list", "--json").documents
    assert "papers" in found["logs"]
    [described] = quorate("log", "describe", "papers", "--json").documents
    assert described.keys() == {
        "name", "incarnation", "leader", "term", "first_offset", "end_offset", "committed",
        "staged_bytes", "replicas",
    }  # fmt: skip
    assert described["incarnation"] == made["incarnation"]
    assert [one["node"] for one in described["replicas"]] == ["n1", "n2", "n3"]
    assert quorate("log", "delete", "papers", "--json").documents == [{"name": "papers"}]


def test_replicas_are_a_table(quorate: Run, log: str) -> None:
    lines = quorate("log", "describe", log).out.decode().splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["NODE", "ROLE", "PRIORITY", "MATCH", "LAG", "STATE"]
    assert {line.split()[2] for line in table[1:]} == {"100"}
    assert sorted(line.split()[1] for line in table[1:]) == ["follower", "follower", "leader"]
    assert not any(line.endswith(" ") or "\x1b" in line for line in lines), "plain in a pipe"


def test_priorities_are_set_and_shown(quorate: Run) -> None:
    quorate("log", "create", "ranked")
    ran = quorate("log", "set", "ranked", "priority.n1=0", "priority.n3=120")
    assert (ran.status, ran.out, ran.err) == (0, b"log ranked set\n", "")
    [ran] = quorate("log", "set", "ranked", "priority.n3=130", "--json").documents
    assert ran == {"name": "ranked", "priorities": {"n3": 130}}
    [found] = quorate("log", "describe", "ranked", "--json").documents
    assert {one["node"]: one["priority"] for one in found["replicas"]} == {
        "n1": 0, "n2": 100, "n3": 130,
    }  # fmt: skip
    refused = quorate("log", "set", "ranked", "priority.n9=1")
    assert refused.status == 1
    assert refused.err.startswith("error: INVALID_ARGUMENT: n9 has no replica of log ranked: ")
    quorate("log", "delete", "ranked")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("priority.n1=256", "a priority is 0 to 255"),
        ("priority.n1=-1", "a priority is 0 to 255"),
        ("priority.n1", "a priority is 0 to 255"),
        pytest.param("priority.n1=" + "9" * 5000, "a priority is 0 to 255", id="digits"),
        ("priority.=1", "the settings of a log are priority.NODE=0 to 255"),
        ("retention=1", "the settings of a log are priority.NODE=0 to 255"),
    ],
)
def test_a_setting_that_cannot_be(
    capsys: pytest.CaptureFixture[str], setting: str, problem: str
) -> None:
    """No node is asked: there is no cluster."""
    assert main(["log", "set", "orders", setting]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error.endswith(f"{setting!r}: {problem}")


def test_a_log_is_made_once(quorate: Run, log: str) -> None:
    ran = quorate("log", "create", log, "--json")
    assert ran.status == 1
    assert ran.err.startswith(f"error: LOG_EXISTS: log {log} exists")
    assert ran.documents[-1]["error"]["code"] == "LOG_EXISTS"


@pytest.mark.parametrize("command", ["describe", "delete"])
def test_a_log_that_is_not_there(quorate: Run, command: str) -> None:
    ran = quorate("log", command, "nowhere")
    assert (ran.status, ran.err) == (1, "error: LOG_NOT_FOUND: log nowhere does not exist\n")


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 250, "a\nb"])
@pytest.mark.parametrize(
    "command",
    [("log", "create"), ("log", "describe"), ("log", "delete"), ("append",), ("read",),
     ("bench", "--workload", "W1", "--log"), ("dev", "--log")],
)  # fmt: skip
def test_a_name_that_cannot_be(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...], name: str
) -> None:
    """Nobody is asked: there is no cluster."""
    assert main([*command, name]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: INVALID_ARGUMENT: Invalid value for ")
    assert ": the name of a log is 1 to 249 letters, digits, " in error


@pytest.mark.parametrize("group", [[], ["log"]])
def test_without_a_command_the_commands_are_listed(
    capsys: pytest.CaptureFixture[str], group: list[str]
) -> None:
    assert main(group) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("Usage: quorate")
    assert "Commands:" in lines
    assert "?" not in err


@pytest.mark.parametrize("wrong", [["create"], ["list", "name"], ["remove", "x"]])
def test_a_wrong_command_line_is_status_2(
    capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert main(["log", *wrong]) == 2
    assert "error: INVALID_ARGUMENT: " in capsys.readouterr().err
