"""Files that are there as a whole or not at all."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

from quorate.storage.layout import UNFINISHED
from quorate.storage.steps import PASSING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from quorate.storage.vfs import Vfs

    Plan = Iterator[str]

__all__ = ["derive", "publish", "unlink_unfinished"]

# So much is synced at once.
SYNCED_BYTES = 4 << 20


def publish(vfs: Vfs, name: str, pieces: Iterable[bytes]) -> Plan:
    """A whole file or none: written aside, synced, then given its name. A large one is synced
    now and then: a flush may have to wait for a step, and must not wait for all of it."""
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
    """Publish what can be made again from the frames; False if that cannot be done now."""
    try:
        yield from publish(vfs, name, pieces)
    except OSError as error:
        if error.errno not in PASSING:
            raise
        yield from unlink_unfinished(vfs, name)
        return False
    return True


def unlink_unfinished(vfs: Vfs, name: str) -> Plan:
    with suppress(FileNotFoundError):  # not looked for: that takes a file, too
        vfs.unlink(name + UNFINISHED)
        yield f"unlink {name + UNFINISHED}"
