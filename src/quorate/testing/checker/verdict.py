"""What the checker says: the kinds of violation, and each one found with its witnesses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from quorate.testing.checker.history import AT_END, END_ONLY, LINEARIZABLE, Append, Outcome, Read
from quorate.testing.checker.values import show_values

__all__ = ["Findings", "Kind", "Verdict", "Violation"]

# Of each kind so many are kept. All are counted.
KEPT_PER_KIND = 100


class Kind(Enum):
    """Every way in which a log can break its word: name, rule, what was seen."""

    LOST_ACK = "lost ack", "C1", "an acknowledged value is not in the log"
    THIN_ACK = "thin ack", "C1", "a receipt names fewer disks than a majority"
    PHANTOM = "phantom", "C2", "nobody sent a value that is in the log or was read"
    DUPLICATE = "duplicate", "C3", "an acknowledged value or a producer's sequence is there twice"
    MISPLACED_ACK = "misplaced ack", "C3", "a receipt names another offset than the value has"
    PRODUCER_ORDER = "producer order", "C4", "a producer's value stands before an earlier one"
    PRODUCER_GAP = "producer gap", "C4", "a producer's value is there, an earlier one is not"
    FAILED_APPEARED = "failed appeared", "C5", "a failed append's value is there or was read"
    UNKNOWN_TWICE = "unknown twice", "C5", "a value without an acknowledgement is there twice"
    ORDER_INVERSION = "order inversion", "C6", "an append stands before one that it came after"
    STALE_READ = "stale read", "C6", "a linearizable read missed what was acked or read before"
    FUTURE_READ = "future read", "C6", "a read was over before what it shows can have been there"
    DIFFERENT_READ = "different read", "C6", "a read shows another value than the log has there"
    VANISHED = "vanished", "C6", "a read shows more records than the log has in the end"
    SESSION_WENT_BACK = "session went back", "C7", "a read shows less than its session had seen"
    OWN_WRITE_MISSING = "own write missing", "C7", "a read misses what its session had appended"
    TORN_BATCH = "torn batch", "C8", "a batch is not in one piece, or an end was seen inside it"
    REPLICAS_DIFFER = "replicas differ", "C10", "two replicas hold different logs in the end"

    def __init__(self, label: str, rule: str, meaning: str) -> None:
        self.label = label
        self.rule = rule
        self.meaning = meaning

    def __str__(self) -> str:
        return self.label


class Violation(NamedTuple):
    """One broken rule. The witnesses alone prove it, with the final log where it is named."""

    log: str
    kind: Kind
    message: str
    witnesses: tuple[Append | Read, ...]

    @property
    def rule(self) -> str:
        return self.kind.rule

    def __str__(self) -> str:
        return f"{self.rule} {self.kind}: log {self.log}: {self.message}"


@dataclass(slots=True)
class Verdict:
    """Of all logs together."""

    appends: int = 0
    reads: int = 0
    # Appends of which the client does not know whether they happened.
    unknown: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    # The first of each kind, in the order in which they were found.
    violations: list[Violation] = field(default_factory=list)

    @property
    def operations(self) -> int:
        return self.appends + self.reads

    def __str__(self) -> str:
        return (
            f"operations={self.operations} appends={self.appends} reads={self.reads} "
            f"unknown={self.unknown} violations={self.counts.total()}"
        )


@dataclass(slots=True)
class Findings:
    """Where the checks of one log put what they find."""

    verdict: Verdict
    log: str
    # When the first operation began: messages count from there.
    origin: int

    def add(self, kind: Kind, text: str, *witnesses: Append | Read) -> None:
        counts = self.verdict.counts
        counts[kind] += 1
        if counts[kind] <= KEPT_PER_KIND:
            message = "; ".join([text, *map(self._describe, witnesses)])
            self.verdict.violations.append(Violation(self.log, kind, message, witnesses))

    def _describe(self, operation: Append | Read) -> str:
        who = f"client {operation.client} session {operation.session}"
        when = f"from {self._seconds(operation.start)}"
        if isinstance(operation, Append):
            return f"{who} appended {_values(operation)} {when}, {self._outcome(operation)}"
        when += f" to {self._seconds(operation.end)}"
        source = f" on {operation.replica}" if operation.replica else ""
        way = "" if operation.way & LINEARIZABLE else ", not linearizable"
        if operation.way & END_ONLY:
            return f"{who} was told the end {operation.first}{source} {when}{way}"
        at_end = " and the end" if operation.way & AT_END else ""
        shown = f"[{operation.first}, {operation.first + operation.count})"
        return f"{who} read {shown}{at_end}{source} {when}{way}"

    def _outcome(self, append: Append) -> str:
        if append.outcome == Outcome.UNKNOWN:
            return "outcome unknown"
        when = self._seconds(append.end)
        if append.outcome == Outcome.FAILED:
            return f"failed with {append.code} at {when}"
        where = f"offset {append.offset}" if append.offset >= 0 else "an offset not told"
        return f"acked at {when} with {where}"

    def _seconds(self, moment: int) -> str:
        return f"{(moment - self.origin) / 1e9:.6f} s"


def _values(append: Append) -> str:
    values = show_values(append.value, append.count)
    return f"{values} ({append.producer}, {append.sequence})" if append.producer else values
