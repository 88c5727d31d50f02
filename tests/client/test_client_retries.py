"""What is sent again, what never is, and what a caller is told: without a socket."""

from __future__ import annotations

import random

import pytest

from quorate.client.retries import Attempts, Effect, Lost, Patience, Unreachable
from quorate.errors import (
    Busy,
    Corrupt,
    Duplicate,
    Fenced,
    LogExists,
    NotLeader,
    OffsetMismatch,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    Timeout,
    TooLarge,
)

PATIENCE = Patience()
LOST = Lost("the connection to n1 ended")
UNKNOWN = OutcomeUnknown("logged in term 3, then deposed")
UNREACHABLE = Unreachable("no node could be reached: h:1: Connection refused")


def attempts(
    effect: Effect, settling: tuple[type[QuorateError], ...] = (), copies: int = 1
) -> Attempts:
    return Attempts(
        "append to orders", effect, 30.0, PATIENCE, random.Random(1),
        settling=settling, copies=copies,
    )  # fmt: skip


@pytest.mark.parametrize("error", [Busy("full"), NotLeader("leader: none"), UNREACHABLE])
@pytest.mark.parametrize("effect", list(Effect))
def test_what_was_not_carried_out_is_tried_again(effect: Effect, error: Exception) -> None:
    assert attempts(effect).failed(error) > 0


@pytest.mark.parametrize("error", [TooLarge("8 MiB"), OffsetMismatch("ends at 7"), Fenced("w2")])
@pytest.mark.parametrize("effect", list(Effect))
def test_a_final_answer_is_raised_at_once(effect: Effect, error: QuorateError) -> None:
    with pytest.raises(type(error)) as raised:
        attempts(effect).failed(error)
    assert raised.value is error


@pytest.mark.parametrize("doubt", [LOST, UNKNOWN])
def test_what_would_be_done_twice_is_not_sent_again(doubt: Exception) -> None:
    with pytest.raises(OutcomeUnknown, match=str(doubt)):
        attempts(Effect.TWICE).failed(doubt)


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.ONCE])
@pytest.mark.parametrize("doubt", [LOST, UNKNOWN])
def test_what_a_repeat_does_not_change_is_sent_again(effect: Effect, doubt: Exception) -> None:
    assert attempts(effect).failed(doubt) > 0


@pytest.mark.parametrize("error", [Fenced("epoch 9"), TooLarge("8 MiB")])
def test_after_a_doubt_no_refusal_is_a_failure(error: QuorateError) -> None:
    tried = attempts(Effect.ONCE, (Duplicate,))
    tried.failed(LOST)
    with pytest.raises(OutcomeUnknown, match=error.code):
        tried.failed(error)


@pytest.mark.parametrize("settling", [Duplicate, LogExists])
def test_an_error_that_settles_the_doubt_is_raised(settling: type[QuorateError]) -> None:
    tried = attempts(Effect.ONCE, (settling,))
    tried.failed(LOST)
    with pytest.raises(settling):
        tried.failed(settling("it is there"))


def test_a_reader_has_no_doubts() -> None:
    tried = attempts(Effect.NONE)
    tried.failed(LOST)
    with pytest.raises(Fenced):
        tried.failed(Fenced("not a reader's error, but final"))


# -- when the time is up -------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.TWICE])
def test_time_up_while_a_request_is_out_is_an_unknown_outcome(effect: Effect) -> None:
    tried = attempts(effect)
    tried.sent = True
    assert isinstance(tried.expired(), OutcomeUnknown)


def test_time_up_after_a_doubt_is_an_unknown_outcome() -> None:
    tried = attempts(Effect.ONCE)
    tried.failed(LOST)
    tried.failed(OutOfSequence("expected 4, got 9"))
    assert isinstance(error := tried.expired(), OutcomeUnknown)
    assert str(LOST) in str(error)


@pytest.mark.parametrize("effect", list(Effect))
def test_time_up_with_nothing_sent_says_what_was_tried(effect: Effect) -> None:
    tried = attempts(effect)
    tried.failed(UNREACHABLE)
    assert isinstance(error := tried.expired(), Timeout)
    assert str(error) == f"append to orders: {UNREACHABLE} (30 s)"


@pytest.mark.parametrize("effect", list(Effect))
def test_time_up_after_a_refusal_raises_that_refusal(effect: Effect) -> None:
    tried = attempts(effect)
    tried.failed(UNREACHABLE)
    tried.failed(busy := Busy("16384 appends wait already"))
    assert tried.expired() is busy


def test_time_up_while_a_reader_waits_is_a_timeout() -> None:
    tried = attempts(Effect.NONE)
    tried.sent = True
    assert isinstance(tried.expired(), Timeout)


def test_a_request_that_was_answered_is_no_longer_out() -> None:
    tried = attempts(Effect.TWICE)
    tried.sent = True
    tried.failed(Busy("full"))
    assert isinstance(tried.expired(), Busy)


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.TWICE])
def test_nothing_is_begun_that_would_only_be_cut_short(effect: Effect) -> None:
    """A refusal that is known is worth more than an outcome that is not."""
    assert attempts(effect).worthwhile(PATIENCE.last_s + 0.1)
    assert not attempts(effect).worthwhile(PATIENCE.last_s)
    hasty = Attempts("append to orders", effect, 0.2, PATIENCE, random.Random(1))
    assert hasty.worthwhile(0.15)
    assert not hasty.worthwhile(0.1)


def test_a_reader_uses_all_of_its_time() -> None:
    assert attempts(Effect.NONE).worthwhile(0.001)


# -- pauses, redirects, copies -------------------------------------------------------------------


def test_pauses_double_up_to_a_limit_and_vary() -> None:
    tried = attempts(Effect.NONE)
    pauses = [tried.failed(Busy("full")) for _ in range(2000)]
    least, most = PATIENCE.pause_min_s, PATIENCE.pause_max_s
    for number, pause in enumerate(pauses):
        longest = min(most, least * 2.0 ** min(number, 40))
        assert longest / 2 <= pause <= longest
    assert len({round(pause, 9) for pause in pauses[-100:]}) > 50


def test_a_hint_is_followed_at_once_but_not_in_circles() -> None:
    tried = attempts(Effect.TWICE)
    pauses = [
        tried.failed(NotLeader("leader: n2"), redirected=True)
        for _ in range(2 * (PATIENCE.redirects + 1))
    ]
    assert [pause == 0 for pause in pauses] == 2 * ([True] * PATIENCE.redirects + [False])


def test_a_damaged_copy_is_left_for_another_until_none_is_left() -> None:
    tried = attempts(Effect.NONE, copies=3)
    assert [tried.failed(Corrupt("entry 7")) for _ in range(2)] == [0.0, 0.0]
    with pytest.raises(Corrupt):
        tried.failed(Corrupt("entry 7"))


def test_only_what_has_another_way_out_is_given_less_than_the_whole_time() -> None:
    assert attempts(Effect.TWICE).answer_s is None
    assert attempts(Effect.ONCE).answer_s == attempts(Effect.NONE).answer_s == PATIENCE.answer_s
