"""Dense offsets: every record of every data entry takes the next one, nothing else takes any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.entry import CHAINED_BYTES
from quorate.errors import InvariantBroken
from quorate.types import EntryKind

if TYPE_CHECKING:
    from quorate.entry import Entry

__all__ = ["Offsets"]

APPLICABLE = frozenset({EntryKind.DATA, EntryKind.NOOP})


class Offsets:
    """Where the log's records end, after every applied entry."""

    __slots__ = ("end", "hash")

    def __init__(self) -> None:
        # The offset that the next record takes.
        self.end = 0
        # Equal on every replica that applied the same entries.
        self.hash = 0

    def apply(self, entry: Entry) -> None:
        """Stops the replica rather than differ from what the leader wrote into the entry."""
        if entry.kind not in APPLICABLE:
            raise InvariantBroken(
                f"entry {entry.index} is of kind {entry.kind.name}, which this release cannot "
                f"apply: upgrade this node"
            )
        if entry.base_offset != self.end:
            raise InvariantBroken(
                f"entry {entry.index} says that it begins at offset {entry.base_offset}, "
                f"the log ends at {self.end}"
            )
        self.end += entry.count
        # Not the whole header: a CRC run over bytes and their CRC is the same for all of them.
        self.hash = crc32c(entry.header[:CHAINED_BYTES], self.hash)
