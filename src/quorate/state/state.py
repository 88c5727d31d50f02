"""The state of one log: what its entries mean, and nothing else.

Applying is pure. The same entries give the same state on every replica, and what an entry says
about itself is checked against what the log led to before it, never against limits, clocks or
settings: those may differ between nodes, and the leader has asked them already.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, InvariantBroken
from quorate.state.checkpoint import Contents, decode_contents, encode_contents
from quorate.state.operations import ExpireProducers, OpenProducer, SetFence, decode_operation
from quorate.state.producers import Producers, Run, hash_item
from quorate.types import EntryKind

if TYPE_CHECKING:
    from quorate.entry import Entry, Stamp
    from quorate.types import Index, Term

__all__ = ["State"]

_CONTROL = frozenset({EntryKind.NOOP, EntryKind.PRODUCER, EntryKind.FENCE})

# What is hashed begins with its sort; a producer is 1, a run is 2.
_STATE_ITEM = 0
_STATE = struct.Struct("<BQQB")
_DIGEST_MASK = 2**64 - 1


class State:
    """Everything that the entries up to some index add up to."""

    __slots__ = ("append_time", "end", "fence", "producers")

    def __init__(self) -> None:
        # The offset that the next record takes.
        self.end = 0
        # Of the last applied entry, in microseconds. Never falls.
        self.append_time = 0
        # What every append must show; None: no append may show any.
        self.fence: str | None = None
        self.producers = Producers()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._contents() == other._contents()

    def _contents(self) -> Contents:
        return Contents(self.end, self.append_time, self.fence, self.producers)

    def copy(self) -> State:
        """Another state with the same contents; what it shares never changes."""
        other = State()
        other.end, other.append_time, other.fence = self.end, self.append_time, self.fence
        other.producers = self.producers.copy()
        return other

    def digest(self) -> int:
        """64 bits that stand for the contents, whatever entries or checkpoint led to them."""
        fence = self.fence or ""
        fields = _STATE.pack(_STATE_ITEM, self.end, self.append_time, self.fence is not None)
        return (hash_item(fields + fence.encode()) + self.producers.digest()) & _DIGEST_MASK

    def expired(self, now_us: int) -> tuple[int, ...]:
        """The epochs that an ExpireProducers may name in an entry with append time ``now_us``."""
        return self.producers.expired(now_us)

    # -- applying ------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Add what ``entry`` means, all of it. If it contradicts the log before it, stop the
        replica rather than differ from the leader, and change nothing."""
        if entry.base_offset != self.end:
            raise InvariantBroken(
                f"entry {entry.index} says that it begins at offset {entry.base_offset}, "
                f"the log ends at {self.end}"
            )
        if entry.append_time < self.append_time:
            raise InvariantBroken(
                f"entry {entry.index} has append time {entry.append_time}, "
                f"the entry before it has {self.append_time}"
            )
        if entry.kind is not EntryKind.DATA:
            self._apply_control(entry)
        elif entry.stamps:
            self._apply_stamps(entry)
        self.end += entry.count
        self.append_time = entry.append_time

    def accept(
        self, count: int, stamp: Stamp | None, index: Index, term: Term, append_time: int
    ) -> Run:
        """Add one batch of the entry that a leader is about to make: what a judge let pass. When
        the entry has all its batches, this state is what applying it gives."""
        run = Run(stamp.sequence if stamp is not None else 0, count, self.end, index, term)
        if stamp is not None:
            self.producers.accept(stamp.epoch, run, append_time)
        self.end += count
        self.append_time = append_time
        return run

    def _apply_stamps(self, entry: Entry) -> None:
        try:
            self.producers.append(entry)
        except InvalidArgument as odd:
            raise InvariantBroken(str(odd)) from odd

    def _apply_control(self, entry: Entry) -> None:
        kind = entry.kind
        if kind not in _CONTROL:
            raise InvariantBroken(
                f"entry {entry.index} is of kind {kind.name}, which this release cannot "
                f"apply: upgrade this node"
            )
        if entry.count or entry.runs or entry.stamps:
            raise InvariantBroken(f"entry {entry.index} is of kind {kind.name} and has records")
        if kind is not EntryKind.NOOP:
            self._apply_operation(entry)

    def _apply_operation(self, entry: Entry) -> None:
        try:
            operation = decode_operation(entry.kind, entry.body)
        except InvalidArgument as odd:
            raise InvariantBroken(
                f"entry {entry.index} cannot be applied by this release: {odd}"
            ) from odd
        match operation:
            case OpenProducer():
                self.producers.open(operation, entry)
            case ExpireProducers(epochs):
                self.producers.expire(epochs, entry)
            case SetFence(fence, expect):
                self._set_fence(fence, expect, entry)

    def _set_fence(self, fence: str | None, expect: str | None, entry: Entry) -> None:
        if expect != self.fence:
            raise InvariantBroken(
                f"entry {entry.index} replaces the fence {expect!r}, the log has {self.fence!r}"
            )
        self.fence = fence

    # -- checkpoints ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as a checkpoint keeps it."""
        return encode_contents(self._contents(), self.digest())

    @staticmethod
    def decode(data: bytes) -> State:
        """The state that :meth:`encode` made ``data`` of. Raises InvalidArgument for anything
        else, a single flipped bit included."""
        state = State()
        contents, digest = decode_contents(data)
        state.end, state.append_time, state.fence, state.producers = contents
        if state.digest() != digest:
            raise InvalidArgument(f"state has digest {state.digest():#x}, not {digest:#x}")
        if state.encode() != data:
            raise InvalidArgument("state has bytes that nobody writes")
        return state
