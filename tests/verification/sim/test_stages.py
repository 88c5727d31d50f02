"""The simulator's own account of staging: it notices every broken rule, and explains exactly the
answers that were right."""

from __future__ import annotations

import pytest

from quorate.commands import Abort, ChunkLabel, ChunkStaged, Part, Publish, Receipt
from quorate.config import Limits, Timing
from quorate.entry import make_entry
from quorate.entry_body import Chunk, Publication, encode_publication, encode_stage, pack_chunks
from quorate.state.operations import DropReason, DropStaged, ForgetApps, encode_operation
from quorate.state.succession import RUNS_KEPT
from quorate.types import ORIGIN, EntryKind, Index, Position, Term
from verification.sim.stages import Stages
from verification.sim.violation import Violation

SECOND_US = 1_000_000
TIMING = Timing(staged_expiry_ms=10_000, staged_idle_ms=5000, app_expiry_ms=20_000)
LIMITS = Limits()
APP = "q"


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def label(batch_id: int = 0, attempt: int = 1, number: int = 0, *, run: int = 1) -> ChunkLabel:
    return ChunkLabel(APP, uuid(run), batch_id, 0, uuid(attempt), number)


def publish(
    batch_id: int, attempt: int = 1, chunks: int = 1, *, of: int = 0, fence: str | None = None
) -> Publish:
    parts = (Part(0, uuid(attempt), chunks, 2 * chunks),)
    return Publish(APP, batch_id, parts, bytes([of]) * 32, fence)


class Scribe:
    """Makes entries one after the other, right or wrong, and shows them to the account."""

    def __init__(self) -> None:
        self.stages = Stages(TIMING)
        self.time = 0
        self.fence: str | None = None
        self.term = 1
        self._last: Position = ORIGIN
        self._end = 0
        # By label: what the log has.
        self.chunks: dict[ChunkLabel, Chunk] = {}

    @property
    def index(self) -> int:
        return self._last.index

    def stage(
        self, named: ChunkLabel, *, asked: bool = True, count: int = 0, records: int = 2
    ) -> None:
        if asked:
            self.stages.ask_stage(named, b"batch", 2)
        body, rows = encode_stage(named, b"batch", records)
        entry = self._apply(EntryKind.STAGE, body, count, 1, rows)
        self.chunks[named] = Chunk(Index(self.index), records, entry)

    def publish(
        self, asked: Publish, *labels: ChunkLabel, known: bool = True, count: int | None = None
    ) -> None:
        if known:
            self.stages.ask_publish(asked)
        chunks = [self.chunks[one] for one in labels]
        body = encode_publication(
            Publication(APP, asked.batch_id, asked.digest), pack_chunks(chunks)
        )
        count = asked.records if count is None else count
        self._apply(EntryKind.PUBLISH, body, count, 0, len(chunks))

    def drop(self, reason: DropReason, *firsts: int) -> None:
        self._apply(*encode_operation(DropStaged(reason, firsts)))

    def forget(self, *publishes: int) -> None:
        self._apply(*encode_operation(ForgetApps(publishes)))

    def noop(self) -> None:
        self._apply(EntryKind.NOOP, b"")

    def _apply(
        self, kind: EntryKind, body: bytes, count: int = 0, runs: int = 0, stamps: int = 0
    ) -> int:
        entry = make_entry(
            self._last, Term(self.term), kind, body, base_offset=self._end, count=count,
            append_time=self.time, runs=runs, stamps=stamps,
        )  # fmt: skip
        self._last = entry.position
        self._end += self.stages.apply(entry, self.fence)
        return entry.size


def published() -> Scribe:
    scribe = Scribe()
    scribe.stage(label(3))
    scribe.publish(publish(3), label(3))
    return scribe


# -- entries -------------------------------------------------------------------------------------


