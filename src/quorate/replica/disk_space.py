"""The disk space for the entries of one replica.

Entries are accepted only into space that is allocated already: storage allocates ahead and reports
the room that is left for entries. A reserve is kept for entries that a group cannot do without,
such as the first entry of a new leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import ROOM_UNBOUNDED
from quorate.types import EntryKind, Term

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.raft.log import RaftLog
    from quorate.raft.messages import Append
    from quorate.replica.durability import Durability

__all__ = ["DROP_BYTES", "ENTRY_OVERHEAD", "NAMES_BYTES", "DiskSpace"]

# Bytes of an entry besides a batch: its header, a row of the directory and some padding.
ENTRY_OVERHEAD = 128
# Maximum bytes of the names in an entry that has them: two fences, or the label of a chunk.
NAMES_BYTES = 512
# Maximum bytes for each staged chunk in an entry that drops it.
DROP_BYTES = 8
# Entries that no client asks for: they may take the reserve.
_SPARED = frozenset({EntryKind.NOOP, EntryKind.MEMBERSHIP})


class DiskSpace:
    """The room on disk that is not taken yet, and the requests that found none."""

    __slots__ = ("_durability", "_reserve", "_term", "asked", "room", "shortage", "wanted")

    def __init__(self, durability: Durability, reserve: int) -> None:
        self._durability = durability
        self._reserve = reserve
        # Bytes of entries that the disk takes after the last finished flush; None while there is no
        # bound.
        self.room: int | None = None
        # The reason why there is not more room; empty if there is enough, or soon will be.
        self.shortage = ""
        # Bytes needed by the entry of a leader that found no room; 0 if all entries found room. The
        # fewest bytes for which a client's request found none while this node led. And the term of
        # both: neither the entry nor the request may come again after it.
        self.wanted = 0
        self.asked = 0
        self._term = Term(0)

    @property
    def free(self) -> int | None:
        """Bytes that may still be logged; None while there is no bound."""
        return None if self.room is None else self.room - self._durability.unwritten_bytes

    @property
    def may_log(self) -> int:
        """Bytes that may still be logged."""
        room = self.room
        return ROOM_UNBOUNDED if room is None else room - self._durability.unwritten_bytes

    @property
    def on_reserve(self) -> bool:
        """Whether there is a shortage, and the room is only the reserve. Bytes of unfinished
        flushes do not count: soon there are none."""
        return self.room is not None and bool(self.shortage) and self.room <= self._reserve

    @property
    def turned_down(self) -> bool:
        """Whether there is a shortage, and no room for the entry that the leader sent last."""
        return bool(self.shortage) and self.missing > 0

    @property
    def offer(self) -> int:
        """Maximum bytes of entries that this disk takes, as a leader is told."""
        return self.room if self.room is not None and self.shortage else ROOM_UNBOUNDED

    @property
    def missing(self) -> int:
        """Bytes of the entry that found no room, if it finds none after the flushes either: it may
        be larger than each entry that this node makes."""
        return self.wanted if self.room is not None and self.room < self.wanted else 0

    def takes(self, size: int, batches: int) -> bool:
        """Whether there is room for so many batches, ``size`` bytes together, beside the reserve.

        Each batch may get an entry of its own.
        """
        free = self.free
        return free is None or self.needs(size, batches) <= free

    def takes_later(self, size: int, batches: int) -> bool:
        """Whether there is room for them once no flush is under way."""
        return self.room is None or self.needs(size, batches) <= self.room

    def needs(self, size: int, batches: int) -> int:
        """Bytes that so many batches take, with the reserve that must be left."""
        return size + batches * ENTRY_OVERHEAD + self._reserve

    def in_term(self, term: Term) -> None:
        """Forget the entries and requests that found no room in another term."""
        if term != self._term:
            self._term, self.wanted, self.asked = term, 0, 0

    @property
    def lacking(self) -> int:
        """Bytes of the client's request that still finds no room; 0 if there is none."""
        room = self.room
        return self.asked if room is not None and self.shortage and room < self.asked else 0

    def refused(self, needs: int) -> None:
        """Note a request of ``needs`` bytes that finds no room. The smallest such request is the
        first that another leader could take."""
        self.asked = min(needs, self.lacking or needs)

    def fitting(self, message: Append, log: RaftLog) -> int | None:
        """The number of entries of ``message`` that find room or are in ``log`` already, from its
        first one; None if the message must not be answered at all.

        Entries that are left out are not acknowledged, so the leader sends them again. No answer is
        given to entries that follow an entry without room: the answer that entries before them are
        missing would make the leader send both again at once, and again. Once there is room that
        answer is right.
        """
        entries = message.entries
        if not log.holds(message.prev):
            return None if self.missing else len(entries)
        if log.holds(entries[-1].position):
            return len(entries)
        # Only a message with entries to store decides anew about the entry that found no room.
        self.wanted = 0
        free = self.free
        if free is None:
            return len(entries)
        for place, entry in enumerate(entries):
            if log.holds(entry.position):
                continue  # it has its room
            kept = self._kept_from(entry, message.term)
            free -= entry.size
            if free < kept:
                self.in_term(message.term)
                self.wanted = entry.size + kept
                return place
        return len(entries)

    def _kept_from(self, entry: Entry, term: Term) -> int:
        """Bytes of a full disk that ``entry`` may not use: the reserve, if the leader of ``term``
        logged the entry for a client. A leader cannot begin without the older entries of its log,
        and a change of the members that began must end.

        While a spare is being allocated it is not known yet whether the disk is full. An entry may
        take bytes of the reserve then: this needs a segment that is used up to the reserve before
        that, and costs pages that leaders can do without. To keep them would hold up every roll.
        """
        spared = not self.shortage or entry.kind in _SPARED or entry.term < term
        return 0 if spared else self._reserve
