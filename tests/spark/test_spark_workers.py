"""What a Python worker of Spark does once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext

from quorate.spark import workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What was asked of the garbage collector, by a worker that has had no task yet."""
    asked: list[str] = []
    monkeypatch.setattr(workers, "_begun", False)
    monkeypatch.setattr(gc, "collect", lambda: asked.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    yield asked


def test_the_first_task_sets_aside_what_is_imported(
    collections: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    workers.begin_task()
    workers.begin_task()
    assert collections == ["collect", "freeze"]


def test_a_process_that_is_no_worker_is_left_alone(collections: list[str]) -> None:
    workers.begin_task()
    assert collections == []
