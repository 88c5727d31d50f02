"""A checkpoint: a log's applied state in a file of its own, so that a start replays little.

This module does not interpret the state. The file is written under another name, synced and
renamed, so it is always a whole checkpoint, the new one or the one before. It can be made again
from the log, so a bad checkpoint counts as none. A state may be large: it is written and read
section by section::

    offset  size  field
         0     4  magic     "QRCP"
         4     2  version   2
         6     2  reserved  0
         8     8  index     of the last entry in the state
        16     8  term      of that entry
        24     4  chain     of that entry
        28     4  CRC       CRC32C of bytes 0..28

    each section:
         0     4  length    of the section; 0: there are no more, the file ends here
         4     4  CRC       CRC32C of the length and the section, begun with the CRC before it
         8        section

Each CRC goes on from the one before, so the last one stands for the whole file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.storage.vfs import File, Vfs

__all__ = ["CHECKPOINT", "Checkpoint", "read_checkpoint"]

CHECKPOINT = "checkpoint"
MAGIC = b"QRCP"
VERSION = 2

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

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file, section by section."""
        head = _HEAD.pack(MAGIC, VERSION, 0, *self.position)
        proof = crc32c(head)
        yield head + _NUMBER.pack(proof)
        for section in self.sections:
            proof = _proof(section, proof)
            yield b"".join((_SECTION.pack(len(section), proof), section))
        yield _SECTION.pack(0, _proof(b"", proof))

    @staticmethod
    def read(file: File) -> Checkpoint | None:
        """The checkpoint in ``file``; None if a bit of it is not as it was written."""
        head = file.read(0, HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            return None
        magic, version, reserved, index, term, chain = _HEAD.unpack_from(head)
        (proof,) = _NUMBER.unpack_from(head, _HEAD.size)
        if (magic, version, reserved) != (MAGIC, VERSION, 0) or crc32c(head[:-4]) != proof:
            return None
        sections = _read_sections(file, proof)
        if sections is None:
            return None
        return Checkpoint(Position(Index(index), Term(term), chain), sections)


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


def read_checkpoint(vfs: Vfs) -> Checkpoint | None:
    """The checkpoint in ``vfs``; None if there is none that is whole."""
    if CHECKPOINT not in vfs.names():
        return None
    file = vfs.open(CHECKPOINT)
    try:
        return Checkpoint.read(file)
    finally:
        file.close()
