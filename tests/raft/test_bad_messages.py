"""What no honest peer sends is counted under its reason and changes nothing else.

This file: messages that are refused whoever receives them. What depends on the receiver's role is
in test_unasked_messages.py, and messages of chance in test_message_fuzz.py.
"""

from __future__ import annotations

from dataclasses import replace

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
    pre_vote,
    pre_vote_reply,
    read_index,
    read_index_reply,
    vote,
    vote_reply,
)
from engine_rig import GROUP, EngineRig
from quorate.entry import make_entry
from quorate.raft.core import FROM_MEMBERS
from quorate.raft.messages import (
    TERM_LEAP_MAX,
    Envelope,
    Message,
    StateHash,
    Transfer,
    TransferRefused,
)
from quorate.raft.output import Refusal
from quorate.types import BootId, EntryKind, GroupId, Index, NodeId, Position, Term

LOG = chain(1, 1, 2)
NEXT = chain(3, after=end(LOG))
# One of each kind, such that it would change something if it were believed.
MESSAGES: dict[str, Message] = {
    "pre-vote": pre_vote(9, end(LOG)),
    "pre-vote reply": pre_vote_reply(9, boot=5),
    "vote": vote(9, end(LOG)),
    "vote reply": vote_reply(9),
    "compare": compare(9, end(LOG)),
    "append": append(9, NEXT, end(LOG), committed=4),
    "ack": ack(9, 4),
    "mismatch": mismatch(9, 3, 1),
    "heartbeat": heartbeat(9, end(LOG)),
    "heartbeat reply": heartbeat_reply(9),
    "read index": read_index(9),
    "read index reply": read_index_reply(9, 4, boot=5),
    "state hash": StateHash(Term(9), Index(256), 1),
    "transfer": Transfer(Term(9), end(LOG), 1),
    "transfer refused": TransferRefused(Term(9), 1),
}
ROLES = ["follower", "leader"]


def rig_as(role: str) -> EngineRig:
    """Both have heard n2 and n3 in boot 5."""
    rig = EngineRig(LOG, term=2)
    for peer in ("n2", "n3"):
        rig.hear(peer, pre_vote_reply(1))
    if role == "leader":
        rig.lead()
    return rig


def assert_refused(rig: EngineRig, reason: Refusal, envelope: Envelope) -> None:
    """The message is counted once, under ``reason``, and the rest is as it was."""
    before, refused = rig.picture(), rig.refused()
    rig.hear(
        envelope.source,
        envelope.message,
        boot=envelope.boot,
        group=envelope.group,
        target=envelope.target,
    )
    assert rig.refused() - refused == {reason: 1}
    assert rig.picture() == before


def envelope(message: Message) -> Envelope:
    return Envelope(GROUP, NodeId("n2"), NodeId("n1"), BootId(5, 0), message)


def test_there_is_one_of_every_kind() -> None:
    kinds = {type(message) for message in MESSAGES.values()}
    assert kinds == set(Message.__args__)


# -- who speaks to whom ------------------------------------------------------------------------

