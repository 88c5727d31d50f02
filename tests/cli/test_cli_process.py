"""``quorate`` as a process: what it loads, how Ctrl-C ends it, where its output goes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dev_rig import command, plain_environment
from quorate.cli import options
from quorate.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cli_rig import Run

    from dev_rig import DevCluster

# Writes into the standard output what was loaded when the command line was read.
_LOADED = """
import sys
from quorate.cli.main import main
main(sys.argv[1:])
print(*sorted(sys.modules))
"""
# Is interrupted while its first command is loaded.
_INTERRUPTED = """
import builtins, os, signal, sys

load = builtins.__import__

def interrupted(name, *rest):
    if name == "click":
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *rest)

builtins.__import__ = interrupted
from quorate.__main__ import start
sys.exit(start())
"""
# Is interrupted a second time while the first one ends it.
_TWICE = """
import os, signal, sys
from quorate.client.blocking import Client

close = Client.close

def interrupted(client):
    os.kill(os.getpid(), signal.SIGINT)
    close(client)
    os.kill(os.getpid(), signal.SIGINT)

Client.close = interrupted
from quorate.__main__ import start
status = start()
os.kill(os.getpid(), signal.SIGINT)
sys.exit(status)
"""


def script(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


def ran(given: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        given, capture_output=True, text=True, env=plain_environment(), check=False
    )


@pytest.mark.parametrize("name", ["append", "log", "read", "status"])
def test_a_client_needs_nothing_of_what_a_node_is_made_of(name: str) -> None:
    loaded = ran(script(_LOADED, name, "--help")).stdout.splitlines()[-1].split()
    assert f"quorate.cli.{name}" in loaded
    parts = {module.split(".")[1] for module in loaded if module.startswith("quorate.")}
    assert not parts & {"raft", "replica", "server", "state", "storage"}
    others = {module for module in loaded if module.startswith("quorate.cli.")}
    assert not others & {"quorate.cli.dev", "quorate.cli.serve", "quorate.cli.verify"}


def test_ctrl_c_while_it_is_being_loaded_is_one_line() -> None:
    ended = ran(script(_INTERRUPTED, "read", "orders"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: INTERRUPTED: stopped before the end\n"


@pytest.mark.parametrize("follow", [True, False])
def test_a_second_ctrl_c_changes_nothing(
    cluster: DevCluster, quorate: Run, log: str, follow: bool
) -> None:
    quorate("append", log, given=b"a\n")
    line = ("read", log, "--follow") if follow else ("status", "--watch", "--json")
    with subprocess.Popen(
        script(_TWICE, *line, "--endpoints", cluster.endpoints),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_what_runs_in_the_background_ignores_ctrl_c(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    """As a shell starts it, whose Ctrl-C is for somebody else."""
    quorate("append", log, given=b"a\n")
    with subprocess.Popen(
        command("read", log, "--follow", "--endpoints", cluster.endpoints),
        stdout=subprocess.PIPE,
        env=plain_environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        process.send_signal(signal.SIGINT)
        quorate("append", log, given=b"b\n")
        assert process.stdout.readline() == b"b\n"
        process.kill()


def test_a_full_disk_under_the_output_is_one_line(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    quorate("append", log, given=b"a\n")
    for line in (("read", log), ("read", log, "--json"), ("status",), ("log", "list", "--json")):
        with open("/dev/full", "wb") as full:  # noqa: PTH123  # a device, not a path to look at
            process = subprocess.run(
                command(*line, "--endpoints", cluster.endpoints),
                stdout=full, stderr=subprocess.PIPE, env=plain_environment(), check=False,
            )  # fmt: skip
        assert process.returncode == 1
        assert process.stderr.decode() == (
            "error: OUTPUT_FAILED: standard output: No space left on device\n"
        )


def test_an_append_whose_output_has_no_room_says_what_is_in_the_log(
    cluster: DevCluster, quorate: Run, log: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\nb\n")
    with open("/dev/full", "wb") as full:  # noqa: PTH123  # a device, not a path to look at
        process = subprocess.run(
            command("append", log, lines, "--endpoints", cluster.endpoints),
            stdout=full, stderr=subprocess.PIPE, env=plain_environment(), check=False,
        )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr.decode().splitlines() == [
        "lines 1 to 2 are in the log",
        "error: OUTPUT_FAILED: standard output: No space left on device",
    ]
    assert quorate("read", log).out == b"a\nb\n"


def test_a_reader_that_has_gone_is_status_141_without_a_word(
    cluster: DevCluster, quorate: Run, log: str
) -> None:
    quorate("append", log, given=b"a\n")
    for line in (("read", log), ("status", "--json"), ("log", "list")):
        reading, writing = os.pipe()
        os.close(reading)
        process = subprocess.run(
            command(*line, "--endpoints", cluster.endpoints),
            stdout=writing, stderr=subprocess.PIPE, env=plain_environment(), check=False,
        )  # fmt: skip
        os.close(writing)
        assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_process_without_standard_streams_is_no_crash(
    cluster: DevCluster, log: str, closed: int
) -> None:
    for line in (("append", log), ("read", log), ("status",)):
        script = f'exec {closed}>&-; exec "$@"'
        process = subprocess.run(
            ["sh", "-c", script, "sh", *command(*line, "--endpoints", cluster.endpoints)],
            stdin=subprocess.DEVNULL, capture_output=True, env=plain_environment(), check=False,
        )  # fmt: skip
        assert (process.returncode, process.stderr) == (0, b"")


def test_somebody_at_a_terminal_is_told_whom_it_waits_for() -> None:
    screen, terminal = pty.openpty()
    line = command("log", "list", "--endpoints", "127.0.0.1:1", "--timeout", "3")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=terminal, env=plain_environment()
    ) as process:
        os.close(terminal)
        with open(screen, "rb", closefd=True) as shown:  # noqa: PTH123  # it is a descriptor
            assert shown.readline() == "waiting for 127.0.0.1:1 …\r\n".encode()
            assert b"Connection refused" in shown.readline()
        assert process.wait() == 1


@pytest.mark.parametrize("line", [["status"], ["read", "orders"], ["log", "list"]])
def test_nobody_where_a_cluster_is_by_default_is_told_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    # Nobody listens there, whatever else runs on this machine.
    monkeypatch.setattr(options, "DEFAULT", "127.0.0.1:1")
    monkeypatch.setenv("QUORATE_ENDPOINTS", "127.0.0.1:1")
    assert main([*line, "--timeout", "0.2"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: TIMEOUT: ")
    assert "`quorate dev`" in error
    assert "--endpoints" in error
