"""The judges of a chaos run: stops that were not in order, settings, faults that never came."""

from __future__ import annotations

import sys
import tomllib
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from quorate.testing.processes import Cluster
from quorate.testing.processes import node as node_processes
from verification.chaos import nemesis as nemeses
from verification.chaos.nemesis import Nemesis
from verification.chaos.sizes import BATCH_BYTES, Sizes
from verification.chaos.stops import StopResult, Stops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

# What stands in for a node: it answers on the HTTP port and does with SIGTERM what it is told.
STAND_IN = """
import http.server, signal, sys, tomllib
told = {code!r}
def stop(*_):
    if told is not None:
        sys.exit(told)
signal.signal(signal.SIGTERM, stop)
host, port = tomllib.load(open({settings!r}, "rb"))["node"]["http"].split(":")
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer((host, int(port)), Page).serve_forever()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 2, cuttable=False)
    yield made
    made.close()


def _stand_in(nodes: Cluster, name: str, code: int | None) -> None:
    node = nodes.nodes[name]
    program = STAND_IN.format(code=code, settings=str(node.settings))
    node._command = (sys.executable, "-c", program)
    nodes.begin(name)


def test_a_stop_in_order_is_counted_and_no_problem(nodes: Cluster) -> None:
    _stand_in(nodes, "n1", 0)
    _stand_in(nodes, "n2", 0)
    stops = Stops(nodes)
    stops.stop("n1", "n2")
    assert (stops.done, stops.problems) == (2, [])
    assert stops.longest_s > 0


def test_a_node_that_ends_with_another_status_is_a_problem(nodes: Cluster) -> None:
    _stand_in(nodes, "n1", 3)
    stops = Stops(nodes)
    stops.stop("n1")
    assert stops.done == 1
    [problem] = stops.problems
    assert problem.startswith("n1 was told to stop and ended with status 3")


def test_a_node_that_does_not_stop_is_a_problem_and_is_killed(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_processes, "STOP_S", 1)
    _stand_in(nodes, "n1", None)
    stops = Stops(nodes)
    stops.stop("n1")
    assert stops.problems == ["n1 was told to stop, did not, and was killed"]
    assert not nodes.nodes["n1"].running


def test_a_node_that_ended_by_itself_is_no_stop(nodes: Cluster) -> None:
    stops = Stops(nodes)
    stops.stop("n1")
    assert (stops.done, stops.problems) == (0, [])


def test_nodes_start_with_different_sizes_and_a_change_is_in_the_file(nodes: Cluster) -> None:
    sizes = Sizes(nodes, Random(1))
    first = {name: _limits(nodes, name)["batch_bytes"] for name in nodes.nodes}
    assert first["n1"] != first["n2"]
    assert {*first.values()} <= {*BATCH_BYTES}
    for _ in range(20):
        sizes.change("n1")
    assert sizes.changes > 0
    assert min(sizes.batch_bytes) in BATCH_BYTES
    assert _limits(nodes, "n2")["batch_bytes"] == first["n2"]


def test_every_fault_comes_before_one_comes_again(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nemeses, "REST_S", (0.0, 0.0))
    nemesis = Nemesis(nodes, ["log"], Random(2), Sizes(nodes, Random(2)), None)
    names = nemesis.never_done
    assert {"stop", "stop-all", "kill", "restart"} <= {*names}
    came: list[str] = []

    def fault(name: str) -> Any:
        def strike() -> None:
            came.append(name)

        strike.__name__ = name.replace("-", "_")
        return strike

    nemesis._faults = [fault(name) for name in names]
    monkeypatch.setattr(nemesis, "mend", lambda: None)
    nemesis.torment(0.05)
    assert sorted(came[: len(names)]) == sorted(names)
    assert nemesis.never_done == []


def test_what_a_stop_took_is_told(nodes: Cluster) -> None:
    stops = Stops(nodes)
    for seconds in (0.5, 2.0, 1.0):
        stops.judge("n1", StopResult(seconds, ""))
    assert (stops.done, stops.longest_s) == (3, 2.0)


def _limits(nodes: Cluster, name: str) -> dict[str, Any]:
    with nodes.nodes[name].settings.open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["limits"]
    return found
