"""The rule "persist, then answer": the flush that a message needs, and the proof a flush gives.

At most one flush is under way; changes made meanwhile go into the next. Each has a write number,
rising by one. A message that leaves carries its sender's term, so it needs the flush that holds
the newest term and vote; an ack needs the flush that holds the entry it names as well.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorate.errors import check
from quorate.raft.messages import Ack, Envelope
from quorate.storage.flusher import Flush
from quorate.types import Index, NodeId, Term

if TYPE_CHECKING:
    from quorate.entry import Entry
    from quorate.raft.log import LogChange

__all__ = ["Durability"]


class Durability:
    """The changes on disk and on their way there, and the messages that wait for a flush."""

    __slots__ = (
        "_entries", "_flying_bytes", "_flying_number", "_flying_proves", "_flying_term", "_held",
        "_held_max", "_next_bytes", "_next_number", "_sure", "_term", "_truncate_from", "_vote",
        "_vote_dirty", "_vote_number", "flushed", "persisted", "persisted_term",
    )  # fmt: skip

    def __init__(self, term: Term, vote: NodeId | None, persisted: Index, held_max: int) -> None:
        self._term, self._vote = term, vote
        self._vote_dirty = False
        self._sure = False
        # The changes of the log that the next flush will hold.
        self._truncate_from: Index | None = None
        self._entries: list[Entry] = []
        # Bytes of entries for the next flush, and in the flush that is under way.
        self._next_bytes = 0
        self._flying_bytes = 0
        self._next_number = 1
        # The flush that is under way: 0 if none. The index that it will prove falls with every
        # truncation.
        self._flying_number = 0
        self._flying_proves = persisted
        self._flying_term = term
        # The newest flush that holds a vote record.
        self._vote_number = 0
        # The newest finished flush, and the index and term that it proves.
        self.flushed = 0
        self.persisted = persisted
        self.persisted_term = term
        # (write number, message): messages that wait, in the order in which they were made.
        self._held: deque[tuple[int, Envelope]] = deque()
        self._held_max = held_max

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of entries that are not known to be on disk."""
        return self._next_bytes + self._flying_bytes

    @property
    def held(self) -> int:
        return len(self._held)

    def note_vote(self, term: Term, vote: NodeId | None) -> None:
        """Take a changed term or vote: messages made from now on need the next flush."""
        self._term, self._vote = term, vote
        self._vote_dirty = True
        self._vote_number = self._next_number

    def note_sure(self) -> None:
        """Let the next flush clear ``unsure`` in the vote record: the log has again all entries
        that it may have lost."""
        self._sure = True

    def note_log(self, change: LogChange) -> None:
        first = change.truncate_from
        if first is not None:
            # No flush proves an entry that was written before and is cut now: a late completion of
            # an overwritten entry must not count for the entry that took its place.
            self.persisted = min(self.persisted, Index(first - 1))
            self._flying_proves = min(self._flying_proves, Index(first - 1))
            while self._entries and self._entries[-1].index >= first:
                self._next_bytes -= self._entries.pop().size
            if self._truncate_from is None or first < self._truncate_from:
                self._truncate_from = first
        self._entries.extend(change.entries)
        self._next_bytes += sum(entry.size for entry in change.entries)

    def send(self, envelope: Envelope, ready: list[Envelope]) -> None:
        """Put ``envelope`` into ``ready``, or hold it until the flush that it needs is done."""
        need = self._need(envelope)
        if need <= self.flushed:
            ready.append(envelope)
            return
        if len(self._held) >= self._held_max:
            self._held.popleft()  # like a loss on the network: its receiver asks again
        self._held.append((need, envelope))

    def _need(self, envelope: Envelope) -> int:
        message = envelope.message
        if type(message) is not Ack or message.match <= self.persisted:
            return self._vote_number
        in_flight = self._flying_number and message.match <= self._flying_proves
        return max(self._vote_number, self._flying_number if in_flight else self._next_number)

    def next_flush(self, committed: Index) -> Flush | None:
        """The next flush, if there are changes and no flush is under way."""
        dirty = self._vote_dirty or self._sure or self._entries or self._truncate_from is not None
        if self._flying_number or not dirty:
            return None
        flush = Flush(
            self._next_number,
            (self._term, self._vote) if self._vote_dirty else None,
            self._truncate_from,
            tuple(self._entries),
            committed,
            self._sure,
        )
        self._flying_number = self._next_number
        self._flying_term = self._term
        self._flying_proves = self._entries[-1].index if self._entries else self.persisted
        self._next_number += 1
        self._vote_dirty = self._sure = False
        self._truncate_from = None
        self._entries = []
        self._flying_bytes, self._next_bytes = self._next_bytes, 0
        return flush

    def finish(self, number: int, term: Term, ready: list[Envelope]) -> None:
        """Finish flush ``number``: count its proof and release the messages that waited for it.

        A held message of an earlier term is dropped: its receiver has to hear the newer one.
        """
        check(number == self._flying_number, "the flush under way is the one that finishes")
        self._flying_number = 0
        self._flying_bytes = 0
        self.flushed = number
        self.persisted = self._flying_proves
        self.persisted_term = self._flying_term
        waiting: deque[tuple[int, Envelope]] = deque()
        for need, envelope in self._held:
            if envelope.message.term < term:
                continue
            if need <= number:
                ready.append(envelope)
            else:
                waiting.append((need, envelope))
        self._held = waiting
