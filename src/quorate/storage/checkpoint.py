"""A checkpoint: a log's applied state in a file of its own, so that a start replays little.

This module does not interpret the state. The file is written under another name, synced and
renamed, so it is always a whole checkpoint, the new one or the one before. It can be made again
from the log, so a bad checkpoint counts as none. A state may be large: it is written and read
section by section::

    offset  size  field
         0     4  magic     "QRCP"
         4     2  version   3
         6     2  reserved  0
         8     8  index     of the last entry in the state
        16     8  term      of that entry
        24     4  chain     of that entry
        28     4  CRC       CRC32C of bytes 0..28, begun with the CRC32C of the log's id

    each section:
         0     4  length    of the section; 0: there are no more, the file ends here
         4     4  CRC       CRC32C of the length and the section, begun with the CRC before it
         8        section

Each CRC goes on from the one before, so the last one stands for the whole file. The first one goes
on from the id of the log: the checkpoint of another log reads as a bad one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from crc32c import crc32c

from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quorate.storage.layout import LogId
    from quorate.storage.vfs import File, Vfs

__all__ = ["CHECKPOINT", "Checkpoint", "read_checkpoint", "read_position"]

Result = TypeVar("Result")

CHECKPOINT = "checkpoint"
MAGIC = b"QRCP"
VERSION = 3

_HEAD = struct.Struct("<4sHHQQI")
_NUMBER = struct.Struct("<I")
_SECTION = struct.Struct("<II")
HEAD_BYTES = _HEAD.size + _NUMBER.size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The applied state of a log after the entry at ``position``."""

    position: Position
    # The sections of the state; none is empty. A checkpoint to be written may produce them lazily,
    # so they are iterated only once.
    sections: Iterable[bytes]

    def pieces(self, log: LogId) -> Iterator[bytes]:
        """The bytes of the file beside ``log``, section by section."""
        head = _HEAD.pack(MAGIC, VERSION, 0, *self.position)
        proof = crc32c(head, log.seed)
        yield head + _NUMBER.pack(proof)
        for section in self.sections:
            proof = _proof(section, proof)
            yield b"".join((_SECTION.pack(len(section), proof), section))
        yield _SECTION.pack(0, _proof(b"", proof))

    @staticmethod
    def read(file: File, log: LogId) -> Checkpoint | None:
        """The checkpoint of ``log`` in ``file``; None if a bit of it is not as it was written."""
        head = _read_head(file, log)
        if head is None:
            return None
        position, proof = head
        sections = _read_sections(file, proof)
        return None if sections is None else Checkpoint(position, sections)


def _read_head(file: File, log: LogId) -> tuple[Position, int] | None:
    """The position of a checkpoint and the CRC of its head; None if the head is bad."""
    head = file.read(0, HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        return None
    magic, version, reserved, index, term, chain = _HEAD.unpack_from(head)
    (proof,) = _NUMBER.unpack_from(head, _HEAD.size)
    if (magic, version, reserved) != (MAGIC, VERSION, 0) or crc32c(head[:-4], log.seed) != proof:
        return None
    return Position(Index(index), Term(term), chain), proof


def _proof(section: bytes, before: int) -> int:
    return crc32c(section, crc32c(_NUMBER.pack(len(section)), before))


def _read_sections(file: File, proof: int) -> list[bytes] | None:
    """The sections in ``file``; None unless all are whole. Each section is one read, so that other
    threads get the interpreter in between."""
    position, size = HEAD_BYTES, file.size()
    sections: list[bytes] = []
    while size - position >= _SECTION.size:
        length, claimed = _SECTION.unpack(file.read(position, _SECTION.size))
        position += _SECTION.size
        section = file.read(position, length) if length <= size - position else b""
        proof = _proof(section, proof)
        if len(section) != length or proof != claimed:
            return None
        if not length:
            return sections if position == size else None
        sections.append(section)
        position += length
    return None


def read_checkpoint(vfs: Vfs, log: LogId) -> Checkpoint | None:
    """The checkpoint of ``log`` in ``vfs``; None if there is none that is whole."""
    return _read(vfs, log, Checkpoint.read)


def read_position(vfs: Vfs, log: LogId) -> Position | None:
    """The position of the checkpoint of ``log`` in ``vfs``; None if there is none, or its head is
    bad.

    A checkpoint covers only entries that are durable on the same disk. So its head alone proves
    that these were, also if the state behind it rotted.
    """
    head = _read(vfs, log, _read_head)
    return None if head is None else head[0]


def _read(vfs: Vfs, log: LogId, read: Callable[[File, LogId], Result | None]) -> Result | None:
    if CHECKPOINT not in vfs.names():
        return None
    file = vfs.open(CHECKPOINT)
    try:
        return read(file, log)
    finally:
        file.close()
