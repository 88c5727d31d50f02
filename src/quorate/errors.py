"""Every error of the package, in one tree.

::

    QuorateError                      code, retriable
    ├── NotLeader          NOT_LEADER*          another replica leads, or none does
    ├── NoQuorum           NO_QUORUM*           no majority answered in time; nothing was logged
    ├── Busy               BUSY*                a queue is at its limit; nothing was logged
    ├── Transferring       TRANSFERRING*        the leader is handing over; nothing was logged
    ├── CatchingUp         CATCHING_UP*         a node cannot take this over yet: see the message
    ├── DiskFull           DISK_FULL*           too few disks have room; nothing was logged
    ├── Behind             BEHIND*              this replica lacks records that the caller has seen
    ├── OutOfSequence      OUT_OF_SEQUENCE*     a producer's batch before this one is missing
    ├── Timeout            TIMEOUT*             the time was up before the request had any effect
    ├── OutcomeUnknown     OUTCOME_UNKNOWN      it was logged, its outcome is unknown: no failure
    ├── TooLarge           TOO_LARGE            over a size limit that the message names
    ├── EmptyBatch         EMPTY_BATCH          a batch without records
    ├── LogNotFound        LOG_NOT_FOUND        no log of that name
    ├── LogExists          LOG_EXISTS           a log of that name is there already
    ├── LogRecreated       LOG_RECREATED        the log was deleted and made again meanwhile
    ├── OffsetOutOfRange   OFFSET_OUT_OF_RANGE  past the end of the log
    ├── Trimmed            TRIMMED              before the first offset that is kept
    ├── OffsetMismatch     OFFSET_MISMATCH      the log does not end where the append expects
    ├── Fenced             FENCED               another fence, or a newer epoch, is in force
    ├── Duplicate          DUPLICATE            it is in the log, its offset is no longer kept
    ├── UnknownProducer    UNKNOWN_PRODUCER     never opened, or idle for longer than its expiry
    ├── TooManyProducers   TOO_MANY_PRODUCERS   the log remembers as many as it may
    ├── StageFull          STAGE_FULL           the log holds as many staged bytes as it may
    ├── StageExpired       STAGE_EXPIRED        staged data was dropped before its publish
    ├── ReplayMismatch     REPLAY_MISMATCH      published before under this id, with other rows
    ├── Corrupt            CORRUPT              this replica's copy is damaged there: ask another
    ├── WrongCluster       WRONG_CLUSTER        the node belongs to another cluster
    ├── Unauthorized       UNAUTHORIZED         the caller may not do this
    ├── VersionMismatch    VERSION_MISMATCH     the two sides share no protocol version
    ├── InvalidArgument    INVALID_ARGUMENT     a field is outside its range
    ├── DecodeFailed       DECODE_FAILED        a record does not decode as its pipeline expects
    ├── CheckFailed        CHECK_FAILED         a record does not meet a check of its pipeline
    └── SparkFailed        SPARK_FAILED         a job of Spark failed, or Spark is not there

    ReplicaHalted                     this replica must not go on: not an answer to a client
    ├── Damaged                       a committed entry here differs from that of the leader
    ├── WrongDirectory                the data directory belongs to another node, or is in use
    ├── DiskFailed                    a write or sync failed: the contents of the disk are unknown
    ├── StateDiverged                 this state differs from the majority's state of the same log
    └── InvariantBroken               a rule that the code relies on does not hold

``*`` = retriable: answered only if no entry was logged; of a change of the members, at most the
entry that makes the new nodes learners. A halt is not a :class:`QuorateError`
because no request may be answered with it: it stops the replica, it is never sent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from quorate.types import NodeId

__all__ = [
    "Behind",
    "Busy",
    "CatchingUp",
    "CheckFailed",
    "Corrupt",
    "Damaged",
    "DecodeFailed",
    "DiskFailed",
    "DiskFull",
    "Duplicate",
    "EmptyBatch",
    "Fenced",
    "InvalidArgument",
    "InvariantBroken",
    "LogExists",
    "LogNotFound",
    "LogRecreated",
    "NoQuorum",
    "NotLeader",
    "OffsetMismatch",
    "OffsetOutOfRange",
    "OutOfSequence",
    "OutcomeUnknown",
    "QuorateError",
    "ReplayMismatch",
    "ReplicaHalted",
    "SparkFailed",
    "StageExpired",
    "StageFull",
    "StateDiverged",
    "Timeout",
    "TooLarge",
    "TooManyProducers",
    "Transferring",
    "Trimmed",
    "Unauthorized",
    "UnknownProducer",
    "VersionMismatch",
    "WrongCluster",
    "WrongDirectory",
    "check",
    "code_of",
    "error_for",
]


class QuorateError(Exception):
    """Base of every error that a caller may see."""

    # The same word in every language and on the wire. An error from a release with more codes than
    # this one sets its code on the instance.
    code: str = "ERROR"
    retriable: ClassVar[bool] = False


class NotLeader(QuorateError):
    """``leader`` is the node to ask instead, if the node that refused knows it. The message names
    it as well: programs use the field, people read the message."""

    code = "NOT_LEADER"
    retriable = True

    def __init__(self, message: str, *, leader: NodeId | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class NoQuorum(QuorateError):
    code = "NO_QUORUM"
    retriable = True


class Busy(QuorateError):
    code = "BUSY"
    retriable = True


class Transferring(QuorateError):
    code = "TRANSFERRING"
    retriable = True


class CatchingUp(QuorateError):
    code = "CATCHING_UP"
    retriable = True


class DiskFull(QuorateError):
    code = "DISK_FULL"
    retriable = True


class Behind(QuorateError):
    code = "BEHIND"
    retriable = True


class OutOfSequence(QuorateError):
    code = "OUT_OF_SEQUENCE"
    retriable = True


class Timeout(QuorateError):
    code = "TIMEOUT"
    retriable = True


class OutcomeUnknown(QuorateError):
    code = "OUTCOME_UNKNOWN"


class TooLarge(QuorateError):
    code = "TOO_LARGE"


class EmptyBatch(QuorateError):
    code = "EMPTY_BATCH"


class LogNotFound(QuorateError):
    code = "LOG_NOT_FOUND"


class LogExists(QuorateError):
    code = "LOG_EXISTS"


class LogRecreated(QuorateError):
    code = "LOG_RECREATED"


class OffsetOutOfRange(QuorateError):
    code = "OFFSET_OUT_OF_RANGE"


class Trimmed(QuorateError):
    code = "TRIMMED"


class OffsetMismatch(QuorateError):
    code = "OFFSET_MISMATCH"


class Fenced(QuorateError):
    code = "FENCED"


class Duplicate(QuorateError):
    code = "DUPLICATE"


class UnknownProducer(QuorateError):
    code = "UNKNOWN_PRODUCER"


class TooManyProducers(QuorateError):
    code = "TOO_MANY_PRODUCERS"


class StageFull(QuorateError):
    code = "STAGE_FULL"


class StageExpired(QuorateError):
    code = "STAGE_EXPIRED"


class ReplayMismatch(QuorateError):
    code = "REPLAY_MISMATCH"


class Corrupt(QuorateError):
    code = "CORRUPT"


class WrongCluster(QuorateError):
    code = "WRONG_CLUSTER"


class Unauthorized(QuorateError):
    code = "UNAUTHORIZED"


class VersionMismatch(QuorateError):
    code = "VERSION_MISMATCH"


class InvalidArgument(QuorateError):
    code = "INVALID_ARGUMENT"


class DecodeFailed(QuorateError):
    code = "DECODE_FAILED"


class CheckFailed(QuorateError):
    code = "CHECK_FAILED"


class SparkFailed(QuorateError):
    code = "SPARK_FAILED"


_KNOWN: list[type[QuorateError]] = [QuorateError, *QuorateError.__subclasses__()]
_BY_CODE = {error.code: error for error in _KNOWN}


def error_for(code: str, message: str, leader: NodeId | None = None) -> QuorateError:
    """The error that another process reported. A code that this release does not know is final.

    ``leader`` is that of NOT_LEADER.
    """
    known = _BY_CODE.get(code)
    if known is NotLeader:
        return NotLeader(message, leader=leader)
    if known is not None:
        return known(message)
    error = QuorateError(message)
    error.code = code
    return error


class ReplicaHalted(Exception):
    """The replica stops here; its decisions of this turn are not carried out."""

    @property
    def code(self) -> str:
        """The code of the error in messages, from the name of its class."""
        return code_of(type(self))


def code_of(kind: type[Exception]) -> str:
    """The code of a class of errors: that of ``DiskFailed`` is DISK_FAILED."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper()


class Damaged(ReplicaHalted):
    """A committed entry of this replica is not the one that the group has."""


class WrongDirectory(ReplicaHalted):
    """Starting here would mix two logs, two nodes or two processes."""


class DiskFailed(ReplicaHalted):
    """A log or vote write failed. Retrying would trust pages that may only look clean."""


class StateDiverged(ReplicaHalted):
    """The same entries gave another state here than on the majority, or than at their proposal."""


class InvariantBroken(ReplicaHalted):
    """The code met a state that its rules exclude."""


def check(condition: bool, rule: str) -> None:
    """Stop the replica unless ``rule`` holds. Always on: ``assert`` would vanish under ``-O``."""
    if not condition:
        raise InvariantBroken(rule)