def test_what_was_asked_for_passes() -> None:
    scribe = published()
    scribe.stage(label(4))
    scribe.stage(label(4, number=1))
    scribe.publish(publish(4, chunks=2), label(4), label(4, number=1))


@pytest.mark.parametrize(
    ("named", "asked", "count", "records", "rule"),
    [
        (label(4), False, 0, 2, "C2"),
        (label(4), True, 0, 3, "C2"),
        (label(4), True, 2, 2, "stage"),
        (label(4, number=1), True, 0, 2, "stage"),
        (label(3), True, 0, 2, "stage"),
        (label(2), True, 0, 2, "stage"),
    ],
    ids=["unasked", "other records", "offsets", "gap", "published", "earlier"],
)
def test_a_wrong_chunk_is_noticed(
    named: ChunkLabel, asked: bool, count: int, records: int, rule: str
) -> None:
    scribe = published()
    with pytest.raises(Violation, match=rule):
        scribe.stage(named, asked=asked, count=count, records=records)


def test_a_chunk_twice_is_noticed() -> None:
    scribe = Scribe()
    scribe.stage(label())
    with pytest.raises(Violation, match="after 1 chunks"):
        scribe.stage(label())


def test_a_publish_that_nobody_asked_for_is_noticed() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1))
    scribe.stage(label(0, 1, 1))
    scribe.stage(label(0, 2))
    whole = (label(0, 1), label(0, 1, 1))
    scribe.stages.ask_publish(publish(0, chunks=2))
    for asked, labels, count in (
        (publish(0, chunks=2), (label(0, 1),), 2),
        (publish(0, chunks=2), (label(0, 2),), 2),
        (publish(0, chunks=2), whole[::-1], 4),
        (publish(0, chunks=2), whole, 5),
        (publish(0, chunks=2, of=9), whole, 4),
        (publish(1, chunks=2), whole, 4),
    ):
        with pytest.raises(Violation, match="no client asked for it"):
            scribe.publish(asked, *labels, known=False, count=count)


def test_a_publish_past_the_fence_is_noticed() -> None:
    scribe = Scribe()
    scribe.stage(label())
    scribe.fence = "set"
    with pytest.raises(Violation, match="no client asked for it"):
        scribe.publish(publish(0), label())


@pytest.mark.parametrize("batch_id", [2, 3])
def test_a_second_publish_is_noticed(batch_id: int) -> None:
    scribe = published()
    with pytest.raises(Violation, match="C3"):
        scribe.publish(publish(batch_id), label(3))


def test_what_was_dropped_cannot_be_published() -> None:
    scribe = Scribe()
    scribe.stage(label())
    scribe.stages.ask_abort(Abort(APP, 0))
    scribe.drop(DropReason.ABORTED, 1)
    with pytest.raises(Violation, match="no client asked for it"):
        scribe.publish(publish(0), label())


def test_a_drop_needs_its_reason() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1))
    scribe.stage(label(0, 2))
    for reason in DropReason:
        with pytest.raises(Violation, match="stage"):
            scribe.drop(reason, 1)
    with pytest.raises(Violation, match="not all are there"):
        scribe.drop(DropReason.ABORTED, 99)
    scribe.stages.ask_abort(Abort(APP, 0, uuid(1)))
    scribe.drop(DropReason.ABORTED, 1)
    scribe.time = 10 * SECOND_US
    scribe.drop(DropReason.EXPIRED, 2)


def test_what_makes_room_for_others_was_idle() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1))
    scribe.time = 4 * SECOND_US
    scribe.stage(label(0, 2))
    scribe.time = 5 * SECOND_US
    scribe.drop(DropReason.IDLE, 1)
    with pytest.raises(Violation, match="stage"):
        scribe.drop(DropReason.IDLE, 2)


