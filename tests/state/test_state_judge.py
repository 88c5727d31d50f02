"""What a leader takes, knows again and refuses, rule by rule."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from state_rig import Scribe, Sent, opening

from quorate import errors
from quorate.commands import ProducerOpened, ProducerStamp, SetFence
from quorate.errors import (
    Duplicate,
    Fenced,
    InvalidArgument,
    OffsetMismatch,
    OutOfSequence,
    QuorateError,
    TooManyProducers,
    UnknownProducer,
)
from quorate.state.judge import (
    AppendConditions,
    check_conditions,
    is_final,
    judge_append,
    judge_fence,
    judge_open,
)
from quorate.state.runs import Run
from quorate.types import Index, Term


def stamped(
    epoch: int, sequence: int, fence: str | None = None, expect_offset: int | None = None
) -> AppendConditions:
    return AppendConditions(ProducerStamp("p", epoch, sequence), fence, expect_offset)


def refusal(verdict: object, kind: type[QuorateError], *words: str) -> None:
    assert type(verdict) is kind, verdict
    for word in words:
        assert word in str(verdict)


# -- producers ---------------------------------------------------------------------------------


def written() -> tuple[Scribe, int]:
    """A log with ten records of producer p, window 3: batches of 1, 2, 3 and 4 records, the first
    of which is no longer kept."""
    scribe = Scribe()
    epoch = scribe.open("p", window=3).epoch
    scribe.send(Sent(7))
    scribe.send(Sent(1, epoch, 1), Sent(2, epoch, 2))
    scribe.send(Sent(3, epoch, 4), Sent(5), Sent(4, epoch, 7))
    return scribe, epoch


def test_the_next_sequence_is_logged() -> None:
    scribe, epoch = written()
    assert judge_append(scribe.state, 1, stamped(epoch, 11)) is None
    assert judge_append(scribe.state, 1000, stamped(epoch, 11)) is None


def test_the_first_sequence_is_1() -> None:
    scribe = Scribe()
    epoch = scribe.open("p").epoch
    assert judge_append(scribe.state, 5, stamped(epoch, 1)) is None
    refusal(judge_append(scribe.state, 1, stamped(epoch, 2)), OutOfSequence, "sequence 1", "2")
    # Nothing is in the log: a number below the first is a mistake, not a repeat.
    refusal(judge_append(scribe.state, 1, stamped(epoch, 0)), InvalidArgument)
    refusal(judge_append(scribe.state, 9, stamped(epoch, 0)), InvalidArgument)


@pytest.mark.parametrize("sequence", [12, 13, 1 << 60])
def test_a_sequence_too_high_names_the_expected_one(sequence: int) -> None:
    scribe, epoch = written()
    verdict = judge_append(scribe.state, 1, stamped(epoch, sequence))
    refusal(verdict, OutOfSequence, "goes on with sequence 11", f"shows {sequence}")


@pytest.mark.parametrize(
    ("sequence", "count", "offset", "index"), [(2, 2, 8, 3), (4, 3, 10, 4), (7, 4, 18, 4)]
)
def test_a_batch_that_is_kept_is_known_again(
    sequence: int, count: int, offset: int, index: int
) -> None:
    scribe, epoch = written()
    place = judge_append(scribe.state, count, stamped(epoch, sequence))
    assert place == Run(sequence, count, offset, Index(index), Term(1))


@pytest.mark.parametrize(
    ("sequence", "count"),
    [
        (2, 1), (2, 3), (3, 1), (4, 2), (4, 7), (5, 2), (7, 3), (10, 1),
        # Over the newest one.
        (7, 5), (10, 2), (2, 10), (1, 11),
        # From what is no longer kept into what is.
        (1, 2), (1, 10),
        (0, 1), (0, 2), (-5, 3), (-5, 100),
    ],
)  # fmt: skip
def test_other_boundaries_than_the_logged_ones_are_refused(sequence: int, count: int) -> None:
    scribe, epoch = written()
    verdict = judge_append(scribe.state, count, stamped(epoch, sequence))
    last = sequence + count - 1
    refusal(verdict, InvalidArgument, f"sequences {sequence} to {last}", "up to 10")


def test_a_batch_that_is_no_longer_kept_is_a_duplicate() -> None:
    scribe, epoch = written()
    verdict = judge_append(scribe.state, 1, stamped(epoch, 1))
    refusal(verdict, Duplicate, "sequences 1 to 1 are in the log", "from 2 on")


def test_a_producer_that_is_not_there_is_refused_never_made() -> None:
    scribe = Scribe()
    refusal(judge_append(scribe.state, 1, stamped(1, 1)), UnknownProducer, "'p' is not open")
    assert len(scribe.state.producers) == 0


def test_an_older_epoch_is_fenced_off() -> None:
    """Also for what it has in the log: whoever has the name now may already have gone on."""
    scribe, old = written()
    new = scribe.open("p", 2, window=3).epoch
    for sequence, count in ((11, 1), (7, 4), (1, 1), (99, 1)):
        verdict = judge_append(scribe.state, count, stamped(old, sequence))
        refusal(verdict, Fenced, f"opened again with epoch {new}", f"shows {old}")
    # The new one goes on where the old one was, and knows its batches again.
    assert judge_append(scribe.state, 1, stamped(new, 11)) is None
    assert isinstance(judge_append(scribe.state, 4, stamped(new, 7)), Run)


def test_an_epoch_that_never_was_is_unknown() -> None:
    scribe, epoch = written()
    verdict = judge_append(scribe.state, 1, stamped(epoch + 1, 11))
    refusal(verdict, UnknownProducer, f"has epoch {epoch}", f"shows {epoch + 1}")


# -- fence and expected offset -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fence", "given", "words"),
    [
        ("a", None, ["the log has the fence 'a'", "the append shows no fence"]),
        ("a", "b", ["the log has the fence 'a'", "the append shows the fence 'b'"]),
        (None, "b", ["the log has no fence", "the append shows the fence 'b'"]),
    ],
)
def test_an_append_shows_the_fence_that_is_set(
    fence: str | None, given: str | None, words: list[str]
) -> None:
    scribe = Scribe()
    scribe.operate(SetFence(fence, None))
    refusal(judge_append(scribe.state, 1, AppendConditions(fence=given)), Fenced, *words)
    assert judge_append(scribe.state, 1, AppendConditions(fence=fence)) is None


def test_an_append_may_expect_where_the_log_ends() -> None:
    scribe = Scribe()
    scribe.send(Sent(5))
    assert judge_append(scribe.state, 1, AppendConditions(expect_offset=5)) is None
    for expected in (0, 4, 6):
        verdict = judge_append(scribe.state, 1, AppendConditions(expect_offset=expected))
        refusal(verdict, OffsetMismatch, "ends at offset 5", f"expected {expected}")
    assert judge_append(Scribe().state, 1, AppendConditions(expect_offset=0)) is None


def test_no_terms_are_met_by_a_log_without_a_fence() -> None:
    assert judge_append(Scribe().state, 1, AppendConditions()) is None


def test_first_the_producer_then_the_fence_then_the_offset() -> None:
    scribe, epoch = written()
    scribe.operate(SetFence("f", None))
    state = scribe.state
    # What is in the log is known again, whatever was set since.
    assert isinstance(judge_append(state, 4, stamped(epoch, 7, "wrong", 0)), Run)
    refusal(judge_append(state, 1, stamped(epoch, 1, "wrong", 0)), Duplicate)
    refusal(judge_append(state, 1, stamped(epoch, 12, "wrong", 0)), OutOfSequence)
    refusal(judge_append(state, 1, stamped(epoch, 11, "wrong", 0)), Fenced, "'wrong'")
    refusal(judge_append(state, 1, stamped(epoch, 11, "f", 0)), OffsetMismatch)
    assert judge_append(state, 1, stamped(epoch, 11, "f", state.end)) is None


# -- operations --------------------------------------------------------------------------------


def test_a_new_name_is_opened_up_to_the_cap() -> None:
    scribe = Scribe()
    scribe.open("a")
    assert judge_open(scribe.state, opening("b"), 2) is None
    scribe.open("b")
    verdict = judge_open(scribe.state, opening("c"), 2)
    refusal(verdict, TooManyProducers, "has 2 producers, limit 2", "'c'")


def test_a_name_that_is_there_is_opened_again_at_the_cap_too() -> None:
    scribe = Scribe()
    scribe.open("a", 1)
    assert judge_open(scribe.state, opening("a", 2), 1) is None
    assert judge_open(scribe.state, opening("a", 2), 0) is None


def test_an_opening_replaces_no_instance_that_it_does_not_know() -> None:
    scribe, epoch = written()
    for known, answer in (
        (0, ProducerOpened(epoch, 10, held=True)),
        (epoch - 1, ProducerOpened(epoch, 10, held=True)),
        (epoch, None),
        (epoch + 1, None),
        (None, None),
    ):
        assert judge_open(scribe.state, replace(opening("p", 2), known=known), 9) == answer
        # A name that no instance has, and the instance that has the name.
        assert judge_open(scribe.state, replace(opening("q", 2), known=known), 9) is None
        own = judge_open(scribe.state, replace(opening("p", 1), known=known), 9)
        assert own == ProducerOpened(epoch, 10)


def test_a_repeated_opening_is_answered_as_it_was() -> None:
    scribe, epoch = written()
    assert judge_open(scribe.state, opening("p", 1, window=3), 0) == ProducerOpened(epoch, 10)
    again = scribe.open("p", 2)
    assert judge_open(scribe.state, opening("p", 2), 0) == ProducerOpened(again.epoch, 10)


@pytest.mark.parametrize(
    ("fence", "expect", "words"),
    [
        (None, "a", ["the log has no fence", "expected was the fence 'a'"]),
        ("a", None, ["the log has the fence 'a'", "expected was no fence"]),
        ("a", "b", ["the log has the fence 'a'", "expected was the fence 'b'"]),
    ],
)
def test_a_fence_is_set_only_over_the_expected_one(
    fence: str | None, expect: str | None, words: list[str]
) -> None:
    scribe = Scribe()
    scribe.operate(SetFence(fence, None))
    refusal(judge_fence(scribe.state, SetFence("c", expect)), Fenced, *words)
    for new in ("c", fence, None):
        assert judge_fence(scribe.state, SetFence(new, fence)) is None


# -- what is final, and what is refused before -------------------------------------------------


def test_refusals_are_final_unless_retriable() -> None:
    """Among them INVALID_ARGUMENT: from a judge it is about the log, not about the request."""
    every = [error("x") for error in QuorateError.__subclasses__()]
    retriable = {error.code for error in every if not is_final(error)}
    assert retriable == {error.code for error in every if error.retriable}
    for final in (OffsetMismatch, Fenced, Duplicate, UnknownProducer, TooManyProducers):
        assert is_final(final("x"))
    scribe, epoch = written()
    overlap = judge_append(scribe.state, 2, stamped(epoch, 3))
    assert isinstance(overlap, errors.InvalidArgument)
    assert is_final(overlap)
    gap = judge_append(scribe.state, 2, stamped(epoch, 30))
    assert isinstance(gap, OutOfSequence)
    assert not is_final(gap)


@pytest.mark.parametrize(
    "conditions",
    [
        AppendConditions(),
        stamped(1, 1, "f", 0),
        stamped(2**64 - 1, 2**64 - 1, "é" * 127, 2**64 - 1),
    ],
)
def test_sound_conditions_pass(conditions: AppendConditions) -> None:
    check_conditions(conditions)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (stamped(0, 1), "epoch 0 and sequence 1 must be at least 1"),
        (stamped(1, 0), "epoch 1 and sequence 0 must be at least 1"),
        (stamped(1, -1), "sequence -1"),
        (AppendConditions(ProducerStamp("", 1, 1)), "producer name has 0 bytes"),
        (AppendConditions(ProducerStamp("x" * 256, 1, 1)), "producer name has 256 bytes"),
        (AppendConditions(fence=""), "fence has 0 bytes"),
        (AppendConditions(fence="\ud800"), "fence cannot be written as UTF-8"),
        (AppendConditions(expect_offset=-1), "expected offset is -1"),
    ],
)
def test_conditions_that_no_state_could_accept_are_refused(
    conditions: AppendConditions, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_conditions(conditions)
