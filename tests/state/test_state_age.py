"""How old a log is: time that passed in it, whatever the clocks of its leaders did."""

from __future__ import annotations

from dataclasses import replace

import pytest
from staging_rig import APP, StagingScribe, label, publish
from state_rig import SECOND, Scribe, Sent, replayed

from cluster_rig import led
from core_rig import config
from quorate.commands import Publish
from quorate.config import Timing
from quorate.entry_body import Stamp
from quorate.errors import InvalidArgument
from quorate.replica.engine_io import Flushed, Operate
from quorate.replica.entry_drafts import draft_expiries
from quorate.state.state import AGE_STEP_US, State
from quorate.types import EntryKind, Index

DAY = 24 * 3600 * SECOND


def test_a_log_ages_with_its_entries_and_by_one_step_at_most() -> None:
    scribe = Scribe(time=3 * SECOND)
    scribe.send(Sent())
    assert scribe.state.age == 3 * SECOND
    scribe.time += AGE_STEP_US
    scribe.send(Sent())
    assert scribe.state.age == 3 * SECOND + AGE_STEP_US
    scribe.time += 100 * DAY
    scribe.send(Sent())
    assert scribe.state.age == 3 * SECOND + 2 * AGE_STEP_US
    assert scribe.state.append_time == 3 * SECOND + AGE_STEP_US + 100 * DAY
    assert replayed(scribe.entries) == scribe.state


def test_a_leap_of_the_clock_makes_nobody_idle() -> None:
    scribe = StagingScribe(time=0)
    scribe.open("loader", expiry_s=7 * 24 * 3600)
    scribe.publish(publish(0))
    scribe.stage(label(1))
    state, timing = scribe.state, Timing()
    found = [parts.kind for parts in draft_expiries(state, 100 * DAY, timing)]
    assert found == [EntryKind.NOOP], "the log ages, and forgets nothing"
    scribe.time = 100 * DAY
    scribe.send(Sent())
    assert list(draft_expiries(state, 100 * DAY + SECOND, timing)) == []
    assert state.staging.app(APP) is not None


def test_what_stands_still_ages_by_an_entry_for_each_step() -> None:
    scribe = StagingScribe(time=0)
    scribe.stage(label())
    timing = replace(Timing(), staged_expiry_ms=3600_000)
    steps = 0
    while scribe.state.staging.attempts.bytes:
        scribe.time += AGE_STEP_US
        for parts in draft_expiries(scribe.state, scribe.time, timing):
            scribe.apply(scribe.make(*parts))
            steps += parts.kind is EntryKind.NOOP
    assert steps == 3600 * SECOND // AGE_STEP_US


def test_a_log_that_remembers_nobody_stays_as_it_is() -> None:
    scribe = Scribe(time=SECOND)
    scribe.send(Sent())
    assert list(draft_expiries(scribe.state, 100 * DAY, Timing())) == []


def test_a_leader_foresees_the_age_that_applying_gives() -> None:
    scribe = Scribe(time=SECOND)
    producer = scribe.open("loader")
    ahead = scribe.state.copy()
    scribe.time += 100 * DAY
    entry = scribe.batches(Sent(2, producer.epoch, 1), Sent(1, producer.epoch, 3))
    for run, (count, sequence) in enumerate([(2, 1), (1, 3)]):
        stamp = Stamp(run, producer.epoch, sequence)
        ahead.accept(count, stamp, entry.index, entry.term, entry.append_time)
    scribe.apply(entry)
    assert ahead == scribe.state
    assert ahead.digest() == scribe.state.digest()


def test_no_log_is_older_than_its_append_time() -> None:
    state = State()
    state.append_time, state.age = 5, 6
    with pytest.raises(InvalidArgument, match="state is 6 µs old"):
        State.decode(state.sections())


def test_a_leader_whose_clock_leaps_keeps_its_apps() -> None:
    cluster = led(1, config(app_expiry_ms=24 * 3_600_000))
    cluster.turn("n1", [Operate(1, Publish("query", 0, (), bytes(32)))])
    engine = cluster.engine("n1")
    now_ms = 20_000
    for wall_us in (30 * DAY, 60 * DAY):
        # Long enough for a look at what expired.
        for _ in range(1100):
            now_ms += 10
            effects = engine.turn([], now_ms, wall_us)
            if effects.flush is not None:
                engine.turn([Flushed(effects.flush.number)], now_ms, wall_us)
    assert engine.state.staging.app("query") is not None
    assert engine.state.append_time == 60 * DAY, "it did write down the time"
    assert engine.state.age < 24 * 3600 * SECOND
    assert engine.applied > Index(2)
