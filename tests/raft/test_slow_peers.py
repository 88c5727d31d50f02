"""What a leader sends to a peer whose line, or whose disk, takes longer than it waits."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest

from cluster_rig import assert_same, happened, led, raft_state, settle_losing
from core_rig import RESEND_TICKS, WATCHDOG_TICKS
from quorate.raft.messages import Append, Compare, Envelope, keeps_order
from quorate.raft.output import EventKind
from quorate.types import ORIGIN, Index, Term

if TYPE_CHECKING:
    from verification.hand import HandCluster


class SlowLine:
    """Takes so many ticks for entries, and for what stays behind them; for all else no time."""

    def __init__(self, cluster: HandCluster, delay: int) -> None:
        self._cluster = cluster
        self._delay = delay
        self._now = 0
        self._flying: deque[tuple[int, Envelope]] = deque()
        # The last index of each append that it was given.
        self.appends: list[Index] = []

    def run(self, ticks: int) -> None:
        for _ in range(ticks):
            self._now += 1
            self._cluster.tick()
            while self._flying and self._flying[0][0] <= self._now:
                self._cluster.deliver(self._flying.popleft()[1])
            settle_losing(self._cluster, self._take)

    def _take(self, envelope: Envelope) -> bool:
        message = envelope.message
        if not keeps_order(message):
            return False
        # `take` asks twice about each.
        if not self._flying or self._flying[-1][1] is not envelope:
            self._flying.append((self._now + self._delay, envelope))
            if isinstance(message, Append):
                self.appends.append(message.last_index)
        return True


@pytest.mark.parametrize("delay", [RESEND_TICKS + 1, 3 * RESEND_TICKS, 3 * WATCHDOG_TICKS])
def test_what_is_on_its_way_over_a_slow_line_is_not_sent_again(delay: int) -> None:
    cluster = led(2)
    line = SlowLine(cluster, delay)
    for index in (2, 3):
        cluster.propose("n1", b"long")
        line.run(2 * delay)
        assert raft_state(cluster, "n1").committed == index
    line.run(2)
    assert line.appends == [2, 3]
    assert_same(cluster)


def test_what_was_sent_to_a_slow_disk_is_not_sent_again() -> None:
    """It has arrived: the peer says so once it is synced."""
    cluster = led(2)
    cluster.auto_flush = False
    appends = []

    def note(envelope: Envelope) -> bool:
        if isinstance(envelope.message, Append):
            appends.append(envelope)
        return False

    cluster.propose("n1", b"x")
    for _ in range(3 * WATCHDOG_TICKS):
        settle_losing(cluster, note, hung=("n2",))
        cluster.tick()
    assert len({id(envelope) for envelope in appends}) == 1
    assert len(happened(cluster, "n1", EventKind.PEER_STALLED)) == 3
    cluster.run(2)
    assert_same(cluster)


def test_the_first_question_of_a_leader_waits_for_nothing() -> None:
    first, later = (Compare(Term(1), number, ORIGIN) for number in (1, 2))
    assert (keeps_order(first), keeps_order(later)) == (False, True)
