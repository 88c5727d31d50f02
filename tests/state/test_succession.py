"""Which run of an app is older: known for longer than anything of it is staged, within bounds."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staging_rig import APP, StagingScribe, label, publish, uuid
from state_rig import replayed

from core_rig import FUZZ
from quorate.errors import InvalidArgument
from quorate.state.operations import DropReason, DropStaged, ForgetApps
from quorate.state.state import State
from quorate.state.succession import RUNS_KEPT

if TYPE_CHECKING:
    from quorate.entry import Entry

OLD, LIVE, NEXT = 1, 2, 3


def drop(scribe: StagingScribe, reason: DropReason, *entries: Entry) -> None:
    scribe.operate(DropStaged(reason, tuple(entry.index for entry in entries)))


def replaced(app: str = APP) -> StagingScribe:
    """A log in which one run took the place of all that another one had staged."""
    scribe = StagingScribe()
    first = scribe.stage(label(attempt=1, run=OLD, app=app))
    drop(scribe, DropReason.REPLACED, first)
    scribe.stage(label(attempt=2, run=LIVE, app=app))
    return scribe


def known(scribe: StagingScribe, app: str = APP) -> list[bytes]:
    """The runs that are remembered, oldest first."""
    return [begun.run for _, begun in scribe.state.staging.succession if begun.app == app]


# -- which run is older --------------------------------------------------------------------------


def test_a_run_that_was_replaced_does_not_come_back_as_a_newer_one() -> None:
    scribe = replaced()
    older = scribe.state.staging.older_runs
    assert older(APP, uuid(OLD)) == ()
    assert older(APP, uuid(LIVE)) == ()
    assert older(APP, uuid(NEXT)) == (3,)


def test_what_a_replaced_run_stages_again_makes_room_for_the_newer_one() -> None:
    scribe = replaced()
    late = scribe.stage(label(attempt=9, run=OLD))
    older = scribe.state.staging.older_runs
    assert older(APP, uuid(LIVE)) == (late.index,)
    assert older(APP, uuid(OLD)) == ()
    drop(scribe, DropReason.REPLACED, late)
    assert older(APP, uuid(OLD)) == ()


def test_a_run_is_as_old_as_its_first_chunk_whenever_its_driver_was_started() -> None:
    scribe = StagingScribe()
    first = scribe.stage(label(attempt=1, run=LIVE))
    older = scribe.state.staging.older_runs
    assert older(APP, uuid(OLD)) == (first.index,)
    late = scribe.stage(label(attempt=2, run=OLD))
    assert older(APP, uuid(LIVE)) == ()
    assert older(APP, uuid(OLD)) == (first.index,)
    assert older(APP, uuid(NEXT)) == (first.index, late.index)


def test_a_run_stays_older_after_a_publish() -> None:
    scribe = StagingScribe()
    scribe.stage(label(7, attempt=1, run=OLD))
    scribe.stage(label(7, attempt=2, run=LIVE))
    scribe.publish(publish(7, (0, 2, 1, 1)))
    scribe.stage(label(8, attempt=3, run=LIVE))
    assert scribe.state.staging.older_runs(APP, uuid(OLD)) == ()


@pytest.mark.parametrize("reason", DropReason)
def test_a_run_of_a_known_app_stays_older_whatever_dropped_its_chunks(reason: DropReason) -> None:
    scribe = StagingScribe()
    scribe.publish(publish(6))
    first = scribe.stage(label(7, attempt=1, run=OLD))
    drop(scribe, reason, first)
    scribe.stage(label(7, attempt=2, run=LIVE))
    assert scribe.state.staging.older_runs(APP, uuid(OLD)) == ()


def test_runs_of_another_app_are_others() -> None:
    scribe = replaced()
    scribe.stage(label(attempt=3, run=OLD, app="other"))
    assert scribe.state.staging.older_runs("other", uuid(LIVE)) == (4,)
    assert known(scribe, "other") == [uuid(OLD)]


# -- how long it is known ------------------------------------------------------------------------


def test_runs_are_forgotten_with_their_app() -> None:
    scribe = replaced()
    entry = scribe.publish(publish(0, (0, 2, 1, 1)))
    assert known(scribe) == [uuid(OLD), uuid(LIVE)]
    scribe.operate(ForgetApps((entry.index,)))
    assert known(scribe) == []
    assert scribe.state.staging.digest() == 0


@pytest.mark.parametrize("reason", [one for one in DropReason if one != DropReason.REPLACED])
def test_runs_of_an_app_that_has_nothing_left_are_forgotten(reason: DropReason) -> None:
    scribe = StagingScribe()
    drop(scribe, reason, scribe.stage(label()))
    assert scribe.state == State()


def test_one_app_at_a_time_waits_for_the_chunk_that_others_made_room_for() -> None:
    """The leader may fall between the two entries, and the chunk may never come again."""
    scribe = StagingScribe()
    for number in range(3):
        drop(scribe, DropReason.REPLACED, scribe.stage(label(app=f"app {number}")))
    staging = scribe.state.staging
    assert [begun.app for _, begun in staging.succession] == ["app 2"]
    assert (staging.crowd, staging.knows("app 2")) == (0, False)
    again = State.decode(scribe.state.sections())
    assert again == scribe.state
    for state in (scribe.state, again):
        assert state.staging.older_runs("app 2", uuid(1)) == ()


def test_an_app_that_waited_and_came_is_not_forgotten_for_the_next() -> None:
    scribe = replaced()
    drop(scribe, DropReason.REPLACED, scribe.stage(label(app="other")))
    assert known(scribe) == [uuid(OLD), uuid(LIVE)]
    assert known(scribe, "other") == [uuid(1)]


def test_no_app_has_more_runs_without_chunks_than_are_kept() -> None:
    scribe = StagingScribe()
    for run in range(RUNS_KEPT + 9):
        entry = scribe.stage(label(attempt=run, run=run))
        drop(scribe, DropReason.REPLACED, entry)
    assert known(scribe) == [uuid(run) for run in range(9, RUNS_KEPT + 9)]
    assert State.decode(scribe.state.sections()) == scribe.state


def test_a_run_with_chunks_is_kept_however_old_it_is() -> None:
    scribe = StagingScribe()
    scribe.stage(label(attempt=99, run=99))
    for run in range(RUNS_KEPT + 9):
        entry = scribe.stage(label(attempt=run, run=run))
        drop(scribe, DropReason.ABORTED, entry)
    assert known(scribe) == [uuid(99), *map(uuid, range(9, RUNS_KEPT + 9))]


def test_a_publish_of_many_runs_leaves_the_newest() -> None:
    scribe = StagingScribe()
    for run in range(2 * RUNS_KEPT):
        scribe.stage(label(attempt=run, run=run))
    assert len(known(scribe)) == 2 * RUNS_KEPT
    scribe.publish(publish(0))
    assert known(scribe) == [uuid(run) for run in range(RUNS_KEPT, 2 * RUNS_KEPT)]


# -- checkpoints and digests ---------------------------------------------------------------------


def test_a_checkpoint_holds_which_run_is_older() -> None:
    scribe = replaced()
    again = State.decode(scribe.state.sections())
    assert again == scribe.state
    assert again.digest() == scribe.state.digest()
    assert again.staging.older_runs(APP, uuid(OLD)) == ()


def test_the_digest_tells_which_runs_are_known() -> None:
    one, other = replaced().state, replaced().state
    assert one.digest() == other.digest()
    other.staging.succession.begin(APP, uuid(NEXT), 9)
    assert one != other
    assert one.digest() != other.digest()


def holding(*runs: tuple[str, int, int]) -> list[bytes]:
    """The sections of a state with an attempt of run 1 of APP and these runs, sound or not."""
    scribe = StagingScribe()
    scribe.stage(label(run=1))
    state = scribe.state
    state.staging.succession.forget(APP)
    for app, run, index in runs:
        state.staging.succession.begin(app, uuid(run), index)
    return [*state.sections()]


def test_runs_that_a_log_leads_to_are_read() -> None:
    state = State.decode(holding((APP, 1, 1), (APP, 2, 5), ("other", 1, 6)))
    assert len(state.staging.succession) == 3


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "an attempt of a run that began later"),
        ([(APP, 2, 1)], "an attempt of a run that began later"),
        ([(APP, 1, 2)], "an attempt of a run that began later"),
        ([(APP, 1, 0)], "a run of 'query' twice or out of order"),
        ([(APP, 1, 1), (APP, 2, 5), (APP, 3, 4)], "a run of 'query' twice or out of order"),
        ([("", 1, 1)], "app has 0 bytes"),
        ([(APP, 1, 1), ("a", 1, 2), ("b", 1, 3)], "'b': runs that would be forgotten"),
        (
            [(APP, run, run) for run in range(1, RUNS_KEPT + 3)],
            "'query': runs that would be forgotten",
        ),
    ],
)
def test_runs_that_no_log_leads_to_are_refused(
    runs: list[tuple[str, int, int]], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        State.decode(holding(*runs))


@FUZZ
@given(st.integers(0, 2**32))
def test_a_replica_that_starts_from_any_checkpoint_forgets_the_same(seed: int) -> None:
    random, scribe = Random(seed), StagingScribe()
    restored = State()
    for number in range(60):
        random_entry(random, scribe, number)
        restored.apply(scribe.entries[-1])
        if random.random() < 0.3:
            restored = State.decode(restored.sections())
        assert restored.digest() == scribe.state.digest()
    assert restored == scribe.state == replayed(scribe.entries)


def random_entry(random: Random, scribe: StagingScribe, number: int) -> None:
    staging, app = scribe.state.staging, random.choice("ab")
    attempts, apps = [*staging.attempts], staging.apps()
    kind = random.choice(("stage", "stage", "drop", "drop", "publish", "forget"))
    done = staging.app(app)
    batch_id = done.batch_id + 1 if done is not None else 0
    if kind == "drop" and attempts:
        gone = {one.first for one in attempts if random.random() < 0.7} or {attempts[0].first}
        scribe.operate(DropStaged(random.choice([*DropReason]), tuple(sorted(gone))))
    elif kind == "publish":
        scribe.publish(publish(batch_id, app=app))
    elif kind == "forget" and apps:
        scribe.operate(ForgetApps((apps[0].index,)))
    else:
        run = random.randrange(2 * RUNS_KEPT)
        scribe.stage(label(batch_id + random.randrange(2), attempt=number, run=run, app=app))