def test_only_older_runs_make_room() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1, run=1))
    scribe.stage(label(0, 2, run=2))
    scribe.stage(label(0, 3, run=1))
    for firsts in ((2,), (1,), (2, 3)):
        with pytest.raises(Violation, match="drops"):
            scribe.drop(DropReason.REPLACED, *firsts)
    scribe.drop(DropReason.REPLACED, 1, 3)
    with pytest.raises(Violation, match="no newer run asked"):
        scribe.drop(DropReason.REPLACED, 2)
    scribe.stages.ask_stage(label(0, 4, run=3), b"batch", 2)
    scribe.drop(DropReason.REPLACED, 2)


def replaced() -> Scribe:
    """Run 2 took the place of run 1."""
    scribe = Scribe()
    scribe.stage(label(0, 1, run=1))
    scribe.stages.ask_stage(label(0, 2, run=2), b"batch", 2)
    scribe.drop(DropReason.REPLACED, 1)
    scribe.stage(label(0, 2, run=2))
    return scribe


def test_a_run_that_was_replaced_makes_no_room_for_itself() -> None:
    scribe = replaced()
    scribe.stages.ask_stage(label(0, 3, run=1), b"batch", 2)
    with pytest.raises(Violation, match="no newer run asked"):
        scribe.drop(DropReason.REPLACED, 3)


def test_a_run_that_was_replaced_takes_no_room_that_was_made_for_another() -> None:
    scribe = replaced()
    scribe.stages.ask_stage(label(0, 4, run=3), b"batch", 2)
    scribe.drop(DropReason.REPLACED, 3)
    with pytest.raises(Violation, match="took the place"):
        scribe.stage(label(0, 3, run=1))


@pytest.mark.parametrize("how", ["a longer one was refused", "another leader", "later"])
def test_a_run_that_was_replaced_may_stage_again(how: str) -> None:
    scribe = replaced()
    batch = b"longer..." if how == "a longer one was refused" else b"batch"
    scribe.stages.ask_stage(label(0, 4, run=3), batch, 2)
    scribe.drop(DropReason.REPLACED, 3)
    if how == "another leader":
        scribe.term = 2
    elif how == "later":
        scribe.noop()
    scribe.stage(label(0, 3, run=1))


def test_a_run_is_known_until_its_app_is_forgotten() -> None:
    scribe = replaced()
    scribe.publish(publish(0, 2), label(0, 2, run=2))
    scribe.stage(label(1, 5, run=2))
    tight, explains = Limits(staged_chunks=1), scribe.stages.explains_stage
    late = label(1, 6, run=1)
    assert explains("STAGE_FULL", late, 5, tight, scribe.index)
    scribe.stages.ask_abort(Abort(APP, 1))
    scribe.drop(DropReason.ABORTED, scribe.index)
    scribe.time = 20 * SECOND_US
    scribe.forget(4)
    scribe.stage(label(1, 7, run=2))
    assert not explains("STAGE_FULL", late, 5, tight, scribe.index)


def test_an_app_that_has_nothing_left_has_no_runs() -> None:
    scribe = replaced()
    scribe.stages.ask_abort(Abort(APP, 0))
    scribe.drop(DropReason.ABORTED, 3)
    scribe.stage(label(0, 5, run=2))
    tight = Limits(staged_chunks=1)
    assert not scribe.stages.explains_stage("STAGE_FULL", label(0, 6, run=1), 5, tight, 5)


def test_so_many_runs_without_chunks_are_known() -> None:
    scribe = published()
    tight, explains = Limits(staged_chunks=1), scribe.stages.explains_stage
    scribe.stages.ask_abort(Abort(APP, 4))
    for run in range(2, RUNS_KEPT + 2):
        scribe.stage(label(4, run, run=run))
        late = label(4, 99, run=1)
        assert explains("STAGE_FULL", late, 5, tight, scribe.index)
        scribe.drop(DropReason.ABORTED, scribe.index)
    scribe.stage(label(4, 98, run=98))
    assert not explains("STAGE_FULL", label(4, 99, run=1), 5, tight, scribe.index)
    assert explains("STAGE_FULL", label(4, 99, run=2), 5, tight, scribe.index)


