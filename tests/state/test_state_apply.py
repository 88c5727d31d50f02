"""Applying: dense offsets, times that never fall, and a halt rather than a difference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from state_rig import SECOND, Scribe, Sent, opening, replayed

from quorate.commands import SetFence
from quorate.entry import Entry, make_entry
from quorate.entry_body import Stamp, pack_batches
from quorate.errors import InvariantBroken
from quorate.state.operations import ExpireProducers
from quorate.state.runs import Run
from quorate.state.state import State
from quorate.types import EntryKind, Term


def refused(scribe: Scribe, entry: Entry, message: str) -> None:
    """``entry`` halts the replica, and leaves the state as it was."""
    before, digest = scribe.state.copy(), scribe.state.digest()
    with pytest.raises(InvariantBroken, match=message):
        scribe.state.apply(entry)
    assert scribe.state == before
    assert scribe.state.digest() == digest
    assert [*scribe.state.sections()] == [*before.sections()]


# -- what every entry must keep ----------------------------------------------------------------


def test_a_state_of_nothing() -> None:
    state = State()
    assert (state.end, state.append_time, state.fence, len(state.producers)) == (0, 0, None, 0)
    assert state == State()
    assert state.digest() == State().digest() != 0


def test_records_take_offsets_and_control_entries_take_none() -> None:
    scribe = Scribe()
    scribe.send(Sent(3))
    assert scribe.state.end == 3
    scribe.apply(scribe.make(EntryKind.NOOP))
    scribe.open("p")
    scribe.operate(SetFence("f", None))
    assert scribe.state.end == 3
    scribe.send(Sent(1), Sent(4))
    assert scribe.state.end == 8


@pytest.mark.parametrize("base_offset", [0, 2, 4, 1 << 60])
def test_a_wrong_base_offset_halts(base_offset: int) -> None:
    scribe = Scribe()
    first = scribe.send(Sent(3))
    entry = make_entry(first.position, Term(1), EntryKind.DATA, base_offset=base_offset, count=1)
    refused(scribe, entry, f"begins at offset {base_offset}, the log ends at 3")


@pytest.mark.parametrize("kind", [EntryKind.DATA, EntryKind.NOOP, EntryKind.FENCE])
def test_append_time_never_falls(kind: EntryKind) -> None:
    scribe = Scribe(time=5)
    scribe.send(Sent())
    assert scribe.state.append_time == 5
    scribe.send(Sent())
    scribe.time = 4
    refused(scribe, scribe.make(kind), "append time 4, the entry before it has 5")
    scribe.time = 6
    scribe.apply(scribe.make(EntryKind.NOOP))
    assert scribe.state.append_time == 6


def test_a_kind_that_this_release_does_not_know_halts() -> None:
    scribe = Scribe()
    refused(scribe, scribe.make(EntryKind.TRIM), "kind TRIM, which this release cannot apply")
    refused(scribe, scribe.make(EntryKind.TRIM, count=3), "upgrade this node")


@pytest.mark.parametrize("kind", [EntryKind.NOOP, EntryKind.PRODUCER, EntryKind.FENCE])
def test_a_control_entry_with_records_halts(kind: EntryKind) -> None:
    scribe = Scribe()
    for count, runs, stamps in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        entry = scribe.make(kind, b"", count, runs, stamps)
        refused(scribe, entry, f"kind {kind.name} and has records")


@pytest.mark.parametrize("kind", [EntryKind.PRODUCER, EntryKind.FENCE])
def test_an_operation_that_cannot_be_read_halts(kind: EntryKind) -> None:
    scribe = Scribe()
    refused(scribe, scribe.make(kind, b"\2later.."), "operation 026c is not known here")


# -- stamps ------------------------------------------------------------------------------------


def test_stamped_batches_are_remembered_with_their_places() -> None:
    scribe = Scribe(term=3)
    one, two = scribe.open("one").epoch, scribe.open("two").epoch
    scribe.time = 7
    entry = scribe.send(Sent(2, one, 1), Sent(9), Sent(1, two, 1), Sent(4, one, 3))
    index, term = entry.index, Term(3)
    assert (*scribe.producer("one").runs,) == (
        Run(1, 2, 0, index, term),
        Run(3, 4, 12, index, term),
    )
    assert (*scribe.producer("two").runs,) == (Run(1, 1, 11, index, term),)
    assert scribe.producer("one").last_sequence == 6
    assert scribe.producer("two").last_sequence == 1
    assert scribe.producer("one").active_us == 7


def test_batches_without_a_stamp_are_nobodys() -> None:
    scribe = Scribe()
    before = scribe.open("p")
    scribe.time = 9
    scribe.send(Sent(5), Sent(5))
    assert scribe.producer("p") == before


def test_a_stamp_of_an_epoch_that_nobody_has_halts() -> None:
    scribe = Scribe()
    old = scribe.open("p", 1).epoch
    new = scribe.open("p", 2).epoch
    for epoch in (0, old, new + 1, 1 << 63):
        entry = scribe.batches(Sent(1, new, 1), Sent(1, epoch, 1))
        refused(scribe, entry, f"names epoch {epoch}, which no producer has")


@pytest.mark.parametrize("sequence", [0, 1, 2, 3, 5, 1 << 60])
def test_a_stamp_that_is_not_the_next_halts(sequence: int) -> None:
    scribe = Scribe()
    epoch = scribe.open("p").epoch
    scribe.send(Sent(3, epoch, 1))
    message = f"from sequence {sequence} of producer 'p' in run 1, the log has it up to 3"
    refused(scribe, scribe.batches(Sent(9), Sent(2, epoch, sequence)), message)
    # The next one is not accepted either if another of the same entry is wrong.
    entry = scribe.batches(Sent(1, epoch, 4), Sent(2, epoch, sequence))
    if sequence != 5:
        refused(scribe, entry, f"from sequence {sequence} of producer 'p' in run 1")


def test_a_stamped_batch_without_records_halts() -> None:
    scribe = Scribe()
    epoch = scribe.open("p").epoch
    refused(scribe, scribe.batches(Sent(0, epoch, 1), Sent(1)), "has 0 records from sequence 1")


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        ([Stamp(1, 1, 1), Stamp(0, 1, 2)], "rising order of run"),
        ([Stamp(0, 1, 1), Stamp(2, 1, 2)], "names run 2 of 2"),
    ],
)
def test_stamps_that_are_not_of_the_batches_halt(stamps: list[Stamp], message: str) -> None:
    scribe = Scribe()
    assert scribe.open("p").epoch == 1
    body = pack_batches([(b"", 1), (b"", 1)], stamps)
    refused(scribe, scribe.make(EntryKind.DATA, body, 2, 2, 2), message)


def test_rows_that_do_not_fit_halt() -> None:
    scribe = Scribe()
    epoch = scribe.open("p").epoch
    entry = scribe.batches(Sent(1, epoch, 1))
    refused(scribe, replace(entry, stamps=9), "1 runs and 9 stamps do not fit")
    refused(scribe, replace(entry, count=2), "entry 2 has 2 records, its runs have 1")


# -- openings and expiries ---------------------------------------------------------------------


def test_opening_for_the_instance_that_has_it_halts() -> None:
    scribe = Scribe()
    scribe.open("p", 1)
    refused(scribe, scribe.operation(opening("p", 1)), "opens producer 'p' again")
    refused(scribe, scribe.operation(opening("p", 1, window=9)), "opens producer 'p' again")
    scribe.open("p", 2)
    scribe.open("p", 1)


def test_only_who_is_there_and_idle_expires() -> None:
    scribe = Scribe()
    one = scribe.open("one", expiry_s=2).epoch
    two = scribe.open("two", expiry_s=3).epoch
    scribe.time = 2 * SECOND - 1
    refused(scribe, scribe.operation(ExpireProducers((one,))), "expires producer 'one', which is")
    scribe.time = 2 * SECOND
    refused(scribe, scribe.operation(ExpireProducers((one, two))), "'two', which is not idle")
    refused(scribe, scribe.operation(ExpireProducers((one, two + 1))), f"names epoch {two + 1}")
    scribe.operate(ExpireProducers((one,)))
    refused(scribe, scribe.operation(ExpireProducers((one,))), f"names epoch {one}")
    assert scribe.state.producers.get("one") is None
    assert scribe.producer("two").epoch == two


# -- fences ------------------------------------------------------------------------------------


def test_a_fence_replaces_the_one_that_is_expected() -> None:
    scribe = Scribe()
    for expect, fence in ((None, "a"), ("a", "a"), ("a", "b"), ("b", None), (None, None)):
        scribe.operate(SetFence(fence, expect))
        assert scribe.state.fence == fence


@pytest.mark.parametrize(("fence", "expect"), [(None, "a"), ("a", None), ("a", "b")])
def test_another_fence_than_the_expected_one_halts(fence: str | None, expect: str | None) -> None:
    scribe = Scribe()
    scribe.operate(SetFence(fence, None))
    entry = scribe.operation(SetFence("c", expect))
    refused(scribe, entry, f"replaces the fence {expect!r}, the log has {fence!r}")


# -- states side by side -----------------------------------------------------------------------


def eventful() -> Scribe:
    """A log with something of everything."""
    scribe = Scribe()
    one = scribe.open("one", window=2).epoch
    scribe.open("gone", expiry_s=1)
    scribe.send(Sent(2, one, 1), Sent(1), Sent(3, one, 3))
    scribe.operate(SetFence("f", None))
    scribe.time = 2 * SECOND
    two = scribe.open("two", window=1).epoch
    scribe.send(Sent(1, two, 1), Sent(1, one, 6), Sent(1, two, 2))
    scribe.operate(ExpireProducers(scribe.state.expired(scribe.time)))
    scribe.open("one", 2, window=3)
    return scribe


def test_a_copy_goes_its_own_way() -> None:
    scribe = eventful()
    state, digest = scribe.state, scribe.state.digest()
    copy = state.copy()
    assert copy == state
    entry = scribe.batches(Sent(1, scribe.producer("one").epoch, 7))
    copy.apply(entry)
    assert (copy.end, state.end) == (10, 9)
    assert copy != state
    assert copy.digest() != digest == state.digest()
    state.apply(entry)
    assert copy == state
    assert copy.digest() == state.digest()


def test_accepting_batches_foresees_what_applying_their_entry_gives() -> None:
    """A leader takes batches one by one; the entry that holds them must lead to the same."""
    scribe = eventful()
    one, two = scribe.producer("one").epoch, scribe.producer("two").epoch
    ahead = scribe.state.copy()
    scribe.time += 5
    sent = [Sent(2, one, 7), Sent(9), Sent(1, two, 3), Sent(4, one, 9)]
    entry = scribe.batches(*sent)
    places = [
        ahead.accept(
            batch.count,
            None if batch.epoch is None else Stamp(row, batch.epoch, batch.sequence),
            entry.index,
            entry.term,
            entry.append_time,
        )
        for row, batch in enumerate(sent)
    ]
    assert [place.offset for place in places] == [9, 11, 20, 21]
    scribe.apply(entry)
    assert ahead == scribe.state
    assert ahead.digest() == scribe.state.digest()


def test_an_entry_may_be_of_any_index() -> None:
    """Where a log begins is not the state's matter: a checkpoint may stand for all before."""
    scribe = eventful()
    late = State.decode(scribe.state.sections())
    entry = scribe.batches(Sent(1, scribe.producer("one").epoch, 7))
    late.apply(entry)
    scribe.apply(entry)
    assert late == scribe.state


def test_states_differ_in_whatever_is_in_them() -> None:
    digests = {State().digest()}
    scribe = Scribe()
    for act in (
        lambda: scribe.send(Sent()),
        lambda: scribe.open("p", expiry_s=60),
        lambda: scribe.operate(SetFence("f", None)),
        lambda: scribe.operate(SetFence("g", "f")),
        lambda: scribe.operate(SetFence(None, "g")),
        lambda: scribe.open("p", 2, expiry_s=60),
        lambda: scribe.open("p", 3, expiry_s=61),
        lambda: scribe.send(Sent(1, scribe.producer("p").epoch, 1)),
    ):
        act()
        digests.add(scribe.state.digest())
    # Clearing the fence brought back the state before it was set.
    assert len(digests) == 8
    assert replayed(scribe.entries).digest() == scribe.state.digest()
