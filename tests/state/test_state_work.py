"""What the state costs at its limits, counted and not timed: it follows what changes, not what is
remembered."""

from __future__ import annotations

import gc

import pytest
from staging_rig import APP, StagingScribe, label, publish, uuid
from state_rig import SECOND, Scribe, Sent, instance

from quorate.entry_body import Chunk
from quorate.state.attempts import Attempt, attempt_of
from quorate.state.operations import (
    DROPPED_AT_ONCE,
    FORGOTTEN_MAX,
    DropReason,
    DropStaged,
    ForgetApps,
)
from quorate.state.producers import UNHASHED_MAX, ProducerState
from quorate.state.runs import ROW_BYTES, Run, Runs, pack_run
from quorate.state.staging import Staging
from quorate.state.state import State
from quorate.types import Index, Term

WINDOW = 1024
MANY = 5000


def run(number: int) -> Run:
    """The one that ``number`` others stand before."""
    return Run(number + 1, 1, number, Index(number + 1), Term(1))


def full(window: int = WINDOW) -> Runs:
    return Runs.of(run(number) for number in range(window))


# -- runs ----------------------------------------------------------------------------------------


def test_runs_that_were_extended_are_what_they_were_before() -> None:
    versions = [Runs.of()]
    for number in range(200):
        versions.append(versions[-1].extended(pack_run(*run(number)), 7))
    for number, version in enumerate(versions):
        assert [*version] == [run(at) for at in range(max(0, number - 7), number)]
        assert len(version) == min(number, 7)


def test_two_versions_that_go_on_from_one_have_nothing_in_common() -> None:
    before = full(4)
    other = run(4)._replace(term=Term(2))
    one, two = before.extended(pack_run(*run(4)), 4), before.extended(pack_run(*other), 4)
    assert [*one] == [run(1), run(2), run(3), run(4)]
    assert [*two] == [run(1), run(2), run(3), other]
    assert [*one.extended(pack_run(*run(5)), 9)] == [*one, run(5)]
    assert [*two.extended(pack_run(*run(5)), 9)] == [*two, run(5)]
    assert before == full(4)


def test_a_run_more_copies_nothing_but_now_and_then() -> None:
    """A buffer is replaced when it holds as much that is forgotten as is kept."""
    runs = full()
    buffers = {id(runs._buffer): runs._buffer}
    for number in range(WINDOW, 9 * WINDOW):
        runs = runs.extended(pack_run(*run(number)), WINDOW)
        buffers[id(runs._buffer)] = runs._buffer
    assert len(buffers) <= 9
    assert max(map(len, buffers.values())) <= (2 * WINDOW + 2) * ROW_BYTES


@pytest.mark.parametrize("sequence", [1, 500, 1024])
def test_a_run_is_found_by_its_first_sequence(sequence: int) -> None:
    assert full().find(sequence) == run(sequence - 1)
    assert full().find(0) is None
    assert full().find(WINDOW + 1) is None
    assert Runs.of().find(1) is None


def test_a_place_beyond_the_runs_is_no_place() -> None:
    runs = full(3)
    assert (runs[0], runs[-1], runs[2], runs[-3]) == (run(0), run(2), run(2), run(0))
    for place in (3, -4):
        with pytest.raises(IndexError):
            runs[place]


# -- producers -----------------------------------------------------------------------------------


def crowded(producers: int) -> State:
    """Producers whose windows are full."""
    state = State()
    state.end = state.append_time = state.age = 10**9
    for epoch in range(1, producers + 1):
        named = f"p{epoch}", epoch, instance(1), WINDOW, full()
        state.producers.add(ProducerState(*named, WINDOW, SECOND, 10**9))
    state.digest()
    state.take_work()
    return state


def test_comparing_costs_what_changed_however_wide_the_windows_are() -> None:
    state = crowded(300)
    added = Run(WINDOW + 1, 1, WINDOW, Index(10**6), Term(1))
    for epoch in (3, 5, 8):
        state.producers.accept(epoch, added, state.age)
    assert state.take_work() == 3
    state.digest()
    assert state.take_work() == 3
    state.digest()
    assert state.take_work() == 0


def test_no_more_than_so_many_producers_are_hashed_at_once() -> None:
    state = crowded(2 * UNHASHED_MAX + 10)
    added = Run(WINDOW + 1, 1, WINDOW, Index(10**6), Term(1))
    for epoch in range(1, 2 * UNHASHED_MAX + 11):
        state.producers.accept(epoch, added, state.age)
        assert state.take_work() <= UNHASHED_MAX + 1
    state.digest()
    assert state.take_work() == 10


