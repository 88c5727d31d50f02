"""What a producer sends next, and what it makes of answers: no sockets, no clock."""

from __future__ import annotations

import pytest

from quorate.client.produce.tickets import Delivery, Ticket
from quorate.client.produce.window import SendAttempt, Window
from quorate.client.retries import Lost, Unreachable
from quorate.commands import Receipt
from quorate.errors import (
    Busy,
    DiskFull,
    Duplicate,
    Fenced,
    LogRecreated,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    OutOfSequence,
    QuorateError,
    Timeout,
    UnknownProducer,
)

SIZE = 4


def window_with(*counts: int, last_sequence: int = 0) -> tuple[Window, list[Ticket]]:
    """A window with a batch of so many records each; the first expires at 10, the next at 11."""
    window = Window("loader", 7, last_sequence, SIZE)
    tickets = []
    for number, count in enumerate(counts):
        ticket = Ticket()
        ticket.data, ticket.count = b"batch %d" % number, count
        window.add(ticket, 10.0 + number)
        tickets.append(ticket)
    return window, tickets


def sent(window: Window) -> list[SendAttempt]:
    """Everything that is to be sent now."""
    return list(iter(window.next, None))


def receipt(ticket: Ticket, offset: int = 100) -> Receipt:
    return Receipt(offset, ticket.count, 5, 1, 2)


def codes(tickets: list[Ticket]) -> list[str | None]:
    return [
        one.outcome.code if isinstance(one.outcome, QuorateError) else one.outcome and "receipt"
        for one in tickets
    ]


# -- sending -------------------------------------------------------------------------------------


def test_sequences_count_records_from_where_the_log_is() -> None:
    window, tickets = window_with(3, 1, 2, last_sequence=40)
    assert [attempt.ticket for attempt in sent(window)] == tickets
    assert [ticket.sequence for ticket in tickets] == [41, 44, 45]
    assert window.last_sequence == 40


def test_there_is_room_for_as_many_as_the_log_remembers() -> None:
    assert window_with(*[1] * (SIZE - 1))[0].room
    assert not window_with(*[1] * SIZE)[0].room


def test_a_receipt_makes_room_only_when_all_before_have_theirs() -> None:
    """The log remembers the newest batches: the oldest that is asked for must be among them."""
    window, tickets = window_with(1, 1, 1, 1)
    attempts = sent(window)
    window.answered(attempts[1], receipt(tickets[1]))
    assert tickets[1].outcome == receipt(tickets[1])
    assert (window.room, window.last_sequence) == (False, 0)
    window.answered(attempts[0], receipt(tickets[0]))
    assert (window.room, window.last_sequence) == (True, 2)


def test_nothing_is_sent_twice_without_a_reason() -> None:
    window, tickets = window_with(1, 1)
    attempts = sent(window)
    assert window.next() is None
    window.answered(attempts[0], receipt(tickets[0]))
    assert window.next() is None
    assert not window.waiting


@pytest.mark.parametrize(
    "refusal",
    [
        Busy("full"), NotLeader("not I"), NoQuorum("alone"), DiskFull("full"),
        Timeout("waited"), OutOfSequence("goes on with 1"), Lost("gone"),
        OutcomeUnknown("deposed"), Unreachable("nobody"),
    ],
)  # fmt: skip
def test_after_a_refusal_everything_goes_again_from_the_lowest(refusal: Exception) -> None:
    window, tickets = window_with(2, 1, 1)
    attempts = sent(window)
    before = [(one.sequence, one.count, one.data) for one in tickets]
    window.answered(attempts[0], receipt(tickets[0]))
    assert window.answered(attempts[1], refusal)
    again = sent(window)
    assert [attempt.ticket for attempt in again] == tickets[1:]
    assert [(one.sequence, one.count, one.data) for one in tickets[1:]] == before[1:]


def test_what_has_no_answer_yet_goes_again_too() -> None:
    """Its attempt may be lost, and what follows is taken only after it."""
    window, tickets = window_with(1, 1, 1)
    first, second, _ = sent(window)
    assert window.answered(second, Busy("full"))
    assert [attempt.ticket for attempt in sent(window)] == tickets
    assert not window.answered(first, Lost("the connection ended"))


def test_one_refusal_begins_one_round() -> None:
    """What followed the refused batch is refused too, later: by then it is on its way again."""
    window, tickets = window_with(1, 1, 1)
    first, second, third = sent(window)
    assert window.answered(first, Busy("full"))
    assert len(sent(window)) == 3
    assert not window.answered(second, OutOfSequence("goes on with 1"))
    assert not window.answered(third, OutOfSequence("goes on with 1"))
    assert window.next() is None
    assert codes(tickets) == [None, None, None]


def test_a_receipt_of_an_earlier_round_counts() -> None:
    window, tickets = window_with(1, 1)
    first, second = sent(window)
    assert window.answered(first, Lost("the connection ended"))
    window.answered(second, receipt(tickets[1]))
    assert [attempt.ticket for attempt in sent(window)] == tickets[:1]
    assert window.last_sequence == 0


# -- outcomes ------------------------------------------------------------------------------------


def test_a_duplicate_is_in_the_log() -> None:
    window, tickets = window_with(2)
    [attempt] = sent(window)
    window.answered(attempt, Duplicate("its offset is no longer kept"))
    assert codes(tickets) == ["DUPLICATE"]
    assert window.last_sequence == 2
    assert window.error is None
    assert window.idle


