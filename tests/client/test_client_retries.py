"""What is sent again, what never is, and what a caller is told: without a socket."""

from __future__ import annotations

import random

import pytest

from quorate.client.retries import Idempotency, Lost, Retries, RetryLimits, Unreachable
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

RETRY_LIMITS = RetryLimits()
LOST = Lost("the connection to n1 ended")
UNKNOWN = OutcomeUnknown("logged in term 3, then deposed")
UNREACHABLE = Unreachable("no node could be reached: h:1: Connection refused")


def retries(
    idempotency: Idempotency, conclusive: tuple[type[QuorateError], ...] = (), copies: int = 1
) -> Retries:
    return Retries(
        "append to orders", idempotency, 30.0, RETRY_LIMITS, random.Random(1),
        conclusive=conclusive, copies=copies,
    )  # fmt: skip


@pytest.mark.parametrize("error", [Busy("full"), NotLeader("not I"), UNREACHABLE])
@pytest.mark.parametrize("idempotency", list(Idempotency))
def test_what_was_not_carried_out_is_tried_again(
    idempotency: Idempotency, error: Exception
) -> None:
    assert retries(idempotency).failed(error) > 0


@pytest.mark.parametrize("error", [TooLarge("8 MiB"), OffsetMismatch("ends at 7"), Fenced("w2")])
@pytest.mark.parametrize("idempotency", list(Idempotency))
def test_a_final_answer_is_raised_at_once(idempotency: Idempotency, error: QuorateError) -> None:
    with pytest.raises(type(error)) as raised:
        retries(idempotency).failed(error)
    assert raised.value is error


@pytest.mark.parametrize("unclear", [LOST, UNKNOWN])
def test_what_would_be_done_twice_is_not_sent_again(unclear: Exception) -> None:
    with pytest.raises(OutcomeUnknown, match=str(unclear)):
        retries(Idempotency.UNSAFE).failed(unclear)


@pytest.mark.parametrize("idempotency", [Idempotency.READ_ONLY, Idempotency.IDEMPOTENT])
@pytest.mark.parametrize("unclear", [LOST, UNKNOWN])
def test_what_a_repeat_does_not_change_is_sent_again(
    idempotency: Idempotency, unclear: Exception
) -> None:
    assert retries(idempotency).failed(unclear) > 0


@pytest.mark.parametrize("error", [Fenced("epoch 9"), TooLarge("8 MiB")])
def test_after_a_lost_attempt_no_refusal_is_a_failure(error: QuorateError) -> None:
    tried = retries(Idempotency.IDEMPOTENT, (Duplicate,))
    tried.failed(LOST)
    with pytest.raises(OutcomeUnknown, match=error.code):
        tried.failed(error)


@pytest.mark.parametrize("conclusive", [Duplicate, LogExists])
def test_a_conclusive_error_is_raised(conclusive: type[QuorateError]) -> None:
    tried = retries(Idempotency.IDEMPOTENT, (conclusive,))
    tried.failed(LOST)
    with pytest.raises(conclusive):
        tried.failed(conclusive("it is there"))


def test_a_read_has_no_unknown_outcome() -> None:
    tried = retries(Idempotency.READ_ONLY)
    tried.failed(LOST)
    with pytest.raises(Fenced):
        tried.failed(Fenced("not a reader's error, but final"))


# -- when the time is up -------------------------------------------------------------------------


@pytest.mark.parametrize("idempotency", [Idempotency.IDEMPOTENT, Idempotency.UNSAFE])
def test_time_up_while_a_request_is_out_is_an_unknown_outcome(idempotency: Idempotency) -> None:
    tried = retries(idempotency)
    tried.sent = True
    assert isinstance(tried.expired(), OutcomeUnknown)


