"""What was measured with Spark becomes tables, and nothing is left out because a bar is missed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from bench.spark_data import FILE_RECORDS, FILES, Shape, write_files
from bench.spark_report import HEADS, lines, missed_count, page, voids

if TYPE_CHECKING:
    from pathlib import Path


def row(workload: str, system: str, variant: str, *rates: float) -> dict[str, Any]:
    rounds = [{"records_per_s": rate} for rate in rates]
    return {
        "workload": workload, "system": system, "variant": variant, "shape": "100 B, random",
        "rounds": rounds,
    }  # fmt: skip


def results(*rows: dict[str, Any], busy: float = 0.02) -> dict[str, Any]:
    return {
        "mode": "quick",
        "began": "2024-01-31 12:00 UTC",
        "commit": "abc",
        "machine": {
            "cpu": "a", "cores": 2, "memory_gb": 8.0, "system": "Linux", "file_system": "ext4"
        },
        "versions": {"python": "3.11"},
        "settings": {"rounds": 3, "small": 1000, "large": 100},
        "busy": [busy, 0.1],
        "stored": {"100 B, random": 1.25},
        "rows": list(rows),
    }  # fmt: skip


PASSED = {
    "workload": "W11", "system": "quorate", "variant": "", "shape": "", "staged_bytes": 0,
    "rounds": [{"p50_ms": 400.0, "p99_ms": 900.0}],
    "memory": {
        "early": {"batches": 200, "memory_mb": 1000.0},
        "late": {"batches": 1000, "memory_mb": 1050.0},
    },
}  # fmt: skip


def test_ratios_are_taken_round_by_round() -> None:
    found = results(
        row("W9", "quorate", "cluster", 50, 90, 60),
        row("W9", "parquet", "", 100, 100, 120),
        row("W9", "quorate", "tuples", 10, 40, 30),
    )
    ratios = [line.cells[6:] for line in lines(found)]
    assert ratios == [
        ("parquet", "0.50 (0.50 to 0.90)", "≥ 0.5", ""),
        ("quorate tuples", "2.25 (2.00 to 5.00)", "≥ 3", "missed"),
        ("", "", "", ""),
        ("", "", "", ""),
    ]
    assert missed_count(found) == 1


def test_the_limit_has_no_bar_and_stands_beside_both() -> None:
    found = results(
        row("W9", "quorate", "path", 30),
        row("W9", "parquet", "", 100),
        row("W9", "limit", "arrow", 40),
    )
    assert [line.cells[2:3] + line.cells[6:] for line in lines(found)] == [
        ("quorate path", "parquet", "0.30 (0.30 to 0.30)", "", ""),
        ("quorate path", "limit arrow", "0.75 (0.75 to 0.75)", "", ""),
        ("parquet", "", "", "", ""),
        ("limit arrow", "parquet", "0.40 (0.40 to 0.40)", "", ""),
    ]
    assert missed_count(found) == 0


def test_a_stream_stands_beside_the_batch() -> None:
    found = results(
        row("W10", "quorate", "batch", 40),
        row("W10", "quorate", "stream", 20),
        row("W10", "parquet", "", 100),
    )
    missed = [(line.cells[2], line.cells[6], line.missed) for line in lines(found)]
    assert missed == [
        ("quorate batch", "parquet", False),
        ("quorate stream", "quorate batch", True),
        ("parquet", "", False),
    ]


def test_latency_memory_and_what_is_left_staged_have_bars() -> None:
    assert [line.missed for line in lines(results(PASSED))] == [False] * 4
    slow = {**PASSED, "rounds": [{"p50_ms": 700.0, "p99_ms": 900.0}], "staged_bytes": 5}
    grown = {
        "early": {"batches": 200, "memory_mb": 1000.0},
        "late": {"batches": 1000, "memory_mb": 1200.0},
    }  # fmt: skip
    missed = [line.missed for line in lines(results({**slow, "memory": grown}))]
    assert missed == [True, False, True, True]


def test_the_page_holds_every_row_and_says_when_it_proves_nothing() -> None:
    found = results(row("W9", "parquet", "", 100), PASSED, busy=0.6)
    text = page(found)
    assert all(len(line.cells) == len(HEADS) for line in lines(found))
    assert "## W9: batch read" in text
    assert "| quorate | p50 ms | 400 |" in text
    assert "| 100 B, random | 1.25 |" in text
    assert voids(found) == ["something else ran on the machine: 60% of its cores were busy before"]
    assert "**This run proves nothing:**" in text
    assert voids(results()) == []


def test_values_like_json_are_json(tmp_path: Path) -> None:
    for size in (100, 150, 1024):
        folder = tmp_path / str(size)
        write_files(Shape("s", 50, size, random=False), folder)
        values = pq.read_table(folder).column("value").to_pylist()
        assert {len(value) for value in values} == {size}
        assert len({json.loads(value)["id"] for value in values}) == 50
    assert len(json.loads(values[0])["items"]) > 8


def test_files_have_the_rows_that_they_should(tmp_path: Path) -> None:
    for random in (True, False):
        folder = tmp_path / str(random)
        write_files(Shape("s", 1001, 150, random), folder)
        files = sorted(folder.iterdir())
        assert len(files) == FILES
        table = pq.read_table(folder)
        assert sorted(table.column("offset").to_pylist()) == list(range(1001))
        assert {len(value) for value in table.column("value").to_pylist()} == {150}
        assert {len(key) for key in table.column("key").to_pylist()} == {8}
    assert FILES * FILE_RECORDS == 1_000_000, "what a micro-batch takes"
