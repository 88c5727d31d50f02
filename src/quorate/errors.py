"""Every error of the package, in one tree.

::

    QuorateError                     code, retriable
    ├── NotLeader          NOT_LEADER*         another replica leads, or none does
    ├── NoQuorum           NO_QUORUM*          no majority answered in time; nothing was logged
    ├── Busy               BUSY*               a queue is at its limit; nothing was logged
    ├── OutcomeUnknown     OUTCOME_UNKNOWN     it was logged, its fate was not learnt: not a failure
    ├── DiskFull           DISK_FULL*          no room for it on enough disks; nothing was logged
    ├── Corrupt            CORRUPT             this replica's copy is damaged there: ask another
    ├── TooLarge           TOO_LARGE           over a size limit that the message names
    ├── EmptyBatch         EMPTY_BATCH         a batch without records
    └── InvalidArgument    INVALID_ARGUMENT    a field is outside its range

    ReplicaHalted                    this replica must not go on: not an answer to anybody
    ├── Damaged                      what was committed here differs from what the leader has
    ├── WrongDirectory               the data directory belongs to somebody else, or is in use
    ├── DiskFailed                   a write or sync failed: what is on disk is no longer known
    └── InvariantBroken              a rule that the code relies on does not hold

``*`` = retriable: answered only if nothing was logged. A halt is not a :class:`QuorateError`
because nobody may answer with it: it stops the process, it is never sent.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "Busy",
    "Corrupt",
    "Damaged",
    "DiskFailed",
    "DiskFull",
    "EmptyBatch",
    "InvalidArgument",
    "InvariantBroken",
    "NoQuorum",
    "NotLeader",
    "OutcomeUnknown",
    "QuorateError",
    "ReplicaHalted",
    "TooLarge",
    "WrongDirectory",
    "check",
]


class QuorateError(Exception):
    """Base of every error that a caller may see."""

    code: ClassVar[str] = "ERROR"
    retriable: ClassVar[bool] = False


class NotLeader(QuorateError):
    code = "NOT_LEADER"
    retriable = True


class NoQuorum(QuorateError):
    code = "NO_QUORUM"
    retriable = True


class Busy(QuorateError):
    code = "BUSY"
    retriable = True


class DiskFull(QuorateError):
    code = "DISK_FULL"
    retriable = True


class Corrupt(QuorateError):
    code = "CORRUPT"


class OutcomeUnknown(QuorateError):
    code = "OUTCOME_UNKNOWN"


class TooLarge(QuorateError):
    code = "TOO_LARGE"


class EmptyBatch(QuorateError):
    code = "EMPTY_BATCH"


class InvalidArgument(QuorateError):
    code = "INVALID_ARGUMENT"


class ReplicaHalted(Exception):
    """The replica stops here; what it had decided in this turn is not carried out."""


class Damaged(ReplicaHalted):
    """A committed entry of this replica is not the one that the group has."""


class WrongDirectory(ReplicaHalted):
    """Starting here would mix two logs, two nodes or two processes."""


class DiskFailed(ReplicaHalted):
    """A log or vote write failed. Retrying would trust pages that may only look clean."""


class InvariantBroken(ReplicaHalted):
    """The code met a state that its rules exclude."""


def check(condition: bool, rule: str) -> None:
    """Stop the replica unless ``rule`` holds. Always on: ``assert`` would vanish under ``-O``."""
    if not condition:
        raise InvariantBroken(rule)
