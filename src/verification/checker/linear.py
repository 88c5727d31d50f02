"""Linearizability of a log, in one pass over its operations.

In general it takes a search to find an order that explains a history. Here the order is known:
an append's offset says where it stands. Only the moments are unknown: each append happened at one,
between its start and its end and not before the append at the offset below. A read happened after
the append of the last record it shows, and, if it saw the log's end and promised to be
linearizable, before the append of the record behind that end.

Starts and the order only ever ask for a later moment, ends forbid it. So each append is given the
earliest moment that starts and order allow: the latest start among the appends up to it and the
reads that saw the log end before it. A history is linearizable if and only if no operation was over
before that moment. The operation that started latest and the one that was over too early are the
two witnesses.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from verification.checker.history import LINEARIZABLE
from verification.checker.placing import LONG_AGO
from verification.checker.verdict import ViolationKind

if TYPE_CHECKING:
    from verification.checker.placing import Placing
    from verification.checker.verdict import LogViolations

__all__ = ["check_linear"]


def check_linear(placing: Placing, findings: LogViolations) -> None:
    """Report every append that came too late and every read that was stale or too early, once."""
    earliest, culprits = _earliest(placing)
    history = placing.history
    blamed = set()
    for offset, (moment, acked) in enumerate(zip(earliest, placing.acked, strict=True)):
        culprit = culprits[offset]
        if moment <= acked or culprit in blamed:
            continue
        blamed.add(culprit)
        witness = history.append_row(placing.acked_by(offset))
        if culprit >= 0:
            text = f"it was sent after offset {offset} was acked, and stands before it"
            findings.add(ViolationKind.ORDER_INVERSION, text, history.append_row(culprit), witness)
        else:
            text = f"offset {offset} was acked before the read began"
            findings.add(ViolationKind.STALE_READ, text, history.read_row(~culprit), witness)
    reads = history.reads
    for row, (end, low) in enumerate(zip(reads.end, reads.low, strict=True)):
        last = min(low, len(earliest)) - 1
        if last < 0 or earliest[last] <= end:
            continue
        culprit = culprits[last]
        if culprit >= 0:
            text = f"offset {last} was read before it or one below it was sent"
            witness = history.append_row(culprit)
            findings.add(ViolationKind.FUTURE_READ, text, history.read_row(row), witness)
        elif culprit not in blamed:
            blamed.add(culprit)
            text = f"offset {last} was shown before the read began"
            findings.add(
                ViolationKind.STALE_READ, text, history.read_row(~culprit), history.read_row(row)
            )


def _earliest(placing: Placing) -> tuple[array[int], array[int]]:
    """The earliest moment of the append at each offset, and the operation that forbids an earlier
    one.

    An append is named by its row, a read by the complement of its row.
    """
    earliest, culprits = array("q", placing.start), array("q", placing.rows)
    reads = placing.history.reads
    size = len(earliest)
    for row, (start, high, way) in enumerate(zip(reads.start, reads.high, reads.way, strict=True)):
        if high < size and way & LINEARIZABLE:
            after = placing.batch_start(high)
            if start > earliest[after]:
                earliest[after] = start
                culprits[after] = ~row
    latest, culprit = LONG_AGO, 0
    for offset, moment in enumerate(earliest):
        if moment > latest:
            latest, culprit = moment, culprits[offset]
        else:
            earliest[offset] = latest
            culprits[offset] = culprit
    return earliest, culprits