def test_a_copy_costs_no_look_at_any_producer_or_attempt() -> None:
    state = crowded(100)
    copied = state.copy()
    assert (state.work, copied.work) == (0, 0)
    assert copied.digest() == state.digest()


def test_many_batches_of_one_producer_in_one_entry_are_one_change() -> None:
    scribe = Scribe()
    epoch = scribe.open("p", window=WINDOW).epoch
    scribe.state.take_work()
    scribe.send(*(Sent(1, epoch, sequence) for sequence in range(1, 3 * WINDOW)))
    assert scribe.state.take_work() == 1
    assert scribe.producer("p").runs[0].sequence == 2 * WINDOW


# -- staging -------------------------------------------------------------------------------------


def staged(attempts: int = MANY, *, run: int = 1, app: str = APP) -> StagingScribe:
    """A log at its cap, but for the entries that led there."""
    scribe = StagingScribe()
    for number in range(1, attempts + 1):
        chunks = (Chunk(Index(number), 1, 100),)
        attempt = attempt_of(app, (7, number, uuid(number)), uuid(run), chunks, number)
        scribe.state.staging.add(attempt)
    scribe.state.age = scribe.state.append_time = scribe.time = attempts
    scribe.state.take_work()
    return scribe


def test_at_the_cap_whoever_finds_nothing_to_drop_looks_at_one_attempt() -> None:
    """A chunk that is refused comes again and again: it must not cost a walk each time."""
    staging = staged().state.staging
    assert staging.older_runs(APP, uuid(1)) == ()
    assert staging.older_runs("other", uuid(1)) == ()
    assert staging.attempts.idle_others("other", uuid(1), MANY, MANY) == ()
    assert staging.attempts.expired(MANY, MANY) == ()
    assert staging.attempts.work <= 3


def test_at_the_cap_what_an_older_run_staged_late_is_found_without_a_look_at_the_rest() -> None:
    scribe = staged(run=2)
    staging = scribe.state.staging
    staging.succession.forget(APP)
    for index, run in enumerate((1, 2), 1):
        staging.succession.begin(APP, uuid(run), index)
    late = (Chunk(Index(MANY + 1), 1, 100),)
    staging.add(attempt_of(APP, (7, 0, uuid(MANY + 1)), uuid(1), late, MANY))
    staging.attempts.work = 0
    assert staging.older_runs(APP, uuid(2)) == (MANY + 1,)
    assert staging.attempts.work == 1


def test_what_is_idle_is_found_without_a_look_at_the_rest() -> None:
    staging = staged().state.staging
    assert staging.attempts.idle_others("other", uuid(1), MANY, MANY - 10) == tuple(range(1, 11))
    assert staging.attempts.expired(MANY, MANY - 10) == tuple(range(1, 11))
    assert staging.attempts.work <= 2 * 11
    assert staging.attempts.expired(10 * MANY, 0) == tuple(range(1, FORGOTTEN_MAX + 1))


def test_no_more_attempts_are_dropped_with_one_entry_than_it_may_take() -> None:
    staging = staged().state.staging
    assert staging.older_runs(APP, uuid(2)) == tuple(range(1, DROPPED_AT_ONCE + 1))
    assert staging.attempts.of_batch(APP, 7, None) == tuple(range(1, DROPPED_AT_ONCE + 1))
    assert staging.attempts.work <= 2 * DROPPED_AT_ONCE + 2


def test_a_publish_looks_at_what_it_publishes_and_at_what_it_drops() -> None:
    scribe = staged()
    asked = publish(7, (3, 3, 1, 1), (4, 4, 1, 1))
    scribe.apply(scribe.published(asked))
    assert scribe.state.take_work() <= MANY + 2 + 2 * 2
    assert len(scribe.state.staging.attempts) == 0


def test_a_chunk_costs_one_look_however_much_is_staged() -> None:
    scribe = staged()
    entry = scribe.staged(label(8, app="other"))
    scribe.state.staging.stage(label(8, app="other"), 1, entry, MANY)
    assert scribe.state.take_work() == 1


