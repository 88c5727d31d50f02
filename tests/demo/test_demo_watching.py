"""How fast sinks are and how far nodes are behind, from what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.demo.findings import Sample
from quorate.demo.watching import lags_of, rate

if TYPE_CHECKING:
    from quorate.client.results import ClusterStatus, LogSummary, ReplicaSummary

SAMPLES = [Sample(second / 2, {"quorate": 100 * second}, {}) for second in range(20)]


def test_a_rate_is_over_the_last_seconds() -> None:
    assert rate(SAMPLES, "quorate") == pytest.approx(200.0)
    late = [*SAMPLES, Sample(20.0, SAMPLES[-1].read, {}), Sample(25.0, SAMPLES[-1].read, {})]
    assert rate(late, "quorate") == 0.0
    assert rate(late, "quorate", over_s=25.0) == pytest.approx(1900 / 25)


def test_a_rate_needs_two_samples() -> None:
    assert rate([], "quorate") == 0.0
    assert rate(SAMPLES[:1], "quorate") == 0.0


def replica(node: str, lag: int | None, state: str = "append") -> ReplicaSummary:
    return {
        "node": node, "role": "follower", "priority": 100, "match": None, "lag": lag,
        "state": state, "full": False, "halted": None,
    }  # fmt: skip


def log(*replicas: ReplicaSummary) -> LogSummary:
    return {
        "name": "orders", "incarnation": "", "leader": "n1", "term": 1, "first_offset": 0,
        "end_offset": 0, "committed": 0, "staged_bytes": 0, "replicas": list(replicas),
    }  # fmt: skip


def test_lags_are_those_of_all_logs_together() -> None:
    status = {
        "nodes": [
            {"id": "n1", "address": "", "up": True},
            {"id": "n2", "address": "", "up": True},
            {"id": "n3", "address": "", "up": False},
        ],
        "logs": [
            log(replica("n1", 0), replica("n2", 3), replica("n3", None, "down")),
            log(replica("n1", 2), replica("n2", None), replica("n3", None, "down")),
        ],
    }
    found: ClusterStatus = status  # type: ignore[assignment]  # fewer keys than a cluster gives
    assert lags_of(found) == {"n1": 2, "n2": 3, "n3": None}
