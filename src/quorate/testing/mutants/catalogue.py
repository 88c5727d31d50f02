"""The planted bugs: what each breaks and the text that plants it."""

from __future__ import annotations

from quorate.testing.mutants.adversity import ADVERSITY
from zlib import crc32

from quorate.testing.mutants.consensus import CONSENSUS
from quorate.testing.mutants.identity import IDENTITY
from quorate.testing.mutants.mutant import Mutant
from quorate.testing.mutants.producer import PRODUCER
from quorate.testing.mutants.server import SERVER
from quorate.testing.mutants.service import SERVICE
from quorate.testing.mutants.staging import STAGING
from quorate.testing.mutants.state import STATE
from quorate.testing.mutants.storage import STORAGE

__all__ = ["MUTANTS", "Mutant", "share_of_mutants"]

MUTANTS = (*CONSENSUS, *IDENTITY, *PRODUCER, *STATE, *STAGING, *STORAGE, *ADVERSITY, *SERVER, *SERVICE)
