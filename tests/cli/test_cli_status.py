"""``quorate status``, as an operator and as a program meet it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from dev_rig import plain_environment
from quorate.cli.main import main
from quorate.errors import WrongCluster
from quorate.wire.calls import LogStatus, NodeStatus, PeerStatus, Status
from scripted_node import ScriptedNode, in_a_thread

if TYPE_CHECKING:
    import pytest
    from cli_rig import Run

    from dev_rig import DevCluster


def test_the_document(cluster: DevCluster, quorate: Run, log: str) -> None:
    quorate("append", log, given=b"a\nb\n")
    ran = quorate("status", "--json")
    assert (ran.status, ran.err) == (0, "")
    [status] = ran.documents
    addresses = cluster.endpoints.split(",")
    assert [(one["id"], one["address"], one["up"]) for one in status["nodes"]] == [
        (f"n{number}", address, True) for number, address in enumerate(addresses, 1)
    ]
    assert all(one["full"] in (True, False) for one in status["nodes"])
    assert all(0 <= one["disk_used"] <= 100 for one in status["nodes"])
    [found] = [one for one in status["logs"] if one["name"] == log]
    assert found.keys() == {
        "name", "incarnation", "leader", "term", "first_offset", "end_offset", "committed",
        "staged_bytes", "replicas",
    }  # fmt: skip
    assert (found["first_offset"], found["end_offset"], found["staged_bytes"]) == (0, 2, 0)
    states = {one["node"]: one for one in found["replicas"]}
    assert states.keys() == {"n1", "n2", "n3"}
    leader = states[found["leader"]]
    assert (leader["role"], leader["state"], leader["lag"]) == ("leader", "self", 0)
    keys = {"node", "role", "priority", "match", "lag", "state", "full", "halted"}
    assert all(one.keys() == keys for one in states.values())


def test_a_replica_that_its_node_stopped_is_down_and_the_reason_is_told(quorate: Run) -> None:
    node = ScriptedNode("n2")
    with in_a_thread(node):
        stopped = LogStatus(
            "orders", b"\1" * 16, "follower", None, 0, 0, 0, 0, 0, 0, [],
            halted="DAMAGED: entry 7 is lost",
        )  # fmt: skip
        node.will(Status, NodeStatus("n2", node.address, {"n2": node.address}, [stopped]))
        ran = quorate("status", "--endpoints", node.address)
    assert ran.status == 0
    assert "n2 down" in ran.out.decode()
    assert ran.out.decode().endswith("orders is stopped on n2: DAMAGED: entry 7 is lost\n")


def test_one_node_that_answers_is_enough_without_a_leader_too(quorate: Run) -> None:
    node = ScriptedNode("n2")
    with in_a_thread(node):
        places = {"n1": "127.0.0.1:1", "n2": node.address}
        view = LogStatus(
            "orders", b"\1" * 16, "candidate", None, 7, 0, 12, 5, 6, 0,
            [PeerStatus("n1", None, "down")], True,
        )  # fmt: skip
        node.will(Status, NodeStatus("n2", node.address, places, [view], 97, True))
        ran = quorate("status", "--endpoints", node.address)
        assert ran.status == 0
        assert ran.out.decode().splitlines() == [
            "NODE  ADDRESS" + " " * (len(node.address) - 7) + "  UP   DISK",
            "n1    " + "127.0.0.1:1".ljust(len(node.address)) + "  no   -",
            f"n2    {node.address}  yes  97 %, no room",
            "",
            "LOG     LEADER  TERM  FIRST  END  COMMITTED  REPLICAS",
            "orders  none       7      0   12          5  n1 down, n2 compare no room",
            "n1 does not answer: Connection refused",
        ]
        [status] = quorate("status", "--endpoints", node.address, "--json").documents
        assert status["logs"][0]["leader"] is None


def test_no_answer_is_a_failure_that_says_why(quorate: Run) -> None:
    ran = quorate("status", "--endpoints", "127.0.0.1:1", "--json")
    assert ran.status == 1
    why = "status: no node answered: 127.0.0.1:1: Connection refused"
    assert ran.err == f"error: TIMEOUT: {why}\n"
    assert ran.documents == [{"error": {"code": "TIMEOUT", "message": why, "retriable": True}}]


def test_a_refusal_is_told(quorate: Run) -> None:
    node = ScriptedNode()
    node.refusal = WrongCluster("cluster a was asked for, n1 is of b")
    with in_a_thread(node):
        ran = quorate("status", "--endpoints", node.address)
    assert ran.status == 1
    assert "WRONG_CLUSTER: cluster a was asked for, n1 is of b" in ran.err


def test_watching_goes_on_until_it_is_interrupted(cluster: DevCluster) -> None:
    command = [sys.executable, "-m", "quorate", "status", "--watch", "--json"]
    with subprocess.Popen(
        [*command, "--endpoints", cluster.endpoints],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert len(json.loads(process.stdout.readline())["nodes"]) == 3
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_a_terminal_gets_a_table(cluster: DevCluster, log: str) -> None:
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "quorate", "status", "--endpoints", cluster.endpoints]
    environment = plain_environment() | {"TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        while chunk := _read(screen):
            shown += chunk
        assert process.wait() == 0
    os.close(screen)
    assert log.encode() in shown
    assert b"\xe2\x94\x80" in shown, "a line is drawn"
    assert b"\x1b[" in shown, "with colours"


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 1 << 16)
    except OSError:  # the other side is closed
        return b""


def test_a_wrong_command_line_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "orders"]) == 2
    assert "error: INVALID_ARGUMENT: " in capsys.readouterr().err
