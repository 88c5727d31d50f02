"""A checkpoint: a log's applied state in a file of its own, so that a start replays little.

What the state holds is nobody's business here. The file is written aside, synced and renamed, so it
is whole or the one before; and it can be made again from the log, so one that is bad is as good as
none::

    offset  size  field
         0     4  magic     "QRCP"
         4     2  version   1
         6     2  reserved  0
         8     8  index     of the last entry in the state
        16     8  term      of that entry
        24     4  chain     of that entry
        28     4  length    of the state
        32     4  CRC       CRC32C of bytes 0..32 and of the state
        36        state
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.types import Index, Position, Term

if TYPE_CHECKING:
    from quorate.storage.vfs import Vfs

__all__ = ["CHECKPOINT", "Checkpoint", "read_checkpoint"]

CHECKPOINT = "checkpoint"
VERSION = 1

_HEAD = struct.Struct("<4sHHQQII")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the entry at ``position``."""

    position: Position
    state: bytes

    def encode(self) -> bytes:
        head = _HEAD.pack(b"QRCP", VERSION, 0, *self.position, len(self.state))
        return b"".join((head, _CRC.pack(crc32c(self.state, crc32c(head))), self.state))

    @staticmethod
    def decode(data: bytes) -> Checkpoint | None:
        """What ``data`` says; None if a bit of it is not as it was written."""
        if len(data) < HEAD_BYTES:
            return None
        magic, version, reserved, index, term, chain, length = _HEAD.unpack_from(data)
        (proof,) = _CRC.unpack_from(data, _HEAD.size)
        state = data[HEAD_BYTES:]
        if (magic, version, reserved, length) != (b"QRCP", VERSION, 0, len(state)):
            return None
        if crc32c(state, crc32c(data[: _HEAD.size])) != proof:
            return None
        return Checkpoint(Position(Index(index), Term(term), chain), state)


def read_checkpoint(vfs: Vfs) -> Checkpoint | None:
    """The checkpoint in ``vfs``; None if there is none that is whole."""
    if CHECKPOINT not in vfs.names():
        return None
    file = vfs.open(CHECKPOINT)
    try:
        return Checkpoint.decode(file.read(0, file.size()))
    finally:
        file.close()
