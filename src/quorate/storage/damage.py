"""Damage: the bytes and the entries that a replica lost on its own disk."""

from __future__ import annotations

from typing import NamedTuple

from quorate.types import Index  # noqa: TC001  # a field of a NamedTuple

__all__ = ["AGAIN_ADVICE", "UNREADABLE_ADVICE", "WHOLE_ADVICE", "Damage", "DiskFinding"]

# Advice for an older copy of a log's folder. A replica on that folder alone would vote without the
# votes and acknowledgements that it gave since the copy.
WHOLE_ADVICE = (
    "never put the folder of one log back alone; put the newest copy of the whole data directory "
    "back, which the other nodes refuse if the node was started since it was made, or delete the "
    "log, or go on with the other nodes: this release cannot replace this one yet"
)
# Advice for a disk that does not give back the bytes that were written.
UNREADABLE_ADVICE = (
    "check the disk, and start the node again; if it stays so go on with the other nodes, this "
    "release cannot replace this one yet"
)


# The same advice while the log runs.
AGAIN_ADVICE = "it is read again every few seconds; if it stays so check the disk"


class Damage(NamedTuple):
    """A range of bytes of a file that differ from those that were written there."""

    file: str
    start: int
    stop: int
    # The entries that cannot be read; none if ``last`` is less than ``first``.
    first: Index
    last: Index
    what: str

    @property
    def entries(self) -> int:
        return max(0, self.last - self.first + 1)

    def __str__(self) -> str:
        where = f"{self.file}, bytes {self.start} to {self.stop}: {self.what}"
        if not self.entries:
            return where
        if self.entries == 1:
            return f"{where} (entry {self.first})"
        return f"{where} (entries {self.first} to {self.last})"


class DiskFinding(NamedTuple):
    """What the reads of a running log found out about its disk."""

    # To be reported; None if it was reported before.
    damage: Damage | None = None
    # Entries that are damaged, or that the disk does not give back now.
    bad: tuple[Index, ...] = ()
    # Entries that the disk did not give back for a while, and gives back now.
    readable: tuple[Index, ...] = ()
