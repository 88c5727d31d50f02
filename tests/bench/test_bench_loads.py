"""Loads of the benchmarks on real systems: what they count is what is there."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.effort import NAMES, effort
from bench.filling import fill
from bench.gathered import load_gathered
from bench.reading import reads
from bench.rounds import Runner, Settings, Turn, in_turn
from bench.systems import Quorate
from quorate.cli.loading import load
from quorate.cli.workloads import WORKLOADS
from quorate.client.blocking import Client
from quorate.net.loop import run
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.outcome import Outcome

SECONDS = 0.3
# Spends half a second, tells, and stays until its input ends.
BURNING = """
import sys, time
sys.stdin.readline()
while time.process_time() < 0.5:
    pass
print("done", flush=True)
sys.stdin.readline()
"""
SHORT = Settings(
    seconds=SECONDS, warm_up=0.0, rounds=2, kills=1, read_bytes=1 << 20, delays_ms=(),
    stored_bytes=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def endpoints() -> Iterator[str]:
    with cluster(cuttable=False) as nodes:
        yield nodes.endpoints


@pytest.mark.parametrize("awaited", [False, True], ids=["submitted", "awaited"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_was_acknowledged_is_in_the_log(endpoints: str, name: str, awaited: bool) -> None:
    workload = WORKLOADS[name]
    log = f"{name}-{awaited}"
    with Client(endpoints) as client:
        client.create_log(log)
        tally = run(load(endpoints, log, workload, SECONDS, warm_up=0.0, awaited=awaited))
        assert client.log(log).end_offset() == tally.done
        [first] = client.log(log).read(0, 1)
        assert len(first.value) == workload.value_bytes
    assert tally.errors == 0
    assert tally.done >= workload.in_flight * workload.records
    assert tally.records == len(tally.latencies) * workload.records <= tally.done


def test_what_was_gathered_is_in_the_log(endpoints: str) -> None:
    workload = WORKLOADS["W3"]
    with Client(endpoints) as client:
        client.create_log("gathered")
        tally = run(load_gathered(endpoints, "gathered", workload, SECONDS, 0.0))
        assert client.log("gathered").end_offset() == tally.done >= workload.in_flight


def test_a_round_leaves_no_log(endpoints: str) -> None:
    with Client(endpoints) as client:
        before = client.logs()
        outcome = Quorate(endpoints).measure(WORKLOADS["W2"], SECONDS, 0.0)
        assert client.logs() == before
    assert outcome["done"] >= WORKLOADS["W2"].in_flight
    assert outcome["quantiles_ms"] == sorted(outcome["quantiles_ms"])


def test_a_log_is_filled_with_so_many_bytes(endpoints: str) -> None:
    workload = WORKLOADS["W4"]
    batch = workload.value_bytes * workload.records
    assert run(fill(endpoints, "filled", workload, 70 * batch)) == 70 * workload.records
    assert run(fill(endpoints, "filled", workload, batch + 1)) == 72 * workload.records


def test_everything_is_read_back_in_every_way(endpoints: str, tmp_path: Path) -> None:
    rows = reads(endpoints, tmp_path, SHORT, Runner(lambda _: None))
    assert [(row["system"], row["variant"]) for row in rows] == [
        ("quorate", "raw"),
        ("quorate", "arrow"),
        ("quorate", "records"),
        ("sendfile", ""),
    ]
    assert all(len(row["rounds"]) == SHORT.rounds for row in rows)
    assert list(tmp_path.iterdir()) == [], "the file that was sent is gone"


def test_systems_take_turns_and_a_peer_that_fails_is_left_out() -> None:
    order: list[str] = []

    def turn(system: str, *, fails_in: int = 0) -> Turn:
        def act() -> Outcome:
            order.append(system)
            if order.count(system) == fails_in:
                raise OSError("it is gone")
            return {"errors": 0}

        return Turn(system, "", act)

    runner = Runner(lambda _: None)
    turns = [turn("quorate"), turn("other", fails_in=2), turn("pipe")]
    rows = in_turn("W1", turns, 3, runner)
    assert order == ["quorate", "other", "pipe", "quorate", "other", "pipe", "quorate", "pipe"]
    assert [row["system"] for row in rows] == ["quorate", "pipe"]
    assert runner.skipped == {"other in W1": "it is gone"}


def test_without_ours_there_is_nothing_to_compare() -> None:
    def fail() -> Outcome:
        raise OSError("it is gone")

    with pytest.raises(OSError, match="it is gone"):
        in_turn("W1", [Turn("quorate", "", fail)], 1, Runner(lambda _: None))


def test_who_spends_the_time_is_told() -> None:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", BURNING]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with effort() as spent:
            process.stdin.write(b"go\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"done\n"
    assert set(spent) == set(NAMES)
    assert spent["leader"] >= 0.3
    assert spent["load"] < spent["leader"]
