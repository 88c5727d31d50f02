"""What a leader knows of a peer: the window fills, empties and never goes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.raft.progress import PADDING_BYTES, Progress, ProgressState
from quorate.types import Index, NodeId


def streaming(match: int = 0) -> Progress:
    peer = Progress(NodeId("n2"), Index(match + 1), clock=0)
    peer.acked(Index(match), clock=0)
    peer.stream()
    return peer


def test_a_peer_begins_with_a_question() -> None:
    peer = Progress(NodeId("n2"), Index(8), clock=5, number=3)
    assert (peer.state, peer.match, peer.next, peer.number) == (ProgressState.COMPARE, 0, 8, 3)
    assert (peer.heard_at, peer.moved_at, peer.sent_at) == (5, 5, None)


def test_what_is_sent_is_in_the_window_until_it_is_acked() -> None:
    peer = streaming()
    for last, size in ((2, 100), (3, 50), (7, 10)):
        peer.sent(Index(last), size, clock=4)
    assert (len(peer.inflight), peer.inflight_bytes, peer.next) == (3, 160, 8)
    peer.acked(Index(3), clock=5)
    assert (len(peer.inflight), peer.inflight_bytes, peer.next) == (1, 10, 8)
    peer.acked(Index(7), clock=6)
    assert (len(peer.inflight), peer.inflight_bytes, peer.sent_at) == (0, 0, None)


def test_an_ack_in_the_middle_of_a_message_leaves_it_in_the_window() -> None:
    peer = streaming()
    peer.sent(Index(5), 100, clock=1)
    assert peer.acked(Index(3), clock=2)
    assert (peer.match, len(peer.inflight), peer.sent_at) == (3, 1, 2)


def test_the_oldest_unacked_append_keeps_the_time() -> None:
    peer = streaming()
    peer.sent(Index(1), 1, clock=10)
    peer.sent(Index(2), 1, clock=20)
    assert peer.sent_at == 10
    peer.acked(Index(1), clock=30)
    assert peer.sent_at == 30


def test_an_ack_that_is_no_news_changes_nothing() -> None:
    peer = streaming(match=4)
    peer.sent(Index(5), 1, clock=1)
    assert not peer.acked(Index(4), clock=9)
    assert not peer.acked(Index(0), clock=9)
    assert (peer.match, peer.sent_at, peer.moved_at) == (4, 1, 0)


def test_an_ack_ahead_of_what_was_sent_moves_next() -> None:
    peer = streaming()
    peer.sent(Index(1), 1, clock=1)
    peer.acked(Index(9), clock=2)
    assert (peer.match, peer.next, len(peer.inflight)) == (9, 10, 0)


def test_an_answered_question_is_no_longer_out() -> None:
    peer = Progress(NodeId("n2"), Index(8), clock=0)
    peer.sent(Index(8), 1, clock=3)
    peer.stream()
    assert (peer.state, peer.sent_at) == (ProgressState.APPEND, None)


def test_comparing_empties_the_window_and_never_asks_below_match() -> None:
    peer = streaming(match=4)
    peer.sent(Index(9), 90, clock=1)
    peer.compare(Index(2))
    assert (peer.state, peer.next, peer.sent_at) == (ProgressState.COMPARE, 5, None)
    assert (len(peer.inflight), peer.inflight_bytes) == (0, 0)
    peer.compare(Index(8))
    assert peer.next == 8


def test_an_ack_while_comparing_does_not_restart_the_question() -> None:
    peer = Progress(NodeId("n2"), Index(8), clock=0)
    peer.sent_at = 3
    peer.acked(Index(2), clock=9)
    assert (peer.match, peer.sent_at, peer.state) == (2, 3, ProgressState.COMPARE)


STEPS = st.lists(
    st.tuples(st.sampled_from(["sent", "acked", "compare", "stream"]), st.integers(0, 30)),
    max_size=60,
)


@FUZZ
@given(STEPS)
def test_the_window_adds_up_whatever_comes(steps: list[tuple[str, int]]) -> None:
    peer = streaming()
    match = 0
    for clock, (name, value) in enumerate(steps):
        streams = peer.state is ProgressState.APPEND
        if name == "sent" and streams:
            peer.sent(Index(peer.next + value), 1 + value, clock)
        elif name == "acked":
            assert peer.acked(Index(value), clock) == (value > match)
            match = max(match, value)
        elif name == "compare":
            peer.compare(Index(value))
        elif name == "stream" and not streams:
            peer.stream()
        assert peer.match == match
        assert peer.next > peer.match
        assert peer.inflight_bytes == sum(size for _, size in peer.inflight)
        assert all(last > match for last, _ in peer.inflight)
        assert list(peer.inflight) == sorted(peer.inflight)


def test_what_was_sent_after_a_peer_told_its_room_takes_some_of_it() -> None:
    peer = streaming()
    peer.sent(Index(1), 100, clock=1)
    peer.sent(Index(2), 50, clock=1)
    assert peer.since_told == 150 + 2 * PADDING_BYTES
    peer.acked(Index(1), clock=2)
    assert peer.since_told == 150 + 2 * PADDING_BYTES  # what it told before does not know of that
    peer.tells_room(5000, full=False)
    assert (peer.room, peer.full, peer.since_told) == (5000, False, 50 + PADDING_BYTES)


def test_a_peer_lacks_an_entry_since_that_was_found_first() -> None:
    peer = streaming(match=4)
    peer.block(clock=7)
    assert (peer.state, peer.lacks, peer.lacks_since) == (ProgressState.BLOCKED, 5, 7)
    peer.compare(Index(5))
    peer.block(clock=90)
    assert peer.lacks_since == 7
    peer.acked(Index(5), clock=95)
    peer.block(clock=99)
    assert (peer.lacks, peer.lacks_since) == (6, 99)
