"""A producer's window against a model of leaders that drop, repeat, refuse and change."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from producer_model import Play

from quorate.commands import Receipt

USUAL = ("add", "add", "send", "send", "arrive", "arrive", "commit", "answer", "answer")
TROUBLE = ("lose", "give_up", "replace_leader")
END = ("wait", "fence")


def steps(*names: str) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 209)), max_size=120)


def run(size: int, last_sequence: int, moves: list[tuple[str, int]]) -> Play:
    play = Play(size, last_sequence)
    for name, number in moves:
        getattr(play, name)(number)
    play.finish()
    play.check()
    return play


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(0, 1), steps(*USUAL, *TROUBLE))
def test_whatever_happens_everything_is_there_once_and_in_order(
    size: int, last_sequence: int, moves: list[tuple[str, int]]
) -> None:
    play = run(size, last_sequence * 1000, moves)
    assert all(isinstance(ticket.outcome, Receipt) for ticket, _ in play.tickets)
    assert len(play.log) == len(play.tickets)
    assert play.window.last_sequence == play.first_sequence + sum(
        stored.records for stored in play.log
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), steps(*USUAL, *TROUBLE, *END))
def test_no_outcome_is_a_lie(size: int, moves: list[tuple[str, int]]) -> None:
    """With deadlines, and somebody who takes over."""
    play = run(size, 0, moves)
    delivered = [isinstance(ticket.outcome, Receipt) for ticket, _ in play.tickets]
    assert (play.window.error is None) == all(delivered)
