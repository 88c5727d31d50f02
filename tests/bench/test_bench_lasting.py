"""What takes long is measured on little here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from bench.lasting import failovers, growth
from bench.rounds import Runner, Settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SHORT = Settings(
    seconds=0.3, warm_up=0.0, rounds=1, kills=1, read_bytes=0, delays_ms=(), stored_bytes=5_000_000
)


def test_a_kill_is_a_number() -> None:
    [row] = failovers(SHORT, Runner(lambda _: None))
    assert row["workload"] == "W8"
    assert len(row["failovers_ms"]) == 1
    assert row["failovers_ms"][0] > 0


def test_a_log_that_has_grown_is_measured_beside_a_new_one(tmp_path: Path) -> None:
    runner = Runner(lambda _: None)
    rows = growth(tmp_path, SHORT, runner)
    assert runner.skipped == {}
    assert [(row["variant"], len(row["rounds"])) for row in rows] == [("new", 1), ("grown", 1)]
    assert rows[1]["memory_bytes"] > 0
    assert len(rows[1]["open_s"]) == 3
    assert list(tmp_path.iterdir()) == [], "what was stored is gone"


def test_without_room_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    runner = Runner(lambda _: None)
    assert growth(tmp_path, SHORT, runner) == []
    assert runner.skipped == {"W13": "less than 9 GB are free"}
    assert list(tmp_path.iterdir()) == []