def test_an_app_is_forgotten_when_it_was_idle() -> None:
    scribe = published()
    with pytest.raises(Violation, match="forgets"):
        scribe.forget(2)
    scribe.time = 20 * SECOND_US
    scribe.stage(label(4))
    with pytest.raises(Violation, match="forgets"):
        scribe.forget(2)
    scribe.stages.ask_abort(Abort(APP, 4))
    scribe.drop(DropReason.ABORTED, scribe.chunks[label(4)].index)
    scribe.forget(2)


# -- answers -------------------------------------------------------------------------------------


def test_a_staged_chunk_is_where_the_answer_says() -> None:
    scribe = published()
    scribe.stage(label(4))
    explains = scribe.stages.explains_staged
    assert explains(label(4), ChunkStaged(3, published=False))
    assert not explains(label(4), ChunkStaged(2, published=False))
    assert not explains(label(4), ChunkStaged(9, published=False))
    assert not explains(label(4, number=1), ChunkStaged(3, published=False))
    assert explains(label(3, 8), ChunkStaged(2, published=True))
    assert not explains(label(4), ChunkStaged(2, published=True))
    assert not explains(label(3), ChunkStaged(1, published=True))


def test_a_receipt_is_that_of_the_publish() -> None:
    explains = published().stages.explains_receipt
    receipt = Receipt(0, 2, Index(2), Term(1), 2)
    assert explains(publish(3), receipt)
    assert not explains(publish(3), receipt._replace(offset=1))
    assert not explains(publish(3), receipt._replace(index=Index(1)))
    assert not explains(publish(3), receipt._replace(index=Index(9)))
    assert not explains(publish(3, of=1), receipt)
    assert not explains(publish(2), receipt)
    assert not explains(publish(3, chunks=2), receipt)


def test_a_refusal_was_right_at_some_time() -> None:
    scribe = published()

    def explains(code: str, asked: Publish, since: int = 0) -> bool:
        fences: list[str | None] = [None] * (scribe.index + 1)
        return scribe.stages.explains_publish(code, asked, LIMITS, since, fences)

    assert explains("DUPLICATE", publish(2))
    assert not explains("DUPLICATE", publish(3))
    assert explains("REPLAY_MISMATCH", publish(3, of=1))
    assert explains("REPLAY_MISMATCH", publish(3, chunks=2))
    assert not explains("REPLAY_MISMATCH", publish(3))
    assert explains("STAGE_EXPIRED", publish(4))
    assert explains("STAGE_EXPIRED", publish(3))
    assert not explains("STAGE_EXPIRED", publish(3), since=1)
    assert explains("FENCED", publish(4, fence="f"))
    assert not explains("FENCED", publish(4))
    assert not explains("INVALID_ARGUMENT", publish(4))


def test_full_is_full_once_older_runs_are_gone() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1, run=1))
    scribe.stage(label(0, 2, run=2))
    tight = Limits(staged_chunks=1)
    explains = scribe.stages.explains_stage
    assert explains("STAGE_FULL", label(0, 1, 1, run=1), 5, tight, 2)
    assert not explains("STAGE_FULL", label(0, 2, 1, run=2), 5, tight, 2)
    assert not explains("STAGE_FULL", label(0, 1, 1, run=1), 5, LIMITS, 0)
    assert not explains("FENCED", label(0, 1, 1, run=1), 5, tight, 2)


def test_an_abort_leaves_nothing() -> None:
    scribe = Scribe()
    scribe.stage(label(0, 1))
    explains = scribe.stages.explains_aborted
    assert explains(Abort(APP, 0), 0)
    assert not explains(Abort(APP, 0), 1)
    assert not explains(Abort(APP, 0, uuid(1)), 1)
    assert explains(Abort(APP, 0, uuid(2)), 1)
    assert not explains(Abort(APP, 0), 7)
