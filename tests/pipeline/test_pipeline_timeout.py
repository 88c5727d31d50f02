"""``--timeout`` of a command is also the timeout of the operations in its Spark job."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from pipeline_rig import pipeline_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline_rig import Desk

    from quorate.testing import Cluster


@contextmanager
def paused_from(step: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No node answers any more once ``step``, which begins the job of Spark, is reached."""
    module, _, name = step.rpartition(".")
    original = getattr(import_module(module), name)

    def paused(*given: object) -> object:
        for node in cluster.nodes:
            cluster.pause(node)
        return original(*given)

    with monkeypatch.context() as patch:
        patch.setattr(step, paused)
        try:
            yield
        finally:
            for node in cluster.nodes:
                cluster.resume(node)


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (["run", "piped.py"], "quorate.cli.pipeline.run.follow"),
        (["run", "piped.py", "--from", "0"], "quorate.cli.pipeline.run.run_batch"),
        pytest.param(
            ["archive", "LOG-in", "archive"],
            "quorate.pipeline.archive.write.follow",
            marks=pytest.mark.spark_slow,
        ),
        pytest.param(
            ["archive", "LOG-in", "verified", "--verify"],
            "quorate.cli.pipeline.archive.run_batch",
            marks=pytest.mark.spark_slow,
        ),
        (["replay", "LOG-in", "--to", "LOG-out"], "quorate.pipeline.replay.run_batch"),
        (
            ["ingest", "piped.py", "LOG-out", "--format", "text"],
            "quorate.pipeline.ingest.append._accepted_or_error",
        ),
    ],
    ids=["run", "backfill", "archive", "verify", "replay", "ingest"],
)
def test_a_job_gives_up_when_it_was_told(
    arguments: list[str], step: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.log("in").append_batch([b"one", b"two"])
    desk.log("out")
    desk.write("piped.py", pipeline_file())
    given = [one.replace("LOG-", desk.name("")) for one in arguments]
    with paused_from(step, desk.cluster, monkeypatch):
        failed = desk.run(*given, "--timeout", "1.5")
    assert failed.status == 1
    assert failed.error.startswith("TIMEOUT: ")
    assert "(1.5 s)" in failed.error
