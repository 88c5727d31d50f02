"""The whole demo with real nodes and real Spark, only smaller; and who is left if it is stopped."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from demo_rig import demo_process, workers

from dev_rig import wait_until

if TYPE_CHECKING:
    from pathlib import Path

# Spark alone takes that on a machine with better things to do.
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
PATIENCE_S = 800


def test_a_small_demo_comes_out_exactly(tmp_path: Path) -> None:
    with demo_process(tmp_path, "--json") as demo:
        out, err = demo.communicate(timeout=PATIENCE_S)
        assert demo.returncode == 0, err
        assert workers(tmp_path) == {}
    document = json.loads(out)
    assert document["sinks"]["quorate"] == {
        "records": 13_960, "lost": 0, "duplicates": 0, "strangers": 0,
    }  # fmt: skip
    assert document["sinks"]["naive"]["lost"] == 0
    assert document["sinks"]["naive"]["duplicates"] > 0
    assert document["letters"] == 60
    assert [check for check in document["checks"] if not check["kept"]] == []
    what = [kill["what"] for kill in document["kills"]]
    assert what[0].startswith("leader n")
    assert sorted(what[1:]) == ["naive driver", "quorate driver"]
    report = tmp_path / document["report"]
    assert "checks passed" in report.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [report]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_when_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with demo_process(tmp_path) as demo:
        wait_until(lambda: drivers(tmp_path), "Spark has been started")
        demo.send_signal(number)
        _, err = demo.communicate(timeout=PATIENCE_S)
        if number == signal.SIGKILL:
            # Whoever is killed removes nothing. The kernel ends the others, one after the other.
            wait_until(lambda: workers(tmp_path) == {}, "all have ended")
            return
        assert demo.returncode == 1
        assert err.endswith("error: INTERRUPTED: stopped before the end\n")
        assert workers(tmp_path) == {}
        assert list(tmp_path.iterdir()) == []


def drivers(place: Path) -> bool:
    return sum("org.apache.spark" in command for command in workers(place).values()) == 2
