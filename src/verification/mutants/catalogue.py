"""The planted bugs: the rule that each breaks and the text that plants it."""

from __future__ import annotations

from zlib import crc32

from verification.mutants.adversity import ADVERSITY
from verification.mutants.client import CLIENT
from verification.mutants.consensus import CONSENSUS
from verification.mutants.identity import IDENTITY
from verification.mutants.lifecycle import LIFECYCLE
from verification.mutants.member_faults import MEMBER_FAULTS
from verification.mutants.members import MEMBERS
from verification.mutants.mutant import Mutant
from verification.mutants.old_pages import OLD_PAGES
from verification.mutants.opening import OPENING
from verification.mutants.placing import PLACING
from verification.mutants.producer import PRODUCER
from verification.mutants.reading import READING
from verification.mutants.requests import REQUESTS
from verification.mutants.room import ROOM
from verification.mutants.server import SERVER
from verification.mutants.service import SERVICE
from verification.mutants.staging import STAGING
from verification.mutants.state import STATE
from verification.mutants.storage import STORAGE
from verification.mutants.transfer import TRANSFER

__all__ = ["MUTANTS", "Mutant", "share_of_mutants"]

MUTANTS = (
    *CONSENSUS, *ADVERSITY, *ROOM, *IDENTITY, *SERVER, *LIFECYCLE, *SERVICE, *REQUESTS, *PRODUCER,
    *STATE, *STAGING, *STORAGE, *OPENING, *OLD_PAGES, *READING, *CLIENT,
    *TRANSFER, *MEMBERS, *MEMBER_FAULTS, *PLACING,
)  # fmt: skip


def share_of_mutants(part: int, parts: int) -> list[Mutant]:
    """The ``part``-th of so many shares. A mutant's name alone decides in which share it is, so
    that another row in the catalogue moves no mutant to another share."""
    return [mutant for mutant in MUTANTS if crc32(mutant.name.encode()) % parts == part - 1]