def test_forgetting_an_app_looks_at_no_other() -> None:
    scribe = StagingScribe()
    indexes = [scribe.publish(publish(0, app=f"app {number}")).index for number in range(20)]
    scribe.state.take_work()
    scribe.operate(ForgetApps((indexes[3], indexes[9])))
    assert scribe.state.take_work() == 0
    assert [app.index for app in scribe.state.staging.apps()] == [
        index for place, index in enumerate(indexes) if place not in (3, 9)
    ]


def test_what_is_added_to_is_idle_last_after_a_checkpoint_as_well() -> None:
    scribe = StagingScribe(time=0)
    firsts = [scribe.stage(label(attempt=attempt)).index for attempt in (1, 2, 3)]
    scribe.time = 5 * SECOND
    scribe.stage(label(attempt=1, number=1))
    for state in (scribe.state, State.decode(scribe.state.sections()), scribe.state.copy()):
        assert state.staging.attempts.expired(9 * SECOND, 9 * SECOND) == tuple(firsts[1:])
        assert state.staging.attempts.expired(9 * SECOND, 4 * SECOND) == tuple(firsts)
        state.staging.attempts.work = 0
        assert state.staging.attempts.expired(9 * SECOND, 5 * SECOND) == tuple(firsts[1:])
        assert state.staging.attempts.work == 3


def test_the_crowd_is_counted_right_whatever_comes_and_goes() -> None:
    scribe = StagingScribe()
    staging = scribe.state.staging
    assert staging.crowd == 0
    first = scribe.stage(label(0)).index
    scribe.stage(label(0, app="other"))
    assert staging.crowd == 2
    scribe.publish(publish(0, (0, 1, 1, 1)))
    assert staging.crowd == 2
    scribe.stage(label(1))
    assert staging.crowd == 2
    last = staging.app(APP)
    assert last is not None
    scribe.operate(ForgetApps((last.index,)))
    assert staging.crowd == 2
    scribe.operate(DropStaged(DropReason.ABORTED, (first + 1,)))
    assert staging.crowd == 1
    assert State.decode(scribe.state.sections()).staging.crowd == 1
    scribe.publish(publish(1, (0, 1, 1, 1)))
    assert (staging.crowd, staging.knows(APP), staging.knows("other")) == (1, True, False)


# -- the garbage collector -----------------------------------------------------------------------


def tracked() -> int:
    """How many objects a full collection looks at. The first one finds out which tuples it need
    not look at, the second one those that hold only such tuples."""
    gc.collect()
    gc.collect()
    return len(gc.get_objects())


def test_the_garbage_collector_looks_at_no_producer_and_no_attempt() -> None:
    before = tracked()
    producers, attempts = crowded(1_000), staged(1_000)
    assert len(producers.producers) == len(attempts.state.staging.attempts) == 1_000
    assert tracked() - before < 100


def idle(run: int, *numbers: int, active_us: int = 0) -> list[Attempt]:
    """Attempts of a run that got their last chunk at ``active_us``."""
    return [
        attempt_of(
            APP, (7, number, uuid(number)), uuid(run), (Chunk(Index(number), 1, 1),), active_us
        )
        for number in numbers
    ]


def test_a_run_at_the_cap_walks_over_its_own_idle_attempts_once() -> None:
    """Not for each chunk that is refused; and an attempt of another run is found once it is
    idle."""
    staging = Staging()
    for attempt in (*idle(1, *range(1, 1001)), *idle(2, 1001, active_us=50)):
        staging.add(attempt)
    staging.attempts.work = 0
    found = [
        staging.attempts.idle_others(APP, uuid(1), age, idle_us=100) for age in range(100, 150)
    ]
    assert found == [()] * 50
    assert staging.attempts.work <= 1001
    assert staging.attempts.idle_others(APP, uuid(1), 150, idle_us=100) == (1001,)
    assert len(staging.attempts.idle_others(APP, uuid(2), 120, idle_us=100)) == FORGOTTEN_MAX


def test_a_run_that_has_all_that_is_staged_walks_over_it_once() -> None:
    staging = Staging()
    for attempt in idle(1, *range(1, 1001)):
        staging.add(attempt)
    staging.attempts.work = 0
    assert [staging.attempts.idle_others(APP, uuid(1), age, idle_us=100) for age in (100, 199)] == [
        (),
        (),
    ]
    assert staging.attempts.work == 1000
    for attempt in idle(2, 1001, active_us=100):
        staging.add(attempt)
    assert staging.attempts.idle_others(APP, uuid(1), 200, idle_us=100) == (1001,)
