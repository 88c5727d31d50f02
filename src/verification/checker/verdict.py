"""The verdict of the checker: the kinds of violation, and each violation found with its
witnesses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from verification.checker.history import (
    AT_END,
    END_ONLY,
    LINEARIZABLE,
    AppendOperation,
    AppendOutcome,
    ReadOperation,
)
from verification.checker.values import show_values

__all__ = ["HistoryViolation", "LogViolations", "Verdict", "ViolationKind"]

# The first violations of each kind are kept, up to this number. All are counted.
KEPT_PER_KIND = 100


class ViolationKind(Enum):
    """Every way in which a log can break its promises: name, rule, observation."""

    LOST_ACK = "lost ack", "C1", "an acknowledged value is not in the log"
    THIN_ACK = "thin ack", "C1", "a receipt names fewer disks than a majority"
    PHANTOM = "phantom", "C2", "no client sent a value that is in the log or was read"
    DUPLICATE = "duplicate", "C3", "an acknowledged value or a producer's sequence is there twice"
    MISPLACED_ACK = "misplaced ack", "C3", "a receipt names another offset than the value has"
    PRODUCER_ORDER = "producer order", "C4", "a producer's value stands before an earlier one"
    PRODUCER_GAP = "producer gap", "C4", "a producer's value is there, an earlier one is not"
    FAILED_APPEARED = "failed appeared", "C5", "a failed append's value is there or was read"
    UNKNOWN_TWICE = "unknown twice", "C5", "a value without an acknowledgement is there twice"
    ORDER_INVERSION = "order inversion", "C6", "an append stands before one that it came after"
    STALE_READ = (
        "stale read",
        "C6",
        "a linearizable read missed a record acked or read before",
    )
    FUTURE_READ = (
        "future read",
        "C6",
        "a read was over before its records can have been there",
    )
    DIFFERENT_READ = "different read", "C6", "a read shows another value than the log has there"
    VANISHED = "vanished", "C6", "a read shows more records than the log has in the end"
    SESSION_WENT_BACK = "session went back", "C7", "a read shows less than its session had seen"
    OWN_WRITE_MISSING = (
        "own write missing",
        "C7",
        "a read misses a record of its own session",
    )
    TORN_BATCH = "torn batch", "C8", "a batch is not in one piece, or an end was seen inside it"
    REPLICAS_DIFFER = "replicas differ", "C10", "two replicas hold different logs in the end"

    def __init__(self, label: str, rule: str, meaning: str) -> None:
        self.label = label
        self.rule = rule
        self.meaning = meaning

    def __str__(self) -> str:
        return self.label


class HistoryViolation(NamedTuple):
    """One broken rule. The witnesses alone prove it, with the final log where it is named."""

    log: str
    kind: ViolationKind
    message: str
    witnesses: tuple[AppendOperation | ReadOperation, ...]

    @property
    def rule(self) -> str:
        return self.kind.rule

    def __str__(self) -> str:
        return f"{self.rule} {self.kind}: log {self.log}: {self.message}"


@dataclass(slots=True)
class Verdict:
    """The result for all logs together."""

    appends: int = 0
    reads: int = 0
    # Appends whose clients do not know whether they took effect.
    unknown: int = 0
    counts: Counter[ViolationKind] = field(default_factory=Counter)
    # The first of each kind, in the order in which they were found.
    violations: list[HistoryViolation] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return self.appends + self.reads

    def __str__(self) -> str:
        return (
            f"operations={self.operations} appends={self.appends} reads={self.reads} "
            f"unknown={self.unknown} violations={self.counts.total()}"
        )


@dataclass(slots=True)
class LogViolations:
    """Collects the violations that the checks of one log find."""

    verdict: Verdict
    log: str
    # The time at which the first operation began: messages count from it.
    origin: int

    def add(
        self, kind: ViolationKind, text: str, *witnesses: AppendOperation | ReadOperation
    ) -> None:
        counts = self.verdict.counts
        counts[kind] += 1
        if counts[kind] <= KEPT_PER_KIND:
            message = "; ".join([text, *map(self._describe, witnesses)])
            self.verdict.violations.append(HistoryViolation(self.log, kind, message, witnesses))

    def _describe(self, operation: AppendOperation | ReadOperation) -> str:
        who = f"client {operation.client} session {operation.session}"
        when = f"from {self._seconds(operation.start)}"
        if isinstance(operation, AppendOperation):
            return f"{who} appended {_values(operation)} {when}, {self._outcome(operation)}"
        when += f" to {self._seconds(operation.end)}"
        source = f" on {operation.replica}" if operation.replica else ""
        way = "" if operation.way & LINEARIZABLE else ", not linearizable"
        if operation.way & END_ONLY:
            return f"{who} was told the end {operation.first}{source} {when}{way}"
        at_end = " and the end" if operation.way & AT_END else ""
        shown = f"[{operation.first}, {operation.first + operation.count})"
        return f"{who} read {shown}{at_end}{source} {when}{way}"

    def _outcome(self, append: AppendOperation) -> str:
        if append.outcome == AppendOutcome.UNKNOWN:
            return "outcome unknown"
        when = self._seconds(append.end)
        if append.outcome == AppendOutcome.FAILED:
            return f"failed with {append.code} at {when}"
        where = f"offset {append.offset}" if append.offset >= 0 else "an offset not told"
        return f"acked at {when} with {where}"

    def _seconds(self, moment: int) -> str:
        return f"{(moment - self.origin) / 1e9:.6f} s"


def _values(append: AppendOperation) -> str:
    values = show_values(append.value, append.count)
    return f"{values} ({append.producer}, {append.sequence})" if append.producer else values
