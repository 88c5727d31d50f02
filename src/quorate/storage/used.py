"""Whether the folder of a log was ever used: a folder that only was about to be made is no loss."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from quorate.storage.layout import VOTE_COPIES, newest_vote, vote_place
from quorate.storage.vfs import RealVfs

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.layout import LogId

__all__ = ["is_used"]


def is_used(path: Path, identity: LogId) -> bool:
    """True if the folder of a log holds more than a vote record that was never used."""
    vfs = RealVfs(path, read_only=True)
    try:
        names = {*vfs.names()}
        if names - {*VOTE_COPIES} or not all((path / name).is_file() for name in names):
            return True  # nor is a pipe opened: that would wait for its other end
        for name in names:
            with closing(vfs.open(name)) as file:
                copy = file.read(0, file.size())
            # The page of the first record that an open writes: also if it is bad, or of another
            # log.
            if any(copy[vote_place(1) :]):
                return True
            record = newest_vote([copy], identity)
            if record is not None and record.boot > 0:
                return True
        return False
    finally:
        vfs.close()