WRONG_ENVELOPES = {
    "another cluster": (Refusal.OTHER_CLUSTER, {"group": GroupId("d", 1)}),
    "another cluster and incarnation": (Refusal.OTHER_CLUSTER, {"group": GroupId("d", 2)}),
    "another incarnation": (Refusal.OTHER_INCARNATION, {"group": GroupId("c", 2)}),
    "another target": (Refusal.NOT_ADDRESSED, {"target": NodeId("n3")}),
    "itself as source": (Refusal.FROM_SELF, {"source": NodeId("n1")}),
    "an earlier boot": (Refusal.EARLIER_BOOT, {"boot": BootId(4, 0)}),
    "a clone's boot": (Refusal.CLONED_BOOT, {"boot": BootId(5, 1)}),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("wrong", WRONG_ENVELOPES)
def test_a_message_with_a_wrong_envelope(wrong: str, kind: str, role: str) -> None:
    reason, fields = WRONG_ENVELOPES[wrong]
    assert_refused(rig_as(role), reason, replace(envelope(MESSAGES[kind]), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("term", [-1, -(1 << 70), 3 + TERM_LEAP_MAX + 1, 1 << 70])
def test_a_term_that_cannot_be(term: int, kind: str, role: str) -> None:
    message = replace(MESSAGES[kind], term=Term(term))
    assert_refused(rig_as(role), Refusal.IMPOSSIBLE_TERM, envelope(message))


@pytest.mark.parametrize("role", ROLES)
def test_an_answer_of_somebody_who_was_not_asked(role: str) -> None:
    """Nor is anything remembered about a node that does not count: names are cheap to make up."""
    rig = rig_as(role)
    for message in MESSAGES.values():
        if type(message) in FROM_MEMBERS:
            stranger = replace(envelope(message), source=NodeId("n9"))
            assert_refused(rig, Refusal.UNKNOWN_PEER, stranger)


@pytest.mark.parametrize(
    "message",
    [vote(0), compare(0), append(0, chain(0)), heartbeat(0)],
    ids=["vote", "compare", "append", "heartbeat"],
)
def test_nobody_stands_or_leads_in_term_0(message: Message) -> None:
    """The first election is in term 1: before it there is nobody to vote for or to follow."""
    rig = EngineRig()
    rig.hear("n2", pre_vote_reply(0))
    assert_refused(rig, Refusal.IMPOSSIBLE_TERM, envelope(message))


# -- positions ---------------------------------------------------------------------------------

WRONG_POSITIONS = {
    "below the first": (Refusal.IMPOSSIBLE_INDEX, Position(Index(-1), Term(0), 0)),
    "origin with a term": (Refusal.IMPOSSIBLE_INDEX, Position(Index(0), Term(1), 0)),
    "origin with a chain": (Refusal.IMPOSSIBLE_INDEX, Position(Index(0), Term(0), 7)),
    "an entry of term 0": (Refusal.IMPOSSIBLE_TERM, Position(Index(2), Term(0), 7)),
    "an entry of a negative term": (Refusal.IMPOSSIBLE_TERM, Position(Index(2), Term(-3), 7)),
    "an entry of a later term": (Refusal.IMPOSSIBLE_TERM, Position(Index(2), Term(10), 7)),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", ["pre-vote", "vote", "compare", "append", "heartbeat"])
@pytest.mark.parametrize("wrong", WRONG_POSITIONS)
def test_a_position_that_cannot_be(wrong: str, kind: str, role: str) -> None:
    reason, position = WRONG_POSITIONS[wrong]
    messages: dict[str, Message] = {
        "pre-vote": pre_vote(9, position),
        "vote": vote(9, position),
        "compare": compare(9, position),
        "append": append(9, NEXT, position),
        "heartbeat": heartbeat(9, position),
    }
    assert_refused(rig_as(role), reason, envelope(messages[kind]))


# -- entries -----------------------------------------------------------------------------------

TWO = chain(3, 3, after=end(LOG))
FORGED = replace(TWO[1], header=TWO[1].header[:16] + b"\xff" + TWO[1].header[17:])
OTHER = make_entry(end(LOG), Term(3), EntryKind.DATA, b"?")
BORROWED = replace(TWO[0], header=OTHER.header)
WRONG_APPENDS: dict[str, tuple[Refusal, Message]] = {
    "no entries": (Refusal.IMPOSSIBLE_INDEX, append(9, (), end(LOG))),
    "negative commit": (Refusal.IMPOSSIBLE_INDEX, append(9, TWO, end(LOG), committed=-1)),
    "later term": (Refusal.IMPOSSIBLE_TERM, append(9, chain(10, after=end(LOG)), end(LOG))),
    "gap after prev": (Refusal.BROKEN_CHAIN, append(9, TWO[1:], end(LOG))),
    "gap within": (Refusal.BROKEN_CHAIN, append(9, (LOG[0], LOG[2]))),
    "wrong order": (Refusal.BROKEN_CHAIN, append(9, (TWO[1], TWO[0]), end(LOG))),
    "repeated": (Refusal.BROKEN_CHAIN, append(9, (TWO[0], TWO[0]), end(LOG))),
    "of another log": (Refusal.BROKEN_CHAIN, append(9, TWO, end(chain(1, 1, 2, stamp=7)))),
    "falling term": (Refusal.BROKEN_CHAIN, append(9, chain(1, after=end(LOG)), end(LOG))),
    "forged": (Refusal.BROKEN_CHAIN, append(9, (TWO[0], FORGED), end(LOG))),
    "other body": (
        Refusal.BROKEN_CHAIN,
        append(
            9,
            (replace(TWO[0], header=make_entry(end(LOG), Term(3), EntryKind.DATA, b"?").header),),
            end(LOG),
        ),
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("wrong", WRONG_APPENDS)
def test_entries_that_cannot_be(wrong: str, role: str) -> None:
    reason, message = WRONG_APPENDS[wrong]
    assert_refused(rig_as(role), reason, envelope(message))
