"""The memberships of a log follow its entries both ways (R1)."""

from __future__ import annotations

import pytest

from quorate.entry import (
    HEADER_BYTES,
    Entry,
    decode_entry,
    entry_without_body,
    make_entry,
    parse_header,
)
from quorate.errors import InvariantBroken
from quorate.membership import LoggedMembership, Membership, encode_membership
from quorate.raft.memberships import Memberships
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Position, Term

FIRST = Membership((NodeId("n1"),))
LEARNS = Membership((NodeId("n1"),), learners=(NodeId("n2"),))
JOINT = Membership((NodeId("n2"),), outgoing=(NodeId("n1"),))
LAST = Membership((NodeId("n2"),))


def chain(*memberships: Membership | None) -> list[Entry]:
    """Entries from index 1 on, each with a membership or without one."""
    entries: list[Entry] = []
    before: Position = ORIGIN
    for one in memberships:
        kind = EntryKind.MEMBERSHIP if one is not None else EntryKind.NOOP
        body = encode_membership(one) if one is not None else b""
        entries.append(make_entry(before, Term(1), kind, body))
        before = entries[-1].position
    return entries


def without_body(entry: Entry) -> Entry:
    header = parse_header(entry.header)
    assert header is not None
    return entry_without_body(entry.header, header)


def test_a_membership_counts_from_its_entry_on_and_goes_with_it() -> None:
    memberships = Memberships(FIRST)
    memberships.take(chain(None, LEARNS, None, JOINT, LAST, None))
    assert (memberships.newest, memberships.index) == (LAST, 5)
    for first, newest, index in ((6, LAST, 5), (5, JOINT, 4), (4, LEARNS, 2), (2, FIRST, 0)):
        memberships.cut(Index(first))
        assert (memberships.newest, memberships.index) == (newest, index)
        assert memberships.electorate.voters == {*newest.voters, *newest.outgoing}
        assert memberships.members == newest.members


def test_voters_of_every_membership_that_may_come_back_may_campaign() -> None:
    """Else a log stands still: the voters of the newest one may lack it, and the others, whose logs
    are longer, would refuse them."""
    memberships = Memberships(FIRST)
    memberships.take(chain(JOINT, LAST))
    assert memberships.electorate.voters == {"n2"}
    assert memberships.candidates == {"n1", "n2"}
    memberships.settle(Index(1))
    assert memberships.candidates == {"n1", "n2"}
    memberships.settle(Index(2))
    assert memberships.candidates == {"n2"}


def test_what_is_committed_is_not_kept_twice_and_stays() -> None:
    memberships = Memberships(FIRST)
    memberships.take(chain(LEARNS, JOINT, LAST))
    memberships.settle(Index(2))
    memberships.cut(Index(3))
    assert (memberships.newest, memberships.index) == (JOINT, 2)


def test_a_start_begins_with_the_membership_of_the_state() -> None:
    memberships = Memberships(FIRST)
    entries = chain(LEARNS, JOINT, LAST)
    memberships.take(entries)
    memberships.begin(LoggedMembership(Index(2), JOINT))
    assert (memberships.newest, memberships.index) == (JOINT, 2)
    memberships.take(entries[2:])
    assert (memberships.newest, memberships.index) == (LAST, 3)
    memberships.begin(None)
    assert memberships.newest == JOINT


def test_a_node_that_lost_the_newest_membership_does_not_know_it() -> None:
    memberships = Memberships(FIRST)
    first, second, third = chain(LEARNS, JOINT, LAST)
    known = []
    memberships.take([first, without_body(second)])
    assert memberships.newest == LEARNS
    known.append(memberships.known)
    memberships.take([third])
    known.append(memberships.known)
    for cut in (3, 2):
        memberships.cut(Index(cut))
        known.append(memberships.known)
    assert known == [False, True, False, True]


def test_a_lost_membership_is_known_once_it_is_applied() -> None:
    """The disk gave its entry back later."""
    memberships = Memberships(FIRST)
    first, second = chain(LEARNS, JOINT)
    memberships.take([first, without_body(second)])
    memberships.note_applied(LoggedMembership(Index(1), LEARNS))
    assert (memberships.newest, memberships.known) == (LEARNS, False)
    memberships.note_applied(LoggedMembership(Index(2), JOINT))
    assert (memberships.newest, memberships.index) == (JOINT, 2)
    assert memberships.known
    memberships.take(chain(None, None, LAST)[2:])
    memberships.note_applied(LoggedMembership(Index(2), JOINT))
    assert memberships.newest == LAST


def test_a_membership_of_a_later_release_halts() -> None:
    (entry,) = chain(LEARNS)
    body = b"\2" + entry.body[1:]
    later = make_entry(ORIGIN, Term(1), EntryKind.MEMBERSHIP, body)
    assert decode_entry(later.header + body).size == HEADER_BYTES + len(body)
    with pytest.raises(InvariantBroken, match="upgrade this node"):
        Memberships(FIRST).take([later])
