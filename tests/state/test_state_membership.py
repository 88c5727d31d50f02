"""The membership in the state: replayed, in the digest, in the checkpoint."""

from __future__ import annotations

import pytest
from state_rig import Scribe, cut, flipped, replayed

from quorate.errors import InvalidArgument, InvariantBroken
from quorate.membership import LoggedMembership, Membership, encode_membership
from quorate.state.state import State
from quorate.types import EntryKind, Index, NodeId

ONE, TWO = (NodeId("n1"),), (NodeId("n2"),)
JOINT = Membership(TWO, outgoing=ONE)


def set_members(scribe: Scribe, membership: Membership) -> None:
    scribe.apply(scribe.make(EntryKind.MEMBERSHIP, encode_membership(membership)))


def changed() -> Scribe:
    scribe = Scribe(time=9)
    scribe.open("p")
    set_members(scribe, Membership(ONE, learners=TWO))
    set_members(scribe, JOINT)
    return scribe


def test_the_state_has_the_newest_membership_and_its_index() -> None:
    scribe = changed()
    assert scribe.state.membership == LoggedMembership(Index(3), JOINT)
    assert State().membership is None
    assert replayed(scribe.entries) == scribe.state


def test_the_membership_is_part_of_the_digest() -> None:
    scribe = changed()
    digests = {scribe.state.digest()}
    other = scribe.state.copy()
    other.membership = LoggedMembership(Index(4), JOINT)
    digests.add(other.digest())
    other.membership = LoggedMembership(Index(3), Membership(ONE))
    digests.add(other.digest())
    other.membership = None
    digests.add(other.digest())
    assert len(digests) == 4


def test_a_checkpoint_brings_the_membership_back() -> None:
    state = changed().state
    again = State.decode(state.sections())
    assert again == state
    assert again.membership == state.membership
    assert [*again.sections()] == [*state.sections()]


def test_a_spoiled_checkpoint_with_a_membership_is_refused() -> None:
    sections = [*changed().state.sections()]
    for spoiled in (*flipped(sections), *cut(sections)):
        with pytest.raises(InvalidArgument):
            State.decode(spoiled)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "no membership"),
        (encode_membership(Membership(ONE)), "cannot follow"),
        (encode_membership(Membership(ONE, outgoing=TWO)), "cannot follow"),
    ],
)
def test_a_membership_that_cannot_follow_halts(body: bytes, problem: str) -> None:
    scribe = changed()
    before = scribe.state.copy()
    with pytest.raises(InvariantBroken, match=problem):
        scribe.state.apply(scribe.make(EntryKind.MEMBERSHIP, body))
    assert scribe.state == before