@pytest.mark.parametrize(
    "refusal", [Fenced("epoch 9"), UnknownProducer("idle"), LogRecreated("another")]
)
def test_a_final_refusal_ends_what_follows_and_nothing_before(refusal: QuorateError) -> None:
    window, tickets = window_with(1, 1, 1)
    attempts = sent(window)
    window.answered(attempts[1], refusal)
    assert codes(tickets) == [None, refusal.code, refusal.code]
    assert not window.room
    assert window.error is refusal
    window.answered(attempts[0], receipt(tickets[0]))
    assert codes(tickets) == ["receipt", refusal.code, refusal.code]
    assert window.last_sequence == 1
    assert window.idle


def test_what_came_before_a_final_refusal_is_still_sent_again() -> None:
    window, tickets = window_with(1, 1)
    attempts = sent(window)
    window.answered(attempts[1], Fenced("epoch 9"))
    assert window.answered(attempts[0], Busy("full"))
    assert [attempt.ticket for attempt in sent(window)] == tickets[:1]


def test_a_refusal_after_a_lost_attempt_leaves_it_open_what_became_of_it() -> None:
    window, tickets = window_with(1, 1)
    first, second = sent(window)
    window.answered(first, Lost("the connection ended"))
    window.answered(second, Lost("the connection ended"))
    again, _ = sent(window)
    window.answered(again, Fenced("epoch 9"))
    assert codes(tickets) == ["OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"]
    assert "FENCED" in str(tickets[0].outcome)


def test_an_attempt_without_an_answer_counts_as_lost() -> None:
    """The node was given up; its answer may say that it took the batch."""
    window, tickets = window_with(1)
    sent(window)
    window.begin_again()
    [again] = sent(window)
    window.answered(again, Fenced("epoch 9"))
    assert codes(tickets) == ["OUTCOME_UNKNOWN"]


def test_what_was_never_taken_is_surely_not_in_the_log() -> None:
    """The outcome of the first is unknown; the second was refused, and is not sent again."""
    window, tickets = window_with(1, 1)
    first, second = sent(window)
    window.answered(first, Lost("the connection ended"))
    window.answered(second, OutOfSequence("goes on with 1"))
    again = window.next()
    assert again is not None
    window.answered(again, Fenced("epoch 9"))
    assert codes(tickets) == ["OUTCOME_UNKNOWN", "FENCED"]


def test_a_deadline_ends_the_batch_and_all_later_ones() -> None:
    window, tickets = window_with(1, 1, 1)
    attempts = sent(window)
    window.answered(attempts[1], receipt(tickets[1]))
    window.expire(9.9)
    assert codes(tickets) == [None, "receipt", None]
    window.expire(10.0)
    assert codes(tickets) == ["OUTCOME_UNKNOWN", "receipt", "OUTCOME_UNKNOWN"]
    assert isinstance(window.error, OutcomeUnknown)
    assert "open it again" in str(window.error)
    assert window.idle
    assert not window.room


def test_an_answer_after_the_end_changes_nothing() -> None:
    window, tickets = window_with(1)
    [attempt] = sent(window)
    window.expire(10.0)
    assert not window.answered(attempt, receipt(tickets[0]))
    assert codes(tickets) == ["OUTCOME_UNKNOWN"]
    assert window.last_sequence == 0


def test_nobody_takes_it() -> None:
    """Sent or not makes the difference."""
    window, tickets = window_with(1)
    window.refuse(Fenced("closed"))
    assert codes(tickets) == ["FENCED"]
    window, tickets = window_with(1, 1)
    assert window.next() is not None
    window.refuse(Fenced("closed"))
    assert codes(tickets) == ["OUTCOME_UNKNOWN", "FENCED"]


# -- tickets -------------------------------------------------------------------------------------


def test_an_outcome_drops_the_bytes_and_tells_those_who_wait() -> None:
    ticket = Ticket()
    ticket.data, ticket.count = b"batch", 3
    told: list[str] = []
    ticket.when_known(lambda: told.append("before"))
    ticket.resolve(Receipt(100, 3, 5, 1, 2))
    ticket.when_known(lambda: told.append("after"))
    assert told == ["before", "after"]
    assert ticket.data == b""
    assert ticket.receipt(2) == Receipt(102, 1, 5, 1, 2)


def test_everybody_who_asks_gets_an_error_of_his_own() -> None:
    ticket = Ticket()
    ticket.resolve(Fenced("epoch 9"))
    errors = []
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch 9") as caught:
            ticket.receipt(0)
        errors.append(caught.value)
    assert errors[0] is not errors[1]


def test_the_end_of_time_names_the_last_refusal_since_something_was_delivered() -> None:
    window, _ = window_with(1, 1)
    first, second = sent(window)
    window.answered(first, DiskFull("n1: 3 MB are free"))
    [again, _] = sent(window)
    window.answered(second, Busy("of a round that is over"))
    window.answered(again, DiskFull("n1: 2 MB are free"))
    window.expire(10.0)
    assert "in time; the last answer was DISK_FULL: n1: 2 MB are free; open" in str(window.error)

    window, [delivered, _] = window_with(1, 1)
    first, second = sent(window)
    window.answered(second, Busy("not yet"))
    window.answered(first, receipt(delivered))
    window.expire(11.0)
    assert "BUSY" not in str(window.error)


# -- who waits -----------------------------------------------------------------------------------


def test_who_asks_again_and_again_is_not_remembered() -> None:
    ticket = Ticket()
    delivery = Delivery(ticket, 0)
    for _ in range(5):
        with pytest.raises(TimeoutError, match="the batch is still on its way"):
            delivery.result(timeout=0.0)
    assert ticket._waiting == []
    ticket.resolve(Receipt(7, 1, 5, 1, 2))
    assert delivery.result(timeout=0.0).offset == 7
