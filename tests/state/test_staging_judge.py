"""What a leader says to a chunk and to a publish before anything is logged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from staging_rig import APP, LIMITS, StagingScribe, label, publish, uuid
from state_rig import Sent

from quorate.commands import ChunkStaged, SetFence
from quorate.entry_body import CHUNK_BYTES, chunk_at
from quorate.errors import QuorateError
from quorate.state.judge import rows_of
from quorate.state.operations import DropReason, DropStaged
from quorate.state.runs import Run


def indexes(rows: bytes) -> list[int]:
    """Of the chunks that stand packed in ``rows``."""
    places = range(len(rows) // CHUNK_BYTES)
    return [chunk_at(memoryview(rows), place).index for place in places]


def code(verdict: object) -> str:
    assert isinstance(verdict, QuorateError), verdict
    return verdict.code


def published() -> StagingScribe:
    """One batch of two records, at offset 4."""
    scribe = StagingScribe(term=3)
    scribe.send(Sent(4))
    scribe.stage(label(5), 2)
    scribe.publish(publish(5, (0, 1, 1, 2), of=7))
    return scribe


# -- chunks --------------------------------------------------------------------------------------


def test_the_next_chunk_is_taken_and_a_gap_is_not() -> None:
    scribe = StagingScribe()
    assert scribe.judge_stage(label()) is None
    assert code(scribe.judge_stage(label(number=1))) == "OUT_OF_SEQUENCE"
    scribe.stage(label())
    assert scribe.judge_stage(label(number=1)) is None
    assert code(scribe.judge_stage(label(number=2))) == "OUT_OF_SEQUENCE"


def test_a_chunk_that_is_repeated_is_known_again() -> None:
    scribe = StagingScribe()
    first, second = scribe.stage(label(), 3), scribe.stage(label(number=1), 2)
    assert scribe.judge_stage(label(), 3) == ChunkStaged(first.index, published=False)
    assert scribe.judge_stage(label(number=1), 2) == ChunkStaged(second.index, published=False)
    assert code(scribe.judge_stage(label(number=1), 3)) == "INVALID_ARGUMENT"


def test_an_attempt_belongs_to_one_run() -> None:
    scribe = StagingScribe()
    scribe.stage(label())
    assert code(scribe.judge_stage(label(number=1, run=2))) == "INVALID_ARGUMENT"


def test_for_a_published_batch_nothing_is_staged() -> None:
    scribe = published()
    index = scribe.entries[-1].index
    for batch_id in (0, 5):
        assert scribe.judge_stage(label(batch_id, attempt=9)) == ChunkStaged(index, published=True)
    # Not even what would be refused otherwise.
    assert scribe.judge_stage(label(5, number=4)) == ChunkStaged(index, published=True)
    assert scribe.judge_stage(label(6)) is None


def test_staged_bytes_and_chunks_have_a_cap() -> None:
    scribe = StagingScribe()
    size = scribe.stage(label()).size
    tight = replace(LIMITS, staged_bytes=size + 8)
    assert scribe.judge_stage(label(number=1), size=8, limits=tight) is None
    assert code(scribe.judge_stage(label(number=1), size=9, limits=tight)) == "STAGE_FULL"
    few = replace(LIMITS, staged_chunks=1)
    assert code(scribe.judge_stage(label(number=1), limits=few)) == "STAGE_FULL"
    # A repeat takes nothing.
    assert scribe.judge_stage(label(), limits=few) == ChunkStaged(
        scribe.entries[0].index, published=False
    )


def test_apps_have_a_cap_that_only_a_new_one_meets() -> None:
    scribe = StagingScribe()
    scribe.stage(label(app="stages"))
    scribe.publish(publish(0, app="published"))
    two = replace(LIMITS, apps=2)
    for app in ("stages", "published"):
        assert scribe.judge_stage(label(1, attempt=5, app=app), limits=two) is None
        assert scribe.judge_publish(publish(1, app=app), two) is None
    assert code(scribe.judge_stage(label(app="new"), limits=two)) == "STAGE_FULL"
    assert code(scribe.judge_publish(publish(0, app="new"), two)) == "STAGE_FULL"


# -- publishes -----------------------------------------------------------------------------------


def test_a_publish_of_all_that_its_parts_staged_is_taken() -> None:
    scribe = StagingScribe()
    entries = [scribe.stage(label(number=number), 2) for number in range(2)]
    asked = publish(0, (0, 1, 2, 4))
    assert scribe.judge_publish(asked) is None
    assert indexes(rows_of(scribe.state, asked)) == [entry.index for entry in entries]


@pytest.mark.parametrize("winner", [1, 2, 3])
def test_a_publish_takes_the_attempts_that_it_names(winner: int) -> None:
    scribe = StagingScribe()
    entries = [scribe.stage(label(attempt=attempt, run=attempt), 2) for attempt in (1, 2, 3)]
    asked = publish(0, (0, winner, 1, 2))
    assert indexes(rows_of(scribe.state, asked)) == [entries[winner - 1].index]


@pytest.mark.parametrize(
    "part", [(0, 1, 3, 4), (0, 2, 2, 4), (1, 1, 2, 4)], ids=["chunk", "attempt", "partition"]
)
def test_a_missing_chunk_refuses_the_whole(part: tuple[int, int, int, int]) -> None:
    scribe = StagingScribe()
    scribe.stage(label(), 2)
    scribe.stage(label(number=1), 2)
    scribe.stage(label(partition=7), 2)
    assert code(scribe.judge_publish(publish(0, (7, 1, 1, 2), part))) == "STAGE_EXPIRED"
    assert code(scribe.judge_publish(publish(1, (7, 1, 1, 2)))) == "STAGE_EXPIRED"


def test_what_was_dropped_cannot_be_published() -> None:
    scribe = StagingScribe()
    entry = scribe.stage(label())
    scribe.operate(DropStaged(DropReason.EXPIRED, (entry.index,)))
    assert code(scribe.judge_publish(publish(0, (0, 1, 1, 1)))) == "STAGE_EXPIRED"


@pytest.mark.parametrize("part", [(0, 1, 1, 2), (0, 1, 2, 5)], ids=["chunks", "records"])
def test_a_part_that_is_not_what_was_staged_is_refused(part: tuple[int, int, int, int]) -> None:
    scribe = StagingScribe()
    scribe.stage(label(), 2)
    scribe.stage(label(number=1), 2)
    assert code(scribe.judge_publish(publish(0, part))) == "INVALID_ARGUMENT"


def test_parts_of_two_runs_are_refused() -> None:
    scribe = StagingScribe()
    scribe.stage(label(run=1))
    scribe.stage(label(partition=1, run=2))
    asked = publish(0, (0, 1, 1, 1), (1, 1, 1, 1))
    assert code(scribe.judge_publish(asked)) == "INVALID_ARGUMENT"


def test_the_same_batch_again_gets_the_first_receipt() -> None:
    scribe = published()
    index = scribe.entries[-1].index
    known = Run(0, 2, 4, index, scribe.term)
    assert scribe.judge_publish(publish(5, (0, 1, 1, 2), of=7)) == known
    # Whoever else wrote it, and wherever.
    assert scribe.judge_publish(publish(5, (3, 9, 1, 1), (4, 9, 1, 1), of=7)) == known


def test_an_empty_batch_is_known_again_too() -> None:
    scribe = StagingScribe()
    entry = scribe.publish(publish(0))
    assert scribe.judge_publish(publish(0)) == Run(0, 0, 0, entry.index, entry.term)
    assert code(scribe.judge_publish(publish(0, of=1))) == "REPLAY_MISMATCH"


def test_a_replay_that_differs_is_told() -> None:
    scribe = published()
    assert code(scribe.judge_publish(publish(5, (0, 1, 1, 2), of=8))) == "REPLAY_MISMATCH"
    assert code(scribe.judge_publish(publish(5, (0, 1, 1, 3), of=7))) == "REPLAY_MISMATCH"


def test_a_batch_before_the_last_one_is_a_duplicate() -> None:
    scribe = published()
    assert code(scribe.judge_publish(publish(4, (0, 1, 1, 2), of=7))) == "DUPLICATE"


def test_apps_do_not_know_each_other() -> None:
    scribe = published()
    assert scribe.judge_publish(publish(5, app="other")) is None
    assert scribe.judge_stage(label(0, app="other")) is None


def test_a_publish_shows_the_fence_unless_it_is_known() -> None:
    scribe = published()
    scribe.operate(SetFence("writer", None))
    assert code(scribe.judge_publish(publish(6))) == "FENCED"
    assert code(scribe.judge_publish(publish(6, fence="other"))) == "FENCED"
    assert scribe.judge_publish(publish(6, fence="writer")) is None
    assert isinstance(scribe.judge_publish(publish(5, (0, 1, 1, 2), of=7)), Run)
    assert scribe.judge_stage(label(6)) is None


def test_whoever_publishes_first_wins() -> None:
    scribe = StagingScribe()
    scribe.stage(label(run=1, attempt=1), 2)
    scribe.stage(label(run=2, attempt=2), 2)
    scribe.publish(publish(0, (0, 1, 1, 2)))
    verdict = scribe.judge_publish(publish(0, (0, 2, 1, 2)))
    assert verdict == Run(0, 2, 0, scribe.entries[-1].index, scribe.term)
    assert scribe.state.staging.attempts.get(APP, 0, 0, uuid(2)) is None
