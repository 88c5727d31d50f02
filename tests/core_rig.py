"""One consensus core on the bench: it is n1 unless told otherwise, and n2, n3, … speak to it.

Messages are built by short functions, so that a test shows only the fields that it is about.
"""

from __future__ import annotations

from dataclasses import fields
from random import Random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, settings

from quorate.config import Config, Limits, Timing
from quorate.entry import Entry, make_entry
from quorate.membership import Membership
from quorate.raft.core import Core
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
    Vote,
    VoteReply,
)
from quorate.types import ORIGIN, BootId, EntryKind, Index, NodeId, Position, Role, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quorate.raft.leader import Leader
    from quorate.raft.output import Event, EventKind, Refusal
    from quorate.raft.progress import Progress
    from quorate.raft.state import RaftState

Sent = list[tuple[NodeId, Message]]
Kind = TypeVar("Kind")

# The same examples on every run, whatever the machine and however slow it is.
FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=100,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)

ELECTION_TICKS = Timing().ticks(Timing().election_ms)
HEARTBEAT_TICKS = Timing().ticks(Timing().heartbeat_ms)
RESEND_TICKS = Timing().ticks(Timing().resend_ms)
READ_TICKS = Timing().ticks(Timing().read_ms)
WATCHDOG_TICKS = Timing().ticks(Timing().watchdog_ms)


def config(**values: int) -> Config:
    """The defaults but for ``values``, whichever section each belongs to."""
    timing = {item.name for item in fields(Timing)}
    return Config(
        Timing(**{name: value for name, value in values.items() if name in timing}),
        Limits(**{name: value for name, value in values.items() if name not in timing}),
    )


def chain(*terms: int, after: Position = ORIGIN, stamp: int = 0) -> tuple[Entry, ...]:
    """Noops of these terms. With another ``stamp`` they are other entries of the same terms."""
    entries = []
    for term in terms:
        entry = make_entry(after, Term(term), EntryKind.NOOP, append_time=stamp)
        entries.append(entry)
        after = entry.position
    return tuple(entries)


def end(entries: Sequence[Entry]) -> Position:
    return entries[-1].position if entries else ORIGIN


# -- messages ----------------------------------------------------------------------------------


def pre_vote(term: int, last: Position = ORIGIN, number: int = 1) -> PreVote:
    return PreVote(Term(term), RequestId(1, number), last)


def pre_vote_reply(term: int, number: int = 1, granted: bool = True, boot: int = 1) -> PreVoteReply:
    return PreVoteReply(Term(term), RequestId(boot, number), granted)


def vote(term: int, last: Position = ORIGIN) -> Vote:
    return Vote(Term(term), last)


def vote_reply(term: int, granted: bool = True) -> VoteReply:
    return VoteReply(Term(term), granted)


def compare(term: int, prev: Position = ORIGIN, number: int = 1) -> Compare:
    return Compare(Term(term), number, prev)


def append(
    term: int,
    entries: Sequence[Entry],
    prev: Position = ORIGIN,
    committed: int = 0,
    number: int = 1,
) -> Append:
    return Append(Term(term), number, prev, tuple(entries), Index(committed))


def ack(term: int, match: int, number: int = 1) -> Ack:
    return Ack(Term(term), number, Index(match))


def mismatch(
    term: int, prev: int, hint_index: int, hint_term: int = 0, number: int = 1
) -> Mismatch:
    return Mismatch(Term(term), number, Index(prev), Index(hint_index), Term(hint_term))


def heartbeat(term: int, committed: Position = ORIGIN, round: int = 0) -> Heartbeat:
    return Heartbeat(Term(term), round, committed)


def heartbeat_reply(term: int, round: int = 0) -> HeartbeatReply:
    return HeartbeatReply(Term(term), round)


def read_index(term: int, number: int = 1, boot: int = 1) -> ReadIndex:
    return ReadIndex(Term(term), RequestId(boot, number))


def read_index_reply(
    term: int, index: int | None, number: int = 1, boot: int = 1
) -> ReadIndexReply:
    return ReadIndexReply(
        Term(term), RequestId(boot, number), None if index is None else Index(index)
    )


def pick(sent: Sent, kind: type[Kind], target: str | None = None) -> list[Kind]:
    """The messages of one kind, to one node or to all."""
    return [
        message for node, message in sent if isinstance(message, kind) and target in (None, node)
    ]


def only(sent: Sent, kind: type[Kind]) -> Kind:
    """The one message that was sent, which is of this kind."""
    (found,) = (message for _, message in sent)
    assert isinstance(found, kind), found
    return found


# -- the core ----------------------------------------------------------------------------------


