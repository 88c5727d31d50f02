"""The membership of a log: it is well-formed, has one encoding, and changes by joint steps only."""

from __future__ import annotations

from itertools import product

import pytest

from quorate.errors import InvalidArgument
from quorate.membership import (
    MEMBERS_MAX,
    VOTERS_MAX,
    Membership,
    check_change,
    decode_membership,
    encode_membership,
)
from quorate.types import NodeId


def nodes(*names: str) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, names))


# Worked out once and written down: entries of this release must be readable by every later one.
WRITTEN = "01 01 0000 02 01 01 00 2a0000000000000001 64 61  02 07 c3a4  01 64 61  04 00 6e342332"
MEMBERSHIP = Membership(
    nodes("a", "ä"),
    learners=nodes("n4#2"),
    outgoing=nodes("a"),
    priorities=((NodeId("n4#2"), 0), (NodeId("ä"), 7)),
    intent=42,
)


def test_a_membership_is_the_written_down_bytes() -> None:
    body = bytes.fromhex(WRITTEN)
    assert encode_membership(MEMBERSHIP) == body
    assert decode_membership(body) == MEMBERSHIP
    assert len(body) % 8 == 0


def test_every_other_body_is_refused_or_is_another_membership() -> None:
    body = encode_membership(MEMBERSHIP)
    for place, bit in product(range(len(body)), range(8)):
        spoiled = bytearray(body)
        spoiled[place] ^= 1 << bit
        try:
            found = decode_membership(bytes(spoiled))
        except InvalidArgument:
            continue
        assert found != MEMBERSHIP
        assert encode_membership(found) == spoiled
    for end in range(len(body)):
        with pytest.raises(InvalidArgument):
            decode_membership(body[:end])
    with pytest.raises(InvalidArgument):
        decode_membership(body + bytes(8))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"voters": ()}, "0 voters"),
        ({"voters": nodes(*map(str, range(VOTERS_MAX + 1)))}, "8 voters"),
        ({"outgoing": nodes(*map(str, range(VOTERS_MAX + 1)))}, "8 outgoing"),
        ({"voters": nodes("n1", "n1")}, "names a node twice"),
        ({"learners": nodes("n9", "n9")}, "names a node twice"),
        ({"learners": nodes("n2")}, "n2 cannot be both voter and learner"),
        ({"learners": nodes(*map(str, range(MEMBERS_MAX)))}, "at most 64 members"),
        ({"learners": nodes("")}, "has 0 bytes, not 1 to 64"),
        ({"learners": nodes("x" * 65)}, "has 65 bytes, not 1 to 64"),
        ({"intent": -1}, "intent is -1"),
        ({"intent": 1 << 64}, "intent is 18446744073709551616"),
        ({"priorities": ((NodeId("n1"), 256),)}, "priority 256"),
        ({"priorities": ((NodeId("n1"), 100),)}, "need not be set"),
        ({"priorities": ((NodeId("n9"), 1),)}, "not members"),
        ({"priorities": ((NodeId("n2"), 1), (NodeId("n1"), 1))}, "not in order"),
        ({"priorities": ((NodeId("n1"), 0), (NodeId("n2"), 0))}, "every voter has priority 0"),
    ],
)
def test_a_membership_that_no_log_may_have_is_refused(
    fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Membership(**{"voters": nodes("n1", "n2"), **fields})  # type: ignore[arg-type]  # its fields


def test_an_outgoing_voter_may_become_a_learner() -> None:
    joint = Membership(nodes("n1"), learners=nodes("n2"), outgoing=nodes("n1", "n2"))
    assert joint.members == nodes("n1", "n2")
    assert decode_membership(encode_membership(joint)) == joint


def test_the_priority_of_a_node_for_which_none_was_set() -> None:
    assert [MEMBERSHIP.priority(node) for node in nodes("a", "ä", "n4#2")] == [100, 7, 0]


OLD, NEW = nodes("n1", "n2", "n3"), nodes("n2", "n3", "n4")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Membership(OLD), Membership(NEW, outgoing=OLD)),
        (Membership(NEW, outgoing=OLD), Membership(NEW)),
        (Membership(OLD), Membership(OLD, learners=nodes("n9"), intent=3)),
    ],
)
def test_the_steps_of_a_change(before: Membership, after: Membership) -> None:
    check_change(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Membership(OLD), Membership(NEW)),
        (Membership(OLD), Membership(NEW, outgoing=nodes("n1"))),
        (Membership(NEW, outgoing=OLD), Membership(OLD)),
        (Membership(NEW, outgoing=OLD), Membership(NEW, outgoing=OLD)),
        (Membership(NEW, outgoing=OLD), Membership(OLD, outgoing=NEW)),
    ],
)
def test_a_step_past_the_joint_membership_is_refused(before: Membership, after: Membership) -> None:
    with pytest.raises(InvalidArgument, match="cannot follow"):
        check_change(before, after)
