"""From results to rows, page and pictures: the same results always give the same."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.__main__ import main
from bench.page import page
from bench.plots import draw
from bench.report import BARS, HEADS, lines, missed_count, pipe_lines, voids
from quorate.cli.workloads import WORKLOADS, Tally

if TYPE_CHECKING:
    from pathlib import Path

    from bench.report import Results
    from bench.rounds import Row

QUANTILES = [float(percent) for percent in range(101)]


def row(workload: str, system: str, variant: str = "", delay_ms: int = 0, **figures: Any) -> Row:
    """Every figure has a value for each of its rounds."""
    rounds = [
        {**dict(zip(figures, values, strict=True)), "errors": 0, "quantiles_ms": QUANTILES}
        for values in zip(*figures.values(), strict=True)
    ]
    return {
        "workload": workload,
        "system": system,
        "variant": variant,
        "delay_ms": delay_ms,
        "rounds": rounds,
    }


RESULTS: Results = {
    "mode": "quick",
    "began": "2026-01-02 03:04 UTC",
    "machine": {
        "cpu": "A CPU",
        "cores": 2,
        "memory_gb": 8.0,
        "system": "Linux 6.1",
        "file_system": "ext4",
    },
    "versions": {"python": "3.11.0", "quorate": "0.1"},
    "commit": "0123456789ab",
    "settings": {"rounds": 3, "seconds": 1.5, "warm_up": 0.5},
    "busy": [0.02, 0.3],
    "sync_p50_us": [140.0, 150.0],
    "systems": {"quorate": "ours"},
    "skipped": {"etcd": "it is not installed"},
    "rows": [
        row("W1", "quorate", p50_ms=[1.0, 1.2, 1.4], p99_ms=[2.0, 3.0, 4.0]),
        row("W1", "pipe", p50_ms=[0.5, 0.5, 1.0], p99_ms=[1.0, 1.0, 1.0]),
        row("W3", "quorate", "submitted", records_per_s=[300e3, 100e3, 200e3], p99_ms=[1, 2, 3]),
        row(
            "W3",
            "pipe",
            records_per_s=[400e3, 500e3, 400e3],
            p99_ms=[1, 2, 3],
            done=[1_000_000] * 3,
            cpu_s=[{"load": load, "leader": 1.2, "follower": 0.4} for load in (2.0, 9.0, 2.5)],
        ),
        row("W3", "pysyncobj", records_per_s=[30e3, 20e3, 25e3], p99_ms=[1, 2, 3]),
        row("W1", "quorate", delay_ms=2, p50_ms=[3.0], p99_ms=[4.0]),
        row("W1", "pipe", delay_ms=2, p50_ms=[2.0], p99_ms=[4.0]),
        row("W6", "quorate", "records", mb_per_s=[204.8], records_per_s=[200e3]),
        row("W6", "sendfile", mb_per_s=[2048.0], records_per_s=[2e6]),
        {**row("W8", "quorate"), "failovers_ms": [80.0, 95.5, 120.0]},
        row("W13", "quorate", "new", records_per_s=[2e6], p99_ms=[5.0]),
        {
            **row("W13", "quorate", "grown", records_per_s=[1.9e6], p99_ms=[5.0]),
            "stored_bytes": 10**10,
            "memory_bytes": 260_000_000,
            "open_s": [0.5, 0.4, 0.6],
        },
    ],
}


def cells(*names: str) -> dict[str, str]:
    """Of the row of this workload and system, by the head of the column."""
    [found] = [line.cells for line in lines(RESULTS) if line.cells[:2] == names]
    return dict(zip(HEADS[:-1], found, strict=False)) | {"note": found[-1]}


def test_ratios_are_taken_round_by_round() -> None:
    found = cells("W1", "quorate")
    assert found["of the limit"] == "2.00 (1.40 to 2.40)"
    assert (found["median"], found["low to high"], found["p99 ms"]) == (
        "1.20",
        "1.00 to 1.40",
        "3.00",
    )
    assert cells("W3", "quorate submitted")["of the limit"] == "0.50 (0.20 to 0.75)"
    assert cells("W3", "pipe")["of the limit"] == "", "the limit has none"


def test_bars_are_kept_or_missed() -> None:
    assert (cells("W1", "quorate")["bar"], cells("W1", "quorate")["note"]) == ("≤ 2", "")
    beside = cells("W3", "pysyncobj")
    assert (beside["bar"], beside["note"]) == ("ours ≥ 10 x, 8.0 x", "missed")
    records = cells("W6", "quorate records")
    assert (records["bar"], records["note"]) == ("≥ 300 k records/s", "200 k records/s, missed")
    assert cells("W13", "quorate grown")["note"] == ""
    [memory] = [line for line in lines(RESULTS) if line.cells[2] == "MB of memory"]
    assert (memory.cells[3], memory.cells[7], memory.missed) == ("260", "≤ 250 MB", True)
    assert missed_count(RESULTS) == 3


def test_a_slowed_disk_has_a_limit_of_its_own_and_no_bar() -> None:
    found = cells("W1 +2 ms", "quorate")
    assert (found["of the limit"], found["bar"]) == ("1.50 (1.50 to 1.50)", "")


def test_failovers_have_a_middle_and_ends() -> None:
    found = cells("W8", "quorate")
    assert (found["figure"], found["median"], found["low to high"]) == (
        "ms, 3 kills",
        "95.5",
        "80.0 to 120",
    )


def test_without_a_peer_its_bar_says_nothing() -> None:
    without = copy.deepcopy(RESULTS)
    without["rows"] = [one for one in without["rows"] if one["system"] != "pysyncobj"]
    assert missed_count(without) == missed_count(RESULTS) - 1


def test_the_pipe_is_judged_by_what_is_known_of_it() -> None:
    assert pipe_lines(RESULTS) == [
        ("W1", "0.50 p50 ms", "0.59", "1.18"),
        ("W3", "400 k appends/s", "415 k", "0.96"),
    ]


def test_a_run_on_a_busy_machine_proves_nothing() -> None:
    assert voids(RESULTS) == []
    assert "proves nothing" not in page(RESULTS, [])
    busy = copy.deepcopy(RESULTS)
    busy["busy"][0] = 0.25
    busy["rows"][1]["rounds"] = [{"p50_ms": 2.0, "errors": 0}]
    assert voids(busy) == [
        "something else ran on the machine: 25% of its cores were busy before",
        "the pipe reached 0.29 of what is known of it in W1",
    ]
    assert "**This run proves nothing:**" in page(busy, [])


def test_errors_are_shown() -> None:
    failing = copy.deepcopy(RESULTS)
    failing["rows"][0]["rounds"][1]["errors"] = 4
    assert lines(failing)[0].cells[-1] == "4 errors"


def test_every_bar_has_a_text() -> None:
    assert [bar.text for bar in BARS] == [
        "≤ 2", "≥ 0.5", "≥ 0.4", "ours ≥ 10 x", "≥ 0.6", "≥ 0.8", "≥ 0.6", "≥ 300 k records/s",
        "≥ 0.9", "≤ 250 MB",
    ]  # fmt: skip


def test_the_page_depends_on_the_results_alone() -> None:
    text = page(RESULTS, ["figures/bench-latency.svg"])
    assert text == page(copy.deepcopy(RESULTS), ["figures/bench-latency.svg"])
    for part in (
        "| machine | A CPU, 2 cores, 8.0 GB |",
        "| fdatasync of 4 KiB | p50 140 µs before, 150 µs after |",
        "| commit | 0123456789ab, 2026-01-02 03:04 UTC |",
        "| bars that were missed | 3 |",
        "| W1 | quorate | p50 ms | 1.20 | 1.00 to 1.40 | 3.00 | 2.00 (1.40 to 2.40) | ≤ 2 |",
        "## Slow disks",
        "| W3 | pipe | 2.50 | 1.20 | 0.40 |",
        "![bench-latency](figures/bench-latency.svg)",
        "- not measured: etcd: it is not installed",
    ):
        assert part in text
    assert text.endswith("of one core.\n")


def test_the_page_can_be_written_again_from_the_json(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    source, target = tmp_path / "quick.json", tmp_path / "docs" / "page.md"
    target.parent.mkdir()
    source.write_text(json.dumps(RESULTS), encoding="utf-8")
    assert main(["--from", str(source), "--page", str(target)]) == 0
    names = ("bench-throughput.svg", "bench-latency.svg", "bench-failover.svg")
    assert target.read_text(encoding="utf-8") == page(RESULTS, [f"figures/{one}" for one in names])
    assert {path.name for path in (target.parent / "figures").iterdir()} == {*names}


def test_pictures_depend_on_the_results_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = [draw(RESULTS, tmp_path / name) for name in ("once", "again")]
    assert [path.name for path in drawn[0]] == [
        "bench-throughput.svg",
        "bench-latency.svg",
        "bench-failover.svg",
    ]
    for once, again in zip(*drawn, strict=True):
        assert once.read_bytes() == again.read_bytes()


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "W1,W99"])
    assert "no such workload: W99" in capsys.readouterr().err


def test_only_what_ends_in_time_is_measured() -> None:
    tally = Tally(seconds=2.0, warm_up=1.0)
    start = tally.start
    for ended in (start - 0.1, start, start + 1.0, start + 2.0, start + 2.5):
        tally.acked(ended - 0.25, ended, 10)
    tally.acked(start + 0.5, start + 1.5, 10, appends=3)
    assert (tally.done, tally.records) == (80, 50)
    assert tally.records_per_s == 25.0
    assert tally.quantiles([0.0, 0.5, 1.0]) == pytest.approx([0.25, 1.0, 1.0])
    document = tally.document(WORKLOADS["W1"])
    assert (document["p50_ms"], document["p99_ms"], document["mb_per_s"]) == (1000.0, 1000.0, 0.003)


def test_a_load_without_an_answer_has_no_latency() -> None:
    document = Tally(1.0).document(WORKLOADS["W1"])
    assert (document["records_per_s"], document["p50_ms"]) == (0.0, None)


def test_a_round_without_an_answer_is_no_ratio() -> None:
    silent = copy.deepcopy(RESULTS)
    silent["rows"][1]["rounds"][0]["p50_ms"] = None
    assert lines(silent)[0].cells[6] == "1.90 (1.40 to 2.40)"
    for outcome in silent["rows"][1]["rounds"]:
        outcome["p50_ms"] = None
    assert lines(silent)[0].cells[6] == ""
    assert lines(silent)[1].cells[1] == "quorate submitted", (
        "the row of the pipe has nothing to say"
    )
