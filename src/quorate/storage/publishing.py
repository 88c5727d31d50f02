"""Publishing: writing files that exist as a whole or not at all."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from quorate.storage.disk_errors import PASSING
from quorate.storage.layout import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from quorate.storage.vfs import Vfs

    Plan = Iterator[str]

__all__ = ["derive", "publish", "unlink_unfinished"]

# Bytes that are written between two syncs.
SYNCED_BYTES = 4 << 20


def publish(vfs: Vfs, name: str, pieces: Iterable[bytes]) -> Plan:
    """Write a file as a whole or not at all: under another name, synced, then renamed. A large file
    is also synced in between: a flush may have to wait for one step, never for all of the file."""
    aside = name + UNFINISHED
    position = synced = 0
    with closing(vfs.create(aside)) as file:
        for piece in pieces:
            file.write(position, [piece])
            position += len(piece)
            yield f"write {aside}"
            if position - synced >= SYNCED_BYTES:
                file.sync()
                synced = position
                yield f"sync {aside}"
        file.sync()
        yield f"sync {aside}"
    vfs.rename(aside, name)
    yield f"rename {name}"
    vfs.sync_directory()
    yield f"sync directory for {name}"


def derive(vfs: Vfs, name: str, pieces: Iterable[bytes]) -> Generator[str, None, bool]:
    """Publish a file that can be made again from the frames; False if it cannot be written now."""
    try:
        yield from publish(vfs, name, pieces)
    except OSError as error:
        if error.errno not in PASSING:
            raise
        yield from unlink_unfinished(vfs, name)
        return False
    return True


def unlink_unfinished(vfs: Vfs, name: str) -> Plan:
    with suppress(FileNotFoundError):  # no listing first: that takes a descriptor, too
        vfs.unlink(name + UNFINISHED)
        yield f"unlink {name + UNFINISHED}"