def test_time_up_after_a_lost_attempt_is_an_unknown_outcome() -> None:
    tried = retries(Idempotency.IDEMPOTENT)
    tried.failed(LOST)
    tried.failed(OutOfSequence("expected 4, got 9"))
    assert isinstance(error := tried.expired(), OutcomeUnknown)
    assert str(LOST) in str(error)


@pytest.mark.parametrize("idempotency", list(Idempotency))
def test_time_up_with_nothing_sent_says_what_was_tried(idempotency: Idempotency) -> None:
    tried = retries(idempotency)
    tried.failed(UNREACHABLE)
    assert isinstance(error := tried.expired(), Timeout)
    assert str(error) == f"append to orders: {UNREACHABLE} (30 s)"


@pytest.mark.parametrize("idempotency", list(Idempotency))
def test_time_up_after_a_refusal_raises_that_refusal(idempotency: Idempotency) -> None:
    tried = retries(idempotency)
    tried.failed(UNREACHABLE)
    tried.failed(busy := Busy("16384 appends wait already"))
    assert tried.expired() is busy


def test_time_up_while_a_reader_waits_is_a_timeout() -> None:
    tried = retries(Idempotency.READ_ONLY)
    tried.sent = True
    assert isinstance(tried.expired(), Timeout)


def test_a_request_that_was_answered_is_no_longer_out() -> None:
    tried = retries(Idempotency.UNSAFE)
    tried.sent = True
    tried.failed(Busy("full"))
    assert isinstance(tried.expired(), Busy)


@pytest.mark.parametrize("idempotency", [Idempotency.IDEMPOTENT, Idempotency.UNSAFE])
def test_nothing_is_begun_that_would_only_be_cut_short(idempotency: Idempotency) -> None:
    """A refusal that is known is worth more than an outcome that is not."""
    assert retries(idempotency).worthwhile(RETRY_LIMITS.last_s + 0.1)
    assert not retries(idempotency).worthwhile(RETRY_LIMITS.last_s)
    hasty = Retries("append to orders", idempotency, 0.2, RETRY_LIMITS, random.Random(1))
    assert hasty.worthwhile(0.15)
    assert not hasty.worthwhile(0.1)


def test_a_reader_uses_all_of_its_time() -> None:
    assert retries(Idempotency.READ_ONLY).worthwhile(0.001)


# -- pauses, redirects, copies -------------------------------------------------------------------


def test_pauses_double_up_to_a_limit_and_vary() -> None:
    tried = retries(Idempotency.READ_ONLY)
    pauses = [tried.failed(Busy("full")) for _ in range(2000)]
    least, most = RETRY_LIMITS.pause_min_s, RETRY_LIMITS.pause_max_s
    for number, pause in enumerate(pauses):
        longest = min(most, least * 2.0 ** min(number, 40))
        assert longest / 2 <= pause <= longest
    assert len({round(pause, 9) for pause in pauses[-100:]}) > 50


def test_a_hint_is_followed_at_once_but_not_in_circles() -> None:
    tried = retries(Idempotency.UNSAFE)
    pauses = [
        tried.failed(NotLeader("leader: n2"), redirected=True)
        for _ in range(2 * (RETRY_LIMITS.redirects + 1))
    ]
    assert [pause == 0 for pause in pauses] == 2 * ([True] * RETRY_LIMITS.redirects + [False])


def test_a_damaged_copy_is_left_for_another_until_none_is_left() -> None:
    tried = retries(Idempotency.READ_ONLY, copies=3)
    assert [tried.failed(Corrupt("entry 7")) for _ in range(2)] == [0.0, 0.0]
    with pytest.raises(Corrupt):
        tried.failed(Corrupt("entry 7"))


def test_only_what_has_another_way_out_is_given_less_than_the_whole_time() -> None:
    assert retries(Idempotency.UNSAFE).answer_s is None
    assert (
        retries(Idempotency.IDEMPOTENT).answer_s
        == retries(Idempotency.READ_ONLY).answer_s
        == RETRY_LIMITS.answer_s
    )
