"""The names of the metrics are a promise; their values are what was counted."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from quorate.metrics import BOUNDS, Exposition, Histogram, LogMetrics, Metrics, Snapshot

SNAPSHOT = Snapshot([LogMetrics("orders", 1, 9, True, {"n2": 4}, 5, 6)], 7, 8)


def samples(metrics: Metrics, snapshot: Snapshot = SNAPSHOT) -> dict[str, float]:
    """name{label=value,...} -> value"""
    text = Exposition("1.2.3", metrics, lambda: snapshot).text().decode()
    return {
        f"{sample.name}{sample.labels}" if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_promised_name_is_there() -> None:
    metrics = Metrics()
    metrics.appended_records["orders"] += 3
    metrics.append_errors["BUSY"] += 2
    metrics.elections["orders"] += 1
    metrics.append_duration.observe(0.004, 2)
    metrics.fsync_duration.observe(0.0001)
    metrics.stray_messages = 11
    found = samples(metrics)
    log = "{'log': 'orders'}"
    expected = {
        "quorate_build_info{'version': '1.2.3'}": 1,
        f"quorate_appended_records_total{log}": 3,
        "quorate_append_errors_total{'code': 'BUSY'}": 2,
        f"quorate_elections_total{log}": 1,
        "quorate_append_duration_seconds_count": 2,
        "quorate_append_duration_seconds_sum": 0.008,
        "quorate_append_duration_seconds_bucket{'le': '0.0025'}": 0,
        "quorate_append_duration_seconds_bucket{'le': '0.005'}": 2,
        "quorate_fsync_duration_seconds_count": 1,
        "quorate_fsync_duration_seconds_bucket{'le': '0.0001'}": 1,
        f"quorate_log_first_offset{log}": 1,
        f"quorate_log_end_offset{log}": 9,
        f"quorate_replica_is_leader{log}": 1,
        "quorate_replica_lag_entries{'log': 'orders', 'peer': 'n2'}": 4,
        f"quorate_staged_bytes{log}": 5,
        f"quorate_damaged_ranges{log}": 6,
        "quorate_disk_free_bytes": 7,
        "quorate_connections": 8,
        "quorate_stray_messages_total": 11,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_all_names_have_the_prefix() -> None:
    assert all(name.startswith("quorate_") for name in samples(Metrics()))


def test_a_log_counts_from_zero() -> None:
    found = samples(Metrics())
    assert found["quorate_appended_records_total{'log': 'orders'}"] == 0
    assert found["quorate_elections_total{'log': 'orders'}"] == 0


def test_a_histogram_loses_nothing() -> None:
    histogram = Histogram()
    for seconds in (0.0, *BOUNDS, 99.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert list(buckets.values()) == [*(float(place) for place in range(2, 18)), 18.0]
    assert buckets["+Inf"] == 18
    assert histogram.total == sum(BOUNDS) + 99


def test_a_disk_that_was_not_looked_at_is_left_out() -> None:
    found = samples(Metrics(), Snapshot([], None, 0))
    assert not [name for name in found if name.startswith("quorate_disk")]
