"""One engine on the bench, with a disk that is done at once and a picture of all its state."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import TYPE_CHECKING, Any

from core_rig import config as make_config
from core_rig import pre_vote_reply, vote_reply
from quorate.config import Config
from quorate.membership import Membership
from quorate.raft.messages import Envelope
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Deliver, Effects, Flushed, Input
from quorate.storage.recovery.result import Recovered
from quorate.types import BootId, GroupId, NodeId, Role, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.entry import Entry
    from quorate.raft.messages import Message
    from quorate.raft.output import Refusal
    from quorate.raft.state import RaftState

GROUP = GroupId("c", 1)
BOOT = BootId(5, 0)
VOTERS = (NodeId("n1"), NodeId("n2"), NodeId("n3"))
# What no refused message may change is everything but these.
NOT_STATE = frozenset(
    {"refused", "config", "_handlers", "_in_any_role", "_from_leader", "_to_leader"}
)


class EngineRig:
    """n1 of three, in boot 5; its peers speak in boot 5 as well unless a test says otherwise."""

    def __init__(self, log: Sequence[Entry] = (), term: int = 0, **limits: int) -> None:
        recovered = Recovered(VoteRecord(1, Term(term), None, 5), tuple(log))
        settings = make_config(**limits) if limits else Config()
        self.now_ms = 0
        membership = Membership(VOTERS)
        self.engine = Engine(GROUP, VOTERS[0], membership, settings, recovered, Random(1), 0)

    @property
    def raft(self) -> RaftState:
        return self.engine.core.raft

    def refused(self) -> Counter[Refusal]:
        return Counter(self.raft.refused)

    def turn(self, *inputs: Input) -> Effects:
        """One turn; a flush that comes of it is done at once."""
        effects = self.engine.turn(inputs, self.now_ms)
        flush = effects.flush
        while flush is not None:
            more = self.engine.turn([Flushed(flush.number)], self.now_ms)
            effects.sends += more.sends
            effects.answers += more.answers
            effects.events += more.events
            flush = more.flush
        return effects

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.now_ms += self.engine.config.timing.tick_ms
            self.turn()

    def hear(
        self,
        source: str,
        message: Message,
        *,
        boot: BootId = BOOT,
        group: GroupId = GROUP,
        target: str = "n1",
    ) -> Effects:
        envelope = Envelope(group, NodeId(source), NodeId(target), boot, message)
        return self.turn(Deliver(envelope))

    def lead(self) -> None:
        while self.engine.role is Role.FOLLOWER:
            self.tick()
        self.hear("n2", pre_vote_reply(self.raft.term, boot=5))
        self.hear("n2", vote_reply(self.raft.term))
        assert self.engine.role is Role.LEADER

    def picture(self) -> object:
        """All of the engine's state, comparable; refusal counters left out."""
        return freeze(self.engine)


def freeze(thing: Any) -> object:
    """``thing`` and everything it holds, as plain values."""
    if isinstance(thing, dict):
        return [(freeze(key), freeze(value)) for key, value in thing.items()]
    if isinstance(thing, list | tuple | deque):
        return [freeze(item) for item in thing]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, Random):
        return thing.getstate()
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    if slots and not isinstance(thing, int | str | bytes):
        return [(name, freeze(getattr(thing, name))) for name in slots if name not in NOT_STATE]
    return thing
