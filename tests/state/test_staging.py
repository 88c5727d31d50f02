"""What chunks and publishes do to a state, and what halts a replica rather than be applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staging_rig import APP, StagingScribe, chunks_of, digest, label, publish, uuid
from state_rig import SECOND, Sent, cut, flipped, replayed

from core_rig import FUZZ
from quorate.commands import CHUNKS_MAX, ChunkLabel, Part, Publish
from quorate.entry_body import Chunk, decode_label, unpack_batches, unpack_chunks
from quorate.errors import InvalidArgument, InvariantBroken, StageExpired, TooLarge
from quorate.state.attempts import BLOCK, App
from quorate.state.operations import DropReason, DropStaged, ForgetApps
from quorate.state.runs import Run
from quorate.state.state import State
from quorate.types import EntryKind, Index

if TYPE_CHECKING:
    from quorate.entry import Entry


def drop(*firsts: int) -> DropStaged:
    return DropStaged(DropReason.ABORTED, firsts)


# -- staging -----------------------------------------------------------------------------------


def test_what_is_staged_takes_no_offset_and_shows_in_no_count() -> None:
    scribe = StagingScribe()
    entry = scribe.stage(label(), 5)
    assert (scribe.state.end, entry.count) == (0, 0)
    assert (scribe.state.staging.attempts.chunks, scribe.state.staging.attempts.bytes) == (
        1,
        entry.size,
    )


def test_a_stage_entry_carries_its_label_and_its_batch_as_it_came() -> None:
    scribe = StagingScribe()
    name = ChunkLabel("ä" * 100, uuid(7), 2**40, 2**31, uuid(9), 0)
    entry = scribe.apply(scribe.staged(name, 5, b"as it is"))
    assert decode_label(entry) == name
    assert unpack_batches(entry) == [(b"as it is", 5)]


def test_chunks_of_an_attempt_are_kept_in_their_order() -> None:
    scribe = StagingScribe()
    entries = [scribe.stage(label(number=number), number + 1) for number in range(3)]
    attempt = scribe.state.staging.attempts.get(APP, 0, 0, uuid(1))
    assert attempt is not None
    assert [chunk.index for chunk in chunks_of(attempt)] == [entry.index for entry in entries]
    assert (attempt.records, attempt.first) == (6, entries[0].index)


def test_attempts_at_one_partition_have_nothing_in_common() -> None:
    scribe = StagingScribe()
    scribe.stage(label(attempt=1))
    scribe.stage(label(attempt=2))
    assert scribe.judge_stage(label(attempt=1, number=1)) is None
    assert scribe.judge_stage(label(attempt=2, number=1)) is None
    assert len([*scribe.state.staging.attempts]) == 2


# -- publishing --------------------------------------------------------------------------------


def test_a_publish_gives_consecutive_offsets_to_what_its_parts_staged_in_its_order() -> None:
    scribe = StagingScribe()
    second = scribe.stage(label(partition=1), 3)
    first = scribe.stage(label(partition=0), 2)
    scribe.send(Sent(4))
    entry = scribe.publish(publish(0, (0, 1, 1, 2), (1, 1, 1, 3)))
    assert (entry.base_offset, entry.count, scribe.state.end) == (4, 5, 9)
    chunks, _ = unpack_chunks(entry)
    assert chunks == [Chunk(first.index, 2, first.size), Chunk(second.index, 3, second.size)]


def test_an_app_is_remembered_with_its_last_batch_and_receipt() -> None:
    scribe = StagingScribe(time=5 * SECOND, term=3)
    scribe.send(Sent(4))
    scribe.stage(label(7), 2)
    entry = scribe.publish(publish(7, (0, 1, 1, 2), of=11))
    assert scribe.state.staging.app(APP) == App(
        APP, 7, digest(11), 4, 2, entry.index, entry.term, 5 * SECOND
    )


def test_the_last_publish_of_an_app_is_the_one_that_counts() -> None:
    scribe = StagingScribe()
    for batch_id in (3, 4, 9):
        scribe.stage(label(batch_id), 2)
        entry = scribe.publish(publish(batch_id, (0, 1, 1, 2), of=batch_id))
        app = scribe.state.staging.app(APP)
        assert app is not None
        assert app[1:6] == (batch_id, digest(batch_id), entry.base_offset, 2, entry.index)


def test_a_publish_drops_that_apps_chunks_up_to_its_batch_and_no_others() -> None:
    scribe = StagingScribe()
    for batch_id in (1, 2, 3):
        scribe.stage(label(batch_id))
    scribe.stage(label(2, attempt=8))
    other = scribe.stage(label(1, app="other"))
    scribe.publish(publish(2, (0, 1, 1, 1)))
    left = [(one.app, one.batch_id) for one in scribe.state.staging.attempts]
    assert left == [(APP, 3), ("other", 1)]
    assert scribe.state.staging.attempts.bytes == sum(
        chunk.size for one in scribe.state.staging.attempts for chunk in chunks_of(one)
    )
    assert other.index in {one.first for one in scribe.state.staging.attempts}


def test_an_empty_batch_can_be_published() -> None:
    scribe = StagingScribe()
    entry = scribe.publish(publish(0))
    assert (entry.count, scribe.state.end) == (0, 0)
    app = scribe.state.staging.app(APP)
    assert app is not None
    assert (app.batch_id, app.count) == (0, 0)


# -- dropping ----------------------------------------------------------------------------------


def test_dropped_attempts_are_gone_and_give_their_bytes_back() -> None:
    scribe = StagingScribe()
    first, second = scribe.stage(label(attempt=1)), scribe.stage(label(attempt=2))
    scribe.operate(drop(first.index))
    assert [one.first for one in scribe.state.staging.attempts] == [second.index]
    assert (scribe.state.staging.attempts.bytes, scribe.state.staging.attempts.chunks) == (
        second.size,
        1,
    )


def test_an_attempt_may_have_more_chunks_than_a_block() -> None:
    scribe = StagingScribe()
    total = 2 * BLOCK + 1
    entries = [scribe.stage(label(number=number), 2) for number in range(total)]
    attempt = scribe.state.staging.attempts.get(APP, 0, 0, uuid(1))
    assert attempt is not None
    assert (attempt.chunk_count, attempt.records) == (total, 2 * total)
    assert [chunk.index for chunk in chunks_of(attempt)] == [entry.index for entry in entries]
    for number in (0, BLOCK - 1, BLOCK, total - 1):
        assert attempt.chunk(number).index == entries[number].index
    assert State.decode(scribe.state.sections()) == scribe.state
    scribe.publish(publish(0, (0, 1, total, 2 * total)))
    assert (scribe.state.staging.attempts.bytes, scribe.state.staging.attempts.chunks) == (0, 0)


def test_a_forgotten_app_could_publish_its_batch_again() -> None:
    scribe = StagingScribe()
    entry = scribe.publish(publish(0))
    scribe.operate(ForgetApps((entry.index,)))
    assert scribe.state.staging.app(APP) is None
    assert scribe.state == StagingScribe().state


def test_attempts_expire_by_their_newest_chunk() -> None:
    scribe = StagingScribe(time=0)
    first = scribe.stage(label(attempt=1))
    scribe.stage(label(attempt=2))
    scribe.time = 10 * SECOND
    scribe.stage(label(attempt=2, number=1))
    assert scribe.state.staging.attempts.expired(19 * SECOND, 15 * SECOND) == (first.index,)
    assert scribe.state.staging.attempts.expired(14 * SECOND, 15 * SECOND) == ()


def test_an_app_is_idle_since_its_last_publish_unless_it_stages() -> None:
    scribe = StagingScribe(time=0)
    entry = scribe.publish(publish(0))
    staging = scribe.state.staging
    assert staging.idle_apps(9 * SECOND, 10 * SECOND, SECOND) == ()
    assert staging.idle_apps(10 * SECOND, 10 * SECOND, SECOND) == (entry.index,)
    scribe.stage(label(1))
    assert staging.idle_apps(99 * SECOND, 10 * SECOND, SECOND) == ()


def test_who_publishes_once_and_for_all_is_idle_soon() -> None:
    scribe = StagingScribe(time=0)
    scribe.publish(publish(0))
    once = scribe.publish(publish(0, app="job", once=True))
    staging = scribe.state.staging
    assert staging.idle_apps(SECOND - 1, 10 * SECOND, SECOND) == ()
    assert staging.idle_apps(SECOND, 10 * SECOND, SECOND) == (once.index,)
    again = State.decode(scribe.state.sections())
    assert again == scribe.state
    assert again.staging.idle_apps(SECOND, 10 * SECOND, SECOND) == (once.index,)


def test_a_publish_of_a_forgotten_job_finds_nothing_to_publish() -> None:
    scribe = StagingScribe()
    scribe.stage(label(app="job"))
    whole = publish(0, (0, 1, 1, 1), app="job", once=True)
    entry = scribe.publish(whole)
    assert scribe.judge_publish(whole) == Run(0, 1, 0, entry.index, entry.term)
    scribe.operate(ForgetApps((entry.index,)))
    assert isinstance(scribe.judge_publish(whole), StageExpired)


def test_older_runs_are_those_that_began_to_stage_earlier() -> None:
    scribe = StagingScribe()
    one = scribe.stage(label(attempt=1, run=1))
    two = scribe.stage(label(attempt=2, run=2))
    late = scribe.stage(label(attempt=3, run=1))
    scribe.stage(label(attempt=4, run=5, app="other"))
    older = scribe.state.staging.older_runs
    assert older(APP, uuid(1)) == ()
    assert older(APP, uuid(2)) == (one.index, late.index)
    assert older(APP, uuid(9)) == (one.index, two.index, late.index)


def test_attempts_of_a_batch_are_found_by_their_id_or_all() -> None:
    scribe = StagingScribe()
    entries = [scribe.stage(label(attempt=attempt)) for attempt in (1, 2)]
    scribe.stage(label(1))
    of_batch = scribe.state.staging.attempts.of_batch
    assert of_batch(APP, 0, None) == tuple(entry.index for entry in entries)
    assert of_batch(APP, 0, uuid(2)) == (entries[1].index,)
    assert of_batch(APP, 5, None) == of_batch("other", 0, None) == ()


# -- what halts --------------------------------------------------------------------------------


def halts(scribe: StagingScribe, entry: Entry, message: str) -> None:
    """``entry`` halts the replica, and leaves the state as it was."""
    before, known = scribe.state.copy(), scribe.state.digest()
    with pytest.raises(InvariantBroken, match=message):
        scribe.state.apply(entry)
    assert scribe.state == before
    assert scribe.state.digest() == known


def test_a_chunk_out_of_order_halts() -> None:
    scribe = StagingScribe()
    halts(scribe, scribe.staged(label(number=1)), "stages chunk 1 of 1 records where chunk 0")
    scribe.stage(label())
    halts(scribe, scribe.staged(label()), "stages chunk 0 of 1 records where chunk 1 follows")
    halts(scribe, scribe.staged(label(number=2)), "where chunk 1 follows")
    halts(scribe, scribe.staged(label(number=1, run=2)), "where chunk 1 follows")
    halts(scribe, scribe.staged(label(number=1), 0), "chunk 1 of 0 records")


def test_a_chunk_for_a_published_batch_halts() -> None:
    scribe = StagingScribe()
    scribe.publish(publish(3))
    for batch_id in (2, 3):
        halts(scribe, scribe.staged(label(batch_id)), "for a batch of 'query' that is published")


def test_a_stage_entry_with_offsets_or_several_batches_halts() -> None:
    scribe = StagingScribe()
    body = scribe.staged(label()).body
    rows = scribe.staged(label()).stamps
    halts(scribe, scribe.make(EntryKind.STAGE, body, 1, 1, rows), "more or less than one batch")
    halts(scribe, scribe.make(EntryKind.STAGE, body, 0, 1, rows - 1), "cannot be applied")
    halts(scribe, scribe.make(EntryKind.STAGE, body, 0, 0, 0), "cannot be applied")


def test_a_publish_of_what_is_not_staged_halts() -> None:
    scribe = StagingScribe()
    staged = scribe.stage(label(number=0), 2)
    scribe.stage(label(number=1), 3)
    asked = publish(0, (0, 1, 2, 5))
    whole = unpack_chunks(scribe.published(asked))[0]
    strange = Chunk(Index(99), 5, 1)
    for chunks, count in (
        ([strange], 5),
        (whole[:1], 2),
        (whole[::-1], 5),
        ([whole[0]._replace(records=4), whole[1]], 7),
        ([*whole, *whole], 10),
    ):
        entry = scribe.published(asked, chunks, count)
        halts(scribe, entry, "which is not what is staged|two attempts at a partition")
    halts(scribe, scribe.published(asked, whole, 6), "gives offsets to 6 records")
    other = publish(0, (0, 1, 2, 5), app="other")
    halts(scribe, scribe.published(other, whole), "which is not what is staged")
    later = publish(1, (0, 1, 2, 5))
    halts(scribe, scribe.published(later, whole), "which is not what is staged")
    assert staged.index == whole[0].index


def test_two_attempts_at_a_partition_or_two_runs_halt() -> None:
    scribe = StagingScribe()
    scribe.stage(label(attempt=1))
    scribe.stage(label(attempt=2))
    scribe.stage(label(partition=1, attempt=3, run=2))
    chunks = [chunk for one in scribe.state.staging.attempts for chunk in chunks_of(one)]
    asked = publish(0, (0, 1, 1, 1))
    halts(scribe, scribe.published(asked, chunks[:2], 2), "two attempts at a partition")
    halts(scribe, scribe.published(asked, chunks[1:], 2), "those of two runs")


def test_a_batch_is_published_once() -> None:
    scribe = StagingScribe()
    scribe.publish(publish(3))
    for batch_id in (2, 3):
        entry = scribe.published(publish(batch_id))
        halts(scribe, entry, f"publishes batch {batch_id} of 'query' again")


def test_dropping_what_is_not_there_halts() -> None:
    scribe = StagingScribe()
    first = scribe.stage(label()).index
    halts(scribe, scribe.operation(drop(first, first + 1)), "drops an attempt that is not there")
    halts(scribe, scribe.operation(ForgetApps((first,))), "forgets an app that is not there")


def test_a_publish_entry_that_nobody_writes_halts() -> None:
    scribe = StagingScribe()
    body = scribe.published(publish(0)).body
    for spoiled in (b"", body[:-8], body + bytes(8), b"\2" + body[1:], body[:4] + b"\1" + body[5:]):
        entry = scribe.make(EntryKind.PUBLISH, spoiled)
        halts(scribe, entry, "cannot be applied by this release")
    halts(scribe, scribe.make(EntryKind.PUBLISH, body, 0, 0, 9), "9 chunks do not fit")


@FUZZ
@given(st.data())
def test_a_spoiled_body_halts_or_means_something_else(draw: st.DataObject) -> None:
    """Whatever the bytes are: applied whole, or refused by name with nothing changed."""
    scribe = StagingScribe()
    scribe.stage(label(), 2)
    good = draw.draw(
        st.sampled_from(
            [scribe.staged(label(number=1)), scribe.published(publish(0, (0, 1, 1, 2)))]
        )
    )
    body = bytearray(good.body)
    for _ in range(draw.draw(st.integers(1, 3))):
        body[draw.draw(st.integers(0, len(body) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(body)))
    spoiled = bytes(body[:cut]) if draw.draw(st.booleans()) else bytes(body)
    entry = scribe.make(good.kind, spoiled, good.count, good.runs, good.stamps)
    before, known = scribe.state.copy(), scribe.state.digest()
    try:
        scribe.state.apply(entry)
    except InvariantBroken:
        assert scribe.state == before
        assert scribe.state.digest() == known
    else:
        assert State.decode(scribe.state.sections()) == scribe.state


# -- what is refused before it reaches a log -----------------------------------------------------


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: label(app=""), "app has 0 bytes"),
        (lambda: label(-1), "batch id is -1"),
        (lambda: label(partition=2**32), "partition is 4294967296"),
        (lambda: ChunkLabel(APP, b"", 0, 0, uuid(1), 0), "run has 0 bytes, not 16"),
        (lambda: ChunkLabel(APP, uuid(1), 0, 0, b"short", 0), "attempt has 5 bytes, not 16"),
        (lambda: Publish(APP, 0, (), b""), "digest has 0 bytes, not 32"),
        (lambda: publish(0, (0, 1, 0, 1)), "leave out a partition without them"),
        (lambda: publish(0, (0, 1, 1, 0)), "leave out a partition without them"),
        (lambda: publish(0, (0, 1, 1, 1), (0, 2, 1, 1)), "the publish names a partition twice"),
        (lambda: publish(0, fence=""), "fence has 0 bytes"),
    ],
)
def test_what_nobody_could_ask_for_is_refused(made: object, message: str) -> None:
    assert callable(made)
    with pytest.raises(InvalidArgument, match=message):
        made()


def test_a_publish_names_the_limit_that_it_is_above() -> None:
    with pytest.raises(TooLarge, match=f"{CHUNKS_MAX + 1} chunks, limit {CHUNKS_MAX}"):
        publish(0, (0, 1, CHUNKS_MAX + 1, CHUNKS_MAX + 1))
    part = Part(0, uuid(1), 1, 2**32)
    with pytest.raises(TooLarge, match="4294967296 records, limit 4294967295"):
        Publish(APP, 0, (part,), digest())


# -- checkpoints and digests ---------------------------------------------------------------------


def busy() -> StagingScribe:
    """A log with apps, attempts and chunks."""
    scribe = StagingScribe(time=SECOND)
    scribe.stage(label(0), 2)
    scribe.publish(publish(0, (0, 1, 1, 2), of=3))
    scribe.publish(publish(9, app="ä"))
    for number in range(3):
        scribe.stage(label(1, number=number), number + 1)
        scribe.time += SECOND
    scribe.stage(label(1, 1, 7, run=2))
    return scribe


def test_a_checkpoint_holds_all_that_is_staged_and_published() -> None:
    state = busy().state
    again = State.decode(state.sections())
    assert again == state
    assert again.digest() == state.digest()
    assert (again.staging.attempts.bytes, again.staging.attempts.chunks) == (
        state.staging.attempts.bytes,
        4,
    )
    assert again.staging.older_runs(APP, uuid(2)) == state.staging.older_runs(APP, uuid(2))


def test_replaying_gives_the_same_state_and_digest() -> None:
    scribe = busy()
    again = replayed(scribe.entries)
    assert again == scribe.state
    assert again.digest() == scribe.state.digest()


def test_the_way_there_leaves_no_trace_in_the_digest() -> None:
    scribe = StagingScribe()
    for number in range(3):
        scribe.stage(label(number=number))
    scribe.operate(drop(1))
    assert scribe.state.staging.digest() == 0
    assert scribe.state == State()


def test_a_copy_goes_its_own_way() -> None:
    scribe = busy()
    kept, known = scribe.state.copy(), scribe.state.digest()
    scribe.publish(publish(1, (1, 7, 1, 1)))
    assert kept.digest() == known != scribe.state.digest()
    assert kept == State.decode(kept.sections())


def test_every_flipped_bit_of_a_checkpoint_with_staging_is_refused() -> None:
    for spoiled in flipped([*busy().state.sections()]):
        with pytest.raises(InvalidArgument):
            State.decode(spoiled)


def test_a_checkpoint_with_staging_that_is_cut_is_refused() -> None:
    for spoiled in cut([*busy().state.sections()]):
        with pytest.raises(InvalidArgument):
            State.decode(spoiled)
