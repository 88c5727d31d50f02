"""Answers that nobody asked for, from the future or the past: refused by whoever cannot use them.

Stale questions of candidates and old leaders are refused too, but with an answer: tests/paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core_rig import (
    ack,
    append,
    chain,
    compare,
    end,
    heartbeat,
    heartbeat_reply,
    mismatch,
    pre_vote_reply,
    read_index_reply,
    vote,
    vote_reply,
)
from engine_rig import EngineRig
from quorate.raft.messages import HeartbeatReply, Message, VoteReply
from quorate.raft.output import Refusal
from quorate.replica.engine_io import Read
from quorate.types import Role

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = chain(1, 1, 2)


def follower() -> EngineRig:
    """Of n2 in term 3."""
    rig = EngineRig(LOG, term=3)
    rig.hear("n2", heartbeat(3, end(LOG[:2])))
    rig.hear("n3", pre_vote_reply(3))
    return rig


def pre_candidate() -> EngineRig:
    rig = EngineRig(LOG, term=3)
    while rig.engine.role is Role.FOLLOWER:
        rig.tick()
    for peer in ("n2", "n3"):
        rig.hear(peer, pre_vote_reply(3, granted=False, boot=5))
    assert rig.engine.role is Role.PRE_CANDIDATE
    return rig


def candidate() -> EngineRig:
    """In term 3."""
    rig = EngineRig(LOG, term=2)
    while rig.engine.role is Role.FOLLOWER:
        rig.tick()
    rig.hear("n3", pre_vote_reply(2, granted=False, boot=5))
    rig.hear("n2", pre_vote_reply(2, boot=5))
    assert rig.engine.role is Role.CANDIDATE
    return rig


def leader() -> EngineRig:
    """In term 3, with n2 in the stream and n3 still comparing; its log ends at 4."""
    rig = EngineRig(LOG, term=2)
    rig.lead()
    rig.hear("n2", ack(3, 3, number=1))
    rig.hear("n3", heartbeat_reply(3))
    assert (rig.raft.term, rig.raft.log.last_index) == (3, 4)
    return rig


def assert_put_aside(rig: EngineRig, source: str, message: Message, reason: Refusal) -> None:
    """Counted once under ``reason``; nothing else changes and nothing is said."""
    before, refused = rig.picture(), rig.refused()
    effects = rig.hear(source, message)
    assert rig.refused() - refused == {reason: 1}
    assert rig.picture() == before
    assert (effects.sends, effects.answers, effects.events) == ([], [], [])


UNASKED: dict[str, tuple[Callable[[], EngineRig], Message, Refusal]] = {
    "pre-vote to a follower": (follower, pre_vote_reply(3, boot=5), Refusal.NOT_ASKED),
    "pre-vote to a candidate": (candidate, pre_vote_reply(3, boot=5), Refusal.NOT_ASKED),
    "pre-vote to a leader": (leader, pre_vote_reply(3, boot=5), Refusal.NOT_ASKED),
    "pre-vote of another round": (
        pre_candidate,
        pre_vote_reply(3, number=2, boot=5),
        Refusal.NOT_ASKED,
    ),
    "pre-vote of no round": (pre_candidate, pre_vote_reply(3, number=0, boot=5), Refusal.NOT_ASKED),
    "pre-vote of another boot": (pre_candidate, pre_vote_reply(3, boot=4), Refusal.NOT_ASKED),
    "vote to a follower": (follower, vote_reply(3), Refusal.NOT_ASKED),
    "vote to a pre-candidate": (pre_candidate, vote_reply(3), Refusal.NOT_ASKED),
    "vote to a leader": (leader, vote_reply(3), Refusal.NOT_ASKED),
    "vote of an earlier term": (candidate, vote_reply(2), Refusal.NOT_ASKED),
    "ack to a follower": (follower, ack(3, 3), Refusal.NOT_LEADING),
    "ack to a candidate": (candidate, ack(3, 3), Refusal.NOT_LEADING),
    "ack of an earlier term": (leader, ack(2, 3), Refusal.STALE_TERM),
    "ack of the future": (leader, ack(3, 5), Refusal.IMPOSSIBLE_INDEX),
    "ack in a future stream": (leader, ack(3, 4, number=7), Refusal.NOT_ASKED),
    "mismatch to a follower": (follower, mismatch(3, 3, 1), Refusal.NOT_LEADING),
    "mismatch of an earlier term": (leader, mismatch(2, 3, 1), Refusal.STALE_TERM),
    "mismatch in another stream": (leader, mismatch(3, 4, 4, number=7), Refusal.NOT_ASKED),
    "mismatch of the future": (leader, mismatch(3, 9, 5), Refusal.IMPOSSIBLE_INDEX),
    "mismatch with a hint at 0": (leader, mismatch(3, 4, 0), Refusal.IMPOSSIBLE_INDEX),
    "mismatch with a negative hint": (leader, mismatch(3, 4, -2), Refusal.IMPOSSIBLE_INDEX),
    "mismatch with a hint ahead": (leader, mismatch(3, 4, 6), Refusal.IMPOSSIBLE_INDEX),
    "mismatch below the first": (leader, mismatch(3, -1, 0), Refusal.IMPOSSIBLE_INDEX),
    "beat to a follower": (follower, heartbeat_reply(3), Refusal.NOT_LEADING),
    "beat of an earlier term": (leader, heartbeat_reply(2), Refusal.STALE_TERM),
    "beat of a future round": (leader, heartbeat_reply(3, round=1), Refusal.NOT_ASKED),
    "read to a follower": (follower, read_index_reply(3, 3, boot=5), Refusal.NOT_ASKED),
    "read to a leader": (leader, read_index_reply(3, 3, boot=5), Refusal.NOT_ASKED),
}


@pytest.mark.parametrize("case", UNASKED)
def test_an_answer_that_nobody_asked_for(case: str) -> None:
    make, message, reason = UNASKED[case]
    assert_put_aside(make(), "n2", message, reason)


@pytest.mark.parametrize(
    "message", [ack(4, 4), mismatch(4, 4, 1), heartbeat_reply(4)], ids=["ack", "mismatch", "beat"]
)
def test_an_answer_of_a_later_term_ends_the_leadership_and_counts_for_nothing(
    message: Message,
) -> None:
    rig = leader()
    rig.hear("n3", message)
    assert (rig.engine.role, rig.raft.term) == (Role.FOLLOWER, 4)
    assert rig.refused()[Refusal.NOT_LEADING] == 1


def test_an_ack_of_a_negative_index() -> None:
    """It proves nothing, so it must not open a stream either."""
    assert_put_aside(leader(), "n3", ack(3, -1), Refusal.IMPOSSIBLE_INDEX)


def test_an_ack_in_a_stream_that_never_was() -> None:
    """Streams are counted from 1: nothing can answer a question of number 0."""
    assert_put_aside(leader(), "n3", ack(3, 4, number=0), Refusal.NOT_ASKED)


def test_a_read_index_that_cannot_be() -> None:
    """An index below the first would let the read see anything."""
    rig = follower()
    rig.turn(Read(1))
    assert_put_aside(rig, "n2", read_index_reply(3, -1, boot=5), Refusal.IMPOSSIBLE_INDEX)


STALE: dict[str, Message] = {
    "compare": compare(2, end(LOG)),
    "append": append(2, chain(2, after=end(LOG)), end(LOG), committed=4),
    "heartbeat": heartbeat(2, end(LOG)),
}


@pytest.mark.parametrize("make", [follower, pre_candidate, candidate, leader])
@pytest.mark.parametrize("kind", STALE)
def test_a_stale_leader_is_told_and_nothing_else(kind: str, make: Callable[[], EngineRig]) -> None:
    rig = make()
    before = rig.picture()
    (answer,) = rig.hear("n3", STALE[kind]).sends
    assert answer.message == HeartbeatReply(rig.raft.term, 0)
    assert rig.refused()[Refusal.STALE_TERM] == 1
    assert rig.picture() == before


@pytest.mark.parametrize("make", [follower, pre_candidate, candidate, leader])
def test_a_stale_candidate_is_told_and_nothing_else(make: Callable[[], EngineRig]) -> None:
    rig = make()
    before = rig.picture()
    (answer,) = rig.hear("n3", vote(2, end(LOG))).sends
    assert answer.message == VoteReply(rig.raft.term, granted=False)
    assert rig.refused()[Refusal.STALE_TERM] == 1
    assert rig.picture() == before


@pytest.mark.parametrize("make", [follower, leader])
def test_a_vote_while_the_leader_is_heard(make: Callable[[], EngineRig]) -> None:
    assert_put_aside(make(), "n3", vote(9, end(LOG)), Refusal.LEADER_ALIVE)