class CoreRig:
    """A core with its outputs kept: every input here is a turn of its own."""

    def __init__(
        self,
        size: int = 3,
        *,
        name: str = "n1",
        log: Iterable[Entry] = (),
        term: int = 0,
        vote: str | None = None,
        config: Config | None = None,
        seed: int = 0,
        boot: int = 1,
        first: bool = False,
    ) -> None:
        self.name = NodeId(name)
        voters = tuple(NodeId(f"n{number}") for number in range(1, size + 1))
        self.peers = tuple(voter for voter in voters if voter != name)
        self.core = Core(
            self.name,
            Membership(voters),
            config or Config(),
            Random(seed),
            boot=boot,
            term=Term(term),
            vote=NodeId(vote) if vote is not None else None,
            entries=log,
            first_to_campaign=first,
        )
        self.events: list[Event] = []
        self.confirmed: list[tuple[int, Index]] = []
        self.reads_refused: list[int] = []

    @property
    def raft(self) -> RaftState:
        return self.core.raft

    @property
    def leader(self) -> Leader:
        assert self.core.leader is not None
        return self.core.leader

    def role(self) -> Role:
        return self.core.raft.role

    @property
    def terms(self) -> list[int]:
        """The term of each entry in the log."""
        last = self.raft.log.last_index
        return [entry.term for entry in self.raft.log.entries(Index(1), Index(last + 1))]

    def progress(self, peer: str) -> Progress:
        """What this leader knows of ``peer``."""
        return self.leader.progress[NodeId(peer)]

    def refused(self, reason: Refusal) -> int:
        return self.raft.refused[reason]

    def happened(self, kind: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind is kind]

    # -- inputs, each of which ends a turn -----------------------------------------------------

    def hear(self, source: str, message: Message, boot: int = 1) -> Sent:
        self.core.step(NodeId(source), BootId(boot, 0), message)
        return self.finish()

    def tick(self, ticks: int = 1) -> Sent:
        sent: Sent = []
        for _ in range(ticks):
            self.core.tick()
            sent += self.finish()
        return sent

    def persist(self, index: int | None = None) -> Sent:
        """The log up to ``index``, or all of it, and term and vote are on disk."""
        last = self.raft.log.last_index if index is None else Index(index)
        self.core.persisted(last, self.raft.term)
        return self.finish()

    def propose(self, body: bytes = b"x") -> Sent:
        self.leader.append(EntryKind.DATA, body, 1, 0)
        return self.finish()

    def read(self, token: int) -> Sent:
        self.core.read(token)
        return self.finish()

    def finish(self) -> Sent:
        output = self.core.finish()
        self.events += output.events
        self.confirmed += output.reads_confirmed
        self.reads_refused += output.reads_refused
        return output.messages

    # -- ways to a role ------------------------------------------------------------------------

    def time_out(self) -> Sent:
        """Hear nobody until the node looks for votes."""
        for _ in range(2 * ELECTION_TICKS + 1):
            sent = self.tick()
            if self.role() is not Role.FOLLOWER:
                return sent
        raise AssertionError("no campaign within two election timeouts")

    def campaign(self) -> Sent:
        """Time out and win the pre-vote: a candidate whose own vote is not on disk yet."""
        asked = pick(self.time_out(), PreVote)
        sent: Sent = []
        for peer in self.peers[: self.raft.electorate.fewest - 1]:
            reply = PreVoteReply(self.raft.term, asked[0].request, granted=True)
            sent = self.hear(peer, reply)
        assert self.role() is Role.CANDIDATE
        return sent

    def lead(self) -> Sent:
        """Win the next term. The noop is in the log, not on disk."""
        self.campaign()
        sent = self.persist()
        for peer in self.peers[: self.raft.electorate.fewest - 1]:
            sent = self.hear(peer, VoteReply(self.raft.term, granted=True))
        assert self.role() is Role.LEADER
        return sent

    def settle(self) -> None:
        """As leader: bring every peer to the end of the log and commit all of it."""
        self.persist()
        for peer in self.peers:
            self.confirm(peer)

    def confirm(self, peer: str, match: int | None = None) -> Sent:
        """As leader: the peer acks up to ``match``, or everything, in the stream at hand."""
        number = self.progress(peer).number
        last = self.raft.log.last_index if match is None else match
        return self.hear(peer, ack(self.raft.term, last, number))


def leading(size: int = 3, *, settled: bool = True, **options: object) -> CoreRig:
    """A core that just won an election; ``settled``: with its noop committed everywhere."""
    rig = CoreRig(size, **options)  # type: ignore[arg-type]  # handed on as they are
    rig.lead()
    if settled:
        rig.settle()
    return rig


def converse(left: CoreRig, right: CoreRig, sent: Sent, limit: int = 1000) -> Sent:
    """Carry messages to and fro, beginning with those of ``left``, until both are silent.

    Everything is on disk at once. Returns all that was said.
    """
    said: Sent = []
    speaker, listener = left, right
    while True:
        heard = [message for node, message in sent if node == listener.name]
        if not heard:
            return said
        said += [(listener.name, message) for message in heard]
        assert len(said) < limit, "the two do not come to rest"
        sent = []
        for message in heard:
            sent += listener.hear(speaker.name, message)
        sent += listener.persist()
        speaker, listener = listener, speaker
