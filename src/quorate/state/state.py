"""The state of one log, which is a function of its entries only.

Applying is pure. The same entries give the same state on every replica. The fields of an entry are
checked against the state before it, never against limits, clocks or settings: those may differ
between nodes, and the leader has checked them already.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from quorate.commands import OpenProducer, SetFence
from quorate.entry_body import decode_label, decode_publication, unpack_counts
from quorate.errors import InvalidArgument, InvariantBroken, check
from quorate.membership import (
    LoggedMembership,
    check_change,
    decode_membership,
    encode_membership,
)
from quorate.state.checkpoint import Reading, StateFields, encode_sections
from quorate.state.operations import DropStaged, ExpireProducers, ForgetApps, decode_operation
from quorate.state.producers import Producers, hash_item
from quorate.state.runs import Run
from quorate.state.staging import Staging
from quorate.types import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.entry import Entry
    from quorate.entry_body import Stamp
    from quorate.types import Index, Term

__all__ = ["AGE_STEP_US", "Restoring", "State"]

_CONTROL = frozenset(
    {
        EntryKind.NOOP,
        EntryKind.MEMBERSHIP,
        EntryKind.PRODUCER,
        EntryKind.FENCE,
        EntryKind.STAGE,
    }
)

# The maximum by which a log ages from one entry to the next: ten minutes. It is part of the format:
# all replicas must count alike.
AGE_STEP_US = 600 * 1_000_000

# The first byte of a hashed item is its kind; producers and staging have the kinds 1 to 6.
_STATE_ITEM, _MEMBERSHIP_ITEM = 0, 7
_MEMBERSHIP = struct.Struct("<BQ")
_STATE = struct.Struct("<BQQQB")
_DIGEST_MASK = 2**64 - 1


class State:
    """The state of a log after all entries up to some index."""

    __slots__ = ("age", "append_time", "end", "fence", "membership", "producers", "staging")

    def __init__(self) -> None:
        # The offset that the next record takes.
        self.end = 0
        # The append time of the last applied entry, in microseconds. Never falls.
        self.append_time = 0
        # The time that has passed in the log, in microseconds, by which producers, attempts and
        # apps become idle. Never falls, and is never above the append time.
        self.age = 0
        # The fence that every append must show; None: no append may show a fence.
        self.fence: str | None = None
        # The newest membership that an entry set; None before the first such entry.
        self.membership: LoggedMembership | None = None
        self.producers = Producers()
        self.staging = Staging()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._contents() == other._contents()

    def _contents(self) -> StateFields:
        return StateFields(
            self.end, self.append_time, self.age, self.fence, self.producers, self.staging,
            self.membership,
        )  # fmt: skip

    def copy(self) -> State:
        """Another state with the same contents. The contents that both share never change."""
        other = State()
        other.end, other.append_time, other.age = self.end, self.append_time, self.age
        other.fence, other.membership = self.fence, self.membership
        other.producers, other.staging = self.producers.copy(), self.staging.copy()
        return other

    def digest(self) -> int:
        """A digest of 64 bits. It depends on the contents only, not on the entries or the
        checkpoint that led to them."""
        fence = self.fence or ""
        fields = _STATE.pack(
            _STATE_ITEM, self.end, self.append_time, self.age, self.fence is not None
        )
        tables = self.producers.digest() + self.staging.digest()
        if self.membership is not None:
            head = _MEMBERSHIP.pack(_MEMBERSHIP_ITEM, self.membership.index)
            tables += hash_item(head + encode_membership(self.membership.membership))
        return (hash_item(fields + fence.encode()) + tables) & _DIGEST_MASK

    def expired(self, now_us: int) -> tuple[int, ...]:
        """The epochs that an ExpireProducers may name in an entry with append time ``now_us``."""
        return self.producers.expired(self.age_at(now_us))

    def age_at(self, append_time: int) -> int:
        """The age of the log at a next entry with this append time. A clock that leaps by years
        adds no more than one step to the idle time of a producer, attempt or app; nor does a time
        in which no client could write because no node was up."""
        return self.age + min(append_time - self.append_time, AGE_STEP_US)

    @property
    def work(self) -> int:
        """The number of producers and attempts that were examined one by one, or changed, since
        :meth:`take_work`. It measures cost in the same way on every machine."""
        return self.producers.work + self.staging.attempts.work

    def take_work(self) -> int:
        """Return :attr:`work`, and count from 0 again."""
        work = self.work
        if work:
            self.producers.work = self.staging.attempts.work = 0
        return work

    @property
    def remembers(self) -> bool:
        """True if the state has producers, attempts or apps, which may become idle."""
        return len(self.producers) > 0 or self.staging.crowd > 0

    # -- applying ------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Apply ``entry`` as a whole. An entry that contradicts the log before it raises
        InvariantBroken and leaves the state as it was. That stops the replica, which must not
        differ from the leader."""
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
        age = self.age_at(entry.append_time)
        try:
            if entry.kind is EntryKind.DATA:
                if entry.stamps:
                    self.producers.append(entry, age)
            elif entry.kind is EntryKind.PUBLISH:
                self.staging.publish(*decode_publication(entry), entry, age)
            elif entry.kind is EntryKind.STAGE and entry.runs:
                label, counts = decode_label(entry), unpack_counts(entry)
                alone = not entry.count and len(counts) == 1
                check(alone, f"entry {entry.index} stages more or less than one batch")
                self.staging.stage(label, counts[0], entry, age)
            else:
                self._apply_control(entry, age)
        except InvalidArgument as odd:
            raise InvariantBroken(
                f"entry {entry.index} cannot be applied by this release: {odd}"
            ) from odd
        self.end += entry.count
        self.append_time, self.age = entry.append_time, age

    def accept(
        self, count: int, stamp: Stamp | None, index: Index, term: Term, append_time: int
    ) -> Run:
        """Add one batch, which a judge let pass, of the entry that a leader is about to make. Once
        all batches of the entry are added, this state equals the state after applying the entry."""
        run = Run(stamp.sequence if stamp is not None else 0, count, self.end, index, term)
        age = self.age_at(append_time)
        if stamp is not None:
            self.producers.accept(stamp.epoch, run, age)
        self.end += count
        self.append_time, self.age = append_time, age
        return run

    def _apply_control(self, entry: Entry, age: int) -> None:
        kind = entry.kind
        if kind not in _CONTROL:
            raise InvariantBroken(
                f"entry {entry.index} is of kind {kind.name}, which this release cannot "
                f"apply: upgrade this node"
            )
        if entry.count or entry.runs or entry.stamps:
            raise InvariantBroken(f"entry {entry.index} is of kind {kind.name} and has records")
        if kind is EntryKind.MEMBERSHIP:
            self._set_membership(entry)
        elif kind is not EntryKind.NOOP:
            self._apply_operation(entry, age)

    def _apply_operation(self, entry: Entry, age: int) -> None:
        match decode_operation(entry.kind, entry.body):
            case OpenProducer() as operation:
                self.producers.open(operation, entry, age)
            case ExpireProducers(epochs):
                self.producers.expire(epochs, entry, age)
            case SetFence(fence, expect):
                self._set_fence(fence, expect, entry)
            case DropStaged(reason, attempts):
                self.staging.drop(reason, attempts, entry)
            case ForgetApps(publishes):
                self.staging.forget(publishes, entry)

    def _set_membership(self, entry: Entry) -> None:
        membership = decode_membership(entry.body)
        if self.membership is not None:
            check_change(self.membership.membership, membership)
        self.membership = LoggedMembership(entry.index, membership)

    def _set_fence(self, fence: str | None, expect: str | None, entry: Entry) -> None:
        if expect != self.fence:
            raise InvariantBroken(
                f"entry {entry.index} replaces the fence {expect!r}, the log has {self.fence!r}"
            )
        self.fence = fence

    # -- checkpoints ---------------------------------------------------------------------------

    def sections(self) -> Iterator[bytes]:
        """The sections of a checkpoint of this state, one by one. The state must not change
        meanwhile, so the caller uses a copy."""
        return encode_sections(self._contents(), self.digest)

    @staticmethod
    def decode(sections: Iterable[bytes]) -> State:
        """The state whose :meth:`sections` these are. Raises InvalidArgument for any other bytes, a
        single flipped bit included."""
        restored = Restoring()
        for section in sections:
            restored.take(section)
        return restored.state()


class Restoring:
    """A state that is restored section by section: the cost of each call is that of one section."""

    __slots__ = ("_reading",)

    def __init__(self) -> None:
        self._reading = Reading()

    def take(self, section: bytes) -> None:
        """Add the next section."""
        self._reading.take(section)

    def state(self) -> State:
        """The restored state, after the last section."""
        contents, digest = self._reading.contents, self._reading.digest
        state = State()
        state.end, state.append_time, state.age, state.fence = contents[:4]
        state.producers, state.staging, state.membership = contents[4:]
        if digest is None:
            raise InvalidArgument("state lacks its last section")
        if state.digest() != digest:
            raise InvalidArgument(f"state has digest {state.digest():#x}, not {digest:#x}")
        state.take_work()
        return state
