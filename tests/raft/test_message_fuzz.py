"""Well-typed messages of chance: refused or handled, but never more than that.

Nothing lowers committed or touches what is committed; nothing is raised but Damaged, and that
exactly when the message contradicts a committed entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_rig import FUZZ, chain, end, heartbeat
from engine_rig import EngineRig
from quorate.errors import Damaged
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Heartbeat,
    HeartbeatReply,
    Message,
    Mismatch,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestId,
    Transfer,
    TransferRefused,
    Vote,
    VoteReply,
)
from quorate.replica.engine_io import LinkClosed, LinkRefused, Propose, Read
from quorate.types import BootId, Index, NodeId, Position, Term

if TYPE_CHECKING:
    from quorate.entry import Entry

LOG = chain(1, 1, 2, 2, 3)
COMMITTED = 2
# Logs that agree with LOG up to some index and go on in another way, and one that never agrees.
BRANCHES = [
    (*LOG[:shared], *chain(*terms, after=end(LOG[:shared]), stamp=9))
    for shared in range(6)
    for terms in ((3,), (3, 4), (4, 4, 5))
]

# Mostly terms and senders that count: what is refused at the door teaches little.
terms = st.sampled_from(
    [Term(term) for term in (1, 2, *[3] * 12, *[4] * 12, 5, 6, -1, 0, 1 << 31, 1 << 33)]
)
indexes = st.integers(-2, 10).map(Index)
numbers = st.integers(-1, 5)
requests = st.builds(RequestId, st.integers(4, 6), st.integers(0, 3))
branches = st.sampled_from([LOG, *BRANCHES])


@st.composite
def positions(draw: st.DrawFn) -> Position:
    if draw(st.integers(0, 9)) == 0:
        return Position(draw(indexes), draw(terms), draw(st.integers(0, 3)))
    branch = draw(branches)
    return end(branch[: draw(st.integers(0, len(branch)))])


@st.composite
def appends(draw: st.DrawFn) -> Append:
    branch = draw(branches)
    start = draw(st.integers(0, len(branch)))
    stop = draw(st.integers(start, len(branch)))
    entries: tuple[Entry, ...] = branch[start:stop]
    prev = draw(positions()) if draw(st.integers(0, 9)) == 0 else end(branch[:start])
    return Append(draw(terms), draw(numbers), prev, entries, draw(indexes))


messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVote, terms, requests, positions()),
    st.builds(PreVoteReply, terms, requests, st.booleans()),
    st.builds(Vote, terms, positions(), st.booleans()),
    st.builds(Transfer, terms, positions(), terms),
    st.builds(TransferRefused, terms, terms),
    st.builds(VoteReply, terms, st.booleans()),
    st.builds(Compare, terms, numbers, positions()),
    appends(),
    appends(),
    st.builds(Ack, terms, numbers, indexes),
    st.builds(Mismatch, terms, numbers, indexes, indexes, terms),
    st.builds(Heartbeat, terms, numbers, positions()),
    st.builds(HeartbeatReply, terms, numbers, unfit=st.booleans()),
    st.builds(ReadIndex, terms, requests),
    st.builds(ReadIndexReply, terms, requests, st.one_of(st.none(), indexes)),
)
sources = st.sampled_from(["n1", "n9", *["n2"] * 9, *["n3"] * 9])
boots = st.sampled_from([BootId(4, 0), BootId(5, 1), BootId(6, 0), *[BootId(5, 0)] * 40])
inputs = st.lists(
    st.tuples(sources, boots, messages, st.sampled_from([*[0] * 9, 1, 12, 130])),
    min_size=12,
    max_size=30,
)


def contradicts(rig: EngineRig, message: Message) -> bool:
    """Whether ``message`` says of a committed entry that it is another one."""
    raft = rig.raft
    claimed: list[Position] = []
    if isinstance(message, Compare | Append):
        claimed.append(message.prev)
    if isinstance(message, Append):
        claimed += [entry.position for entry in message.entries]
    if isinstance(message, Heartbeat):
        claimed.append(message.committed)
    return any(
        0 < position.index <= raft.committed and not raft.log.holds(position)
        for position in claimed
    )


def with_commits(role: str) -> EngineRig:
    rig = EngineRig(LOG, term=3, held_messages=16)
    rig.hear("n2", heartbeat(3, end(LOG[:COMMITTED])))
    if role == "leader":
        rig.lead()
        rig.turn(Propose(1, b"", 1), Read(2))
    elif role == "reading":
        rig.turn(Read(2), LinkClosed(NodeId("n2")), LinkRefused(NodeId("n2")))
    elif role == "alone":
        rig.tick(250)
    assert rig.raft.committed == COMMITTED
    return rig


@pytest.mark.parametrize("role", ["follower", "reading", "alone", "leader"])
@settings(FUZZ, max_examples=200)
@given(inputs)
def test_messages_of_chance_do_no_harm(
    role: str, schedule: list[tuple[str, BootId, Message, int]]
) -> None:
    rig = with_commits(role)
    for source, boot, message, ticks in schedule:
        raft = rig.raft
        committed = raft.log.position(raft.committed)
        term, vote, refused = raft.term, raft.vote, rig.refused()
        contradiction = contradicts(rig, message)
        try:
            said = rig.hear(source, message, boot=boot).sends
        except Damaged:
            assert contradiction
            assert raft.log.holds(committed)
            return
        followed = raft.leader == source and rig.refused() == refused
        assert not (contradiction and followed)
        for reply in said:
            if isinstance(reply.message, VoteReply) and reply.message.granted:
                assert raft.vote == reply.target
        rig.tick(ticks)
        assert raft.committed >= committed.index
        assert raft.log.holds(committed)
        assert raft.term >= term
        assert raft.term > term or vote is None or raft.vote == vote
        assert rig.engine.applied == raft.committed
        assert rig.engine.durability.held <= 16
