"""Space is admitted, not discovered: what the disk is sure to take, and who gets it.

Storage allocates ahead and tells how much room that leaves. Entries are accepted only into it; a
reserve is kept for what a group cannot do without, such as the first entry of a new leader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorate.raft.messages import ROOM_UNBOUNDED
from quorate.types import EntryKind, Term

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.raft.log import Log
    from quorate.raft.messages import Append
    from quorate.replica.durability import Durability

__all__ = ["DROP_BYTES", "NAMES_BYTES", "Allowance"]

# What an entry takes besides a batch: its header, a row of the directory and some padding.
ENTRY_OVERHEAD = 128
# What an entry that names something may take besides: two fences, or the label of a chunk.
NAMES_BYTES = 512
# What each chunk that is staged may take of an entry that drops it.
DROP_BYTES = 8


class Allowance:
    """Room on disk, as far as it is not spoken for."""

    __slots__ = ("_durability", "_reserve", "_term", "asked", "room", "shortage", "wanted")

    def __init__(self, durability: Durability, reserve: int) -> None:
        self._durability = durability
        self._reserve = reserve
        # What the disk takes besides what is under way; None while nothing bounds it.
        self.room: int | None = None
        # Why there is not more of it; empty if there is enough, or soon will be.
        self.shortage = ""
        # Bytes for which the entry that a leader sent found no room; 0 if all did. The fewest for
        # which a client's request found none while this node led. And the term of both: neither may
        # come again after it.
        self.wanted = 0
        self.asked = 0
        self._term = Term(0)

    @property
    def free(self) -> int | None:
        """Bytes that may still be logged; None while nothing bounds them."""
        return None if self.room is None else self.room - self._durability.unwritten_bytes

    @property
    def full(self) -> bool:
        """Whether no more is to be had, and what there is is the reserve, or too little for what
        was sent. What is under way does not count: it soon is no more."""
        room = self.room
        if room is None or not self.shortage:
            return False
        return room <= self._reserve or room < self.wanted

    @property
    def offer(self) -> int:
        """What a leader is told: bytes of entries that this disk takes at most."""
        return self.room if self.room is not None and self.shortage else ROOM_UNBOUNDED

    @property
    def missing(self) -> int:
        """Bytes of the entry that found no room, if it finds none later either: it may be larger
        than any that this node makes."""
        return self.wanted if self.room is not None and self.room < self.wanted else 0

    @property
    def cramped(self) -> bool:
        """Whether not even the first entry of a new leader finds room."""
        free = self.free
        return free is not None and free < ENTRY_OVERHEAD

    def takes(self, size: int, batches: int) -> bool:
        """Whether so many batches, ``size`` bytes together, leave the reserve alone.

        Each may get an entry of its own.
        """
        free = self.free
        return free is None or self.needs(size, batches) <= free

    def takes_later(self, size: int, batches: int) -> bool:
        """The same once nothing is under way."""
        return self.room is None or self.needs(size, batches) <= self.room

    def needs(self, size: int, batches: int) -> int:
        """What so many batches take, with the reserve that must be left."""
        return size + batches * ENTRY_OVERHEAD + self._reserve

    def in_term(self, term: Term) -> None:
        """Forget what found no room in another term."""
        if term != self._term:
            self._term, self.wanted, self.asked = term, 0, 0

    @property
    def lacking(self) -> int:
        """Bytes for which a client's request finds no room either now; 0 if there is none."""
        room = self.room
        return self.asked if room is not None and self.shortage and room < self.asked else 0

    def refused(self, needs: int) -> None:
        """A request of ``needs`` bytes finds no room. The smallest one is the first that another
        leader could take."""
        self.asked = min(needs, self.lacking or needs)

    def fitting(self, message: Append, log: Log) -> Append | None:
        """As much of ``message`` as finds room; None if not even its first entry does.

        What is left out is not acknowledged, so the leader sends it again. What follows an entry
        without room is left out, too: the answer that something is missing before it would make
        the leader send both again at once, and again. Once there is room that is right.
        """
        if not log.holds(message.prev):
            return None if self.missing else message
        if log.holds(message.entries[-1].position):
            return message
        # Only what is stored says that there is room again for what had none.
        self.wanted = 0
        free = self.free
        if free is None:
            return message
        for place, entry in enumerate(message.entries):
            kept = self._kept_from(entry, message.term)
            free -= entry.size
            if free < kept:
                self.in_term(message.term)
                self.wanted = entry.size + kept
                return replace(message, entries=message.entries[:place]) if place else None
        return message

    def _kept_from(self, entry: Entry, term: Term) -> int:
        """What of a full disk is not for ``entry``: the reserve, if the leader of ``term`` logged
        it for a client. What it found in its log it cannot begin without.

        While a spare is being allocated it is not known yet whether the disk is full. An entry may
        take of the reserve then: this needs a segment that is used up to it before that, and costs
        pages that leaders can do without. To keep them would hold up every roll.
        """
        spared = not self.shortage or entry.kind is EntryKind.NOOP or entry.term < term
        return 0 if spared else self._reserve
