"""The planted bugs: what each breaks and the text that plants it."""

from __future__ import annotations

from zlib import crc32

from quorate.testing.mutants.adversity import ADVERSITY
from quorate.testing.mutants.consensus import CONSENSUS
from quorate.testing.mutants.identity import IDENTITY
from quorate.testing.mutants.mutant import Mutant
from quorate.testing.mutants.opening import OPENING
from quorate.testing.mutants.producer import PRODUCER
from quorate.testing.mutants.reading import READING
from quorate.testing.mutants.room import ROOM
from quorate.testing.mutants.server import SERVER
from quorate.testing.mutants.service import SERVICE
from quorate.testing.mutants.staging import STAGING
from quorate.testing.mutants.state import STATE
from quorate.testing.mutants.storage import STORAGE

__all__ = ["MUTANTS", "Mutant", "share_of_mutants"]

MUTANTS = (
    *CONSENSUS, *ADVERSITY, *ROOM, *IDENTITY, *SERVER, *SERVICE, *PRODUCER, *STATE, *STAGING,
    *STORAGE, *OPENING, *READING,
)  # fmt: skip


def share_of_mutants(part: int, parts: int) -> list[Mutant]:
    """The ``part``-th of so many shares. A mutant's name alone decides in which share it is, so
    that another row in the catalogue moves no mutant to another share."""
    return [mutant for mutant in MUTANTS if crc32(mutant.name.encode()) % parts == part - 1]
