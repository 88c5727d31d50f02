"""The membership of a log: its voters, its learners, and the entry that changes them.

The body of a MEMBERSHIP entry holds the whole membership. It is little-endian and padded with zeros
to a multiple of 8 bytes, so that the batches of the next entry stay aligned::

    set     version u8, 1, 0 u16, voters u8, outgoing u8, learners u8, 0, intent u64,
            then the voters, the outgoing voters and the learners, each:
            length of name u8, priority u8, name

A membership has exactly one body; any other body is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from quorate.errors import InvalidArgument
from quorate.types import PRIORITY, PRIORITY_MAX, Index, NodeId

__all__ = [
    "MEMBERS_MAX",
    "VOTERS_MAX",
    "LoggedMembership",
    "Membership",
    "check_change",
    "decode_membership",
    "encode_membership",
]

VERSION = 1
VOTERS_MAX = 7
MEMBERS_MAX = 64
# A vote record has room for as many.
NAME_BYTES_MAX = 64
INTENT_MAX = 2**64 - 1

_SET_CODE = 1
_SET = struct.Struct("<BBHBBBBQ")


@dataclass(frozen=True, slots=True)
class Membership:
    """The nodes that vote, and those that only receive entries. Its fields are checked when it is
    made, so every membership is well-formed."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    # The voters before the change that is under way: a majority of both sets is needed. Empty if no
    # change is.
    outgoing: tuple[NodeId, ...] = ()
    # The priorities of the members for which one was set, in the order of their names; 100 if none
    # was set.
    priorities: tuple[tuple[NodeId, int], ...] = ()
    # The number of the request that this membership serves: a leader refuses requests with lower
    # numbers.
    intent: int = 0

    def __post_init__(self) -> None:
        if not 1 <= len(self.voters) <= VOTERS_MAX or len(self.outgoing) > VOTERS_MAX:
            counts = f"{len(self.voters)} voters and {len(self.outgoing)} outgoing ones"
            raise InvalidArgument(f"membership has {counts}; each log has 1 to {VOTERS_MAX} voters")
        if not 0 <= self.intent <= INTENT_MAX:
            raise InvalidArgument(f"intent is {self.intent}, not 0 to {INTENT_MAX}")
        for nodes in (self.voters, self.outgoing, self.learners):
            if len(set(nodes)) != len(nodes):
                raise InvalidArgument(f"membership names a node twice: {', '.join(nodes)}")
        # An outgoing voter may be a learner: after the change it only receives.
        both = set(self.voters) & set(self.learners)
        if both:
            raise InvalidArgument(f"{', '.join(sorted(both))} cannot be both voter and learner")
        if len(self.members) > MEMBERS_MAX:
            raise InvalidArgument(f"a log has at most {MEMBERS_MAX} members")
        for node in self.members:
            if not 1 <= len(node.encode()) <= NAME_BYTES_MAX:
                size = len(node.encode())
                raise InvalidArgument(
                    f"the name of node {node!r} has {size} bytes, not 1 to {NAME_BYTES_MAX}"
                )
        self._check_priorities()

    def _check_priorities(self) -> None:
        named = [node for node, _ in self.priorities]
        if named != sorted(set(named)) or not set(named).issubset(self.members):
            raise InvalidArgument(
                f"priorities name {', '.join(named)}: not members, or not in order"
            )
        for node, priority in self.priorities:
            if not 0 <= priority <= PRIORITY_MAX or priority == PRIORITY:
                raise InvalidArgument(
                    f"priority {priority} of {node} is not 0 to {PRIORITY_MAX}, or need not be set"
                )
        if not any(self.priority(node) for node in self.voters):
            # Such a log would have only leaders that want to be another one.
            raise InvalidArgument("every voter has priority 0: one of them must be able to lead")

    @property
    def members(self) -> tuple[NodeId, ...]:
        """All nodes that hold the log, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))

    @property
    def joint(self) -> bool:
        """Whether a change of voters is under way, so that two majorities are needed."""
        return bool(self.outgoing)

    def __str__(self) -> str:
        parts = [f"voters {', '.join(self.voters)}"]
        if self.outgoing:
            parts.append(f"outgoing {', '.join(self.outgoing)}")
        if self.learners:
            parts.append(f"learners {', '.join(self.learners)}")
        return "; ".join(parts)

    def priority(self, node: NodeId) -> int:
        """The priority of ``node``."""
        return dict(self.priorities).get(node, PRIORITY)


class LoggedMembership(NamedTuple):
    """A membership, and the index of the entry that set it."""

    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    membership: Membership


def check_change(before: Membership, after: Membership) -> None:
    """Refuse a change that could let two majorities decide that share no node. Voters change in two
    steps: to a joint membership with the voters before as outgoing ones, then to its voters alone
    (R5, Raft § 6)."""
    if before.joint:
        allowed = not after.joint and after.voters == before.voters
    elif after.joint:
        allowed = after.outgoing == before.voters
    else:
        allowed = after.voters == before.voters
    if not allowed:
        raise InvalidArgument(f"{after} cannot follow {before}")


def encode_membership(membership: Membership) -> bytes:
    """The body of the entry that sets ``membership``."""
    voters, outgoing, learners = membership.voters, membership.outgoing, membership.learners
    head = _SET.pack(
        VERSION, _SET_CODE, 0, len(voters), len(outgoing), len(learners), 0, membership.intent
    )
    rows = [head]
    for node in (*voters, *outgoing, *learners):
        name = node.encode()
        rows.append(bytes((len(name), membership.priority(node))) + name)
    body = b"".join(rows)
    return body + bytes(-len(body) % 8)


def decode_membership(body: bytes) -> Membership:
    """The membership that ``body`` sets. Raises InvalidArgument for any body that
    :func:`encode_membership` does not make."""
    try:
        version, code, _, voters, outgoing, learners, _, intent = _SET.unpack_from(body)
        if (version, code) != (VERSION, _SET_CODE):
            raise InvalidArgument(
                f"operation {code} of version {version} on a membership is not known"
            )
        members = _members(body, voters + outgoing + learners)
        names = [node for node, _ in members]
    except (struct.error, IndexError, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"body of {len(body)} bytes is no membership: {odd}") from odd
    taken = iter(names)
    membership = Membership(
        voters=tuple(islice(taken, voters)),
        outgoing=tuple(islice(taken, outgoing)),
        learners=tuple(taken),
        priorities=tuple(sorted({(node, each) for node, each in members if each != PRIORITY})),
        intent=intent,
    )
    if encode_membership(membership) != body:
        raise InvalidArgument("membership is encoded in another way than every node does")
    return membership


def _members(body: bytes, count: int) -> list[tuple[NodeId, int]]:
    """Name and priority of ``count`` members behind the head."""
    found: list[tuple[NodeId, int]] = []
    position = _SET.size
    for _ in range(count):
        length, priority = body[position], body[position + 1]
        position += 2 + length
        found.append((NodeId(body[position - length : position].decode()), priority))
    return found
