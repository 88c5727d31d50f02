"""Rules for one session, one producer and one batch, whatever other clients do."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from verification.checker.history import NEVER, AppendOutcome
from verification.checker.verdict import ViolationKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from verification.checker.history import AppendColumns, ReadColumns
    from verification.checker.placing import Placing
    from verification.checker.verdict import LogViolations

__all__ = ["check_batches", "check_producers", "check_sessions"]

_ACKED = int(AppendOutcome.ACKED)


def check_sessions(placing: Placing, findings: LogViolations) -> None:
    """A read shows everything that its session appended or saw before, at every replica."""
    history = placing.history
    appends, reads = history.appends, history.reads
    acked = [row for row, outcome in enumerate(appends.outcome) if outcome == _ACKED]
    lengths = array("q", repeat(0, len(appends)))
    for row in acked:
        lengths[row] = placing.offsets[appends.value[row] + appends.count[row] - 1] + 1
    for read, row in _behind(reads, appends, acked, lengths):
        text = f"its end {reads.high[read]} is before the end of its own appends"
        findings.add(
            ViolationKind.OWN_WRITE_MISSING, text, history.read_row(read), history.append_row(row)
        )
    for read, row in _behind(reads, reads, range(len(reads)), reads.low):
        text = f"its end {reads.high[read]} is before an end that it had seen"
        findings.add(
            ViolationKind.SESSION_WENT_BACK, text, history.read_row(read), history.read_row(row)
        )


def _behind(
    reads: ReadColumns,
    operations: AppendColumns | ReadColumns,
    rows: Iterable[int],
    lengths: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Yield reads whose session knew of a longer log before they began, with the operation that
    proved it.

    A session may have several operations under way: only those that were over before count.
    """
    bounded = [read for read, high in enumerate(reads.high) if high != NEVER]
    bounded.sort(key=reads.start.__getitem__)
    over = iter(sorted(rows, key=operations.end.__getitem__))
    row = next(over, None)
    # By session: the operation that proved the longest log.
    proofs: dict[tuple[int, int], int] = {}
    for read in bounded:
        start = reads.start[read]
        while row is not None and operations.end[row] < start:
            session = operations.client[row], operations.session[row]
            if lengths[row] >= lengths[proofs.setdefault(session, row)]:
                proofs[session] = row
            row = next(over, None)
        proof = proofs.get((reads.client[read], reads.session[read]))
        if proof is not None and lengths[proof] > reads.high[read]:
            yield read, proof


def check_producers(placing: Placing, findings: LogViolations) -> None:
    """Each sequence stands once, in order, and none without those before it."""
    history = placing.history
    appends = history.appends
    # By producer: the lowest sequence that was sent, and the offset of each sequence in the log.
    lowest: dict[int, int] = {}
    placed: dict[int, dict[int, int]] = {}
    for row, producer in enumerate(appends.producer):
        if not producer:
            continue
        sequence, value = appends.sequence[row], appends.value[row]
        lowest[producer] = min(lowest.get(producer, sequence), sequence)
        offsets = placed.setdefault(producer, {})
        for number in range(appends.count[row]):
            offset = placing.offsets[value + number]
            if offset >= 0 and (other := offsets.setdefault(sequence + number, offset)) != offset:
                text = f"sequence {sequence + number} is at offsets {other} and {offset}"
                witness = history.append_row(placing.rows[other])
                findings.add(ViolationKind.DUPLICATE, text, witness, history.append_row(row))
    for producer, offsets in placed.items():
        _check_order(placing, findings, lowest[producer], offsets)


def _check_order(
    placing: Placing, findings: LogViolations, expected: int, offsets: dict[int, int]
) -> None:
    append_row = placing.history.append_row
    last = -1
    for sequence in sorted(offsets):
        offset = offsets[sequence]
        # The missing sequences may have been trimmed, if no client read there.
        if sequence > expected and last + 1 >= placing.trimmed:
            text = f"sequence {sequence} is at offset {offset}, {expected} is not in the log"
            findings.add(ViolationKind.PRODUCER_GAP, text, append_row(placing.rows[offset]))
        if offset < last:
            text = f"sequence {sequence} is at offset {offset}, the one before at {last}"
            witnesses = append_row(placing.rows[offset]), append_row(placing.rows[last])
            findings.add(ViolationKind.PRODUCER_ORDER, text, *witnesses)
        expected, last = sequence + 1, offset


def check_batches(placing: Placing, findings: LogViolations) -> None:
    """A batch is in the log in one piece or not at all, and no end was seen inside it."""
    history = placing.history
    appends, reads = history.appends, history.reads
    for row, (value, count) in enumerate(zip(appends.value, appends.count, strict=True)):
        if count > 1 and placing.whole(row):
            offsets = [placing.offsets[identity] for identity in range(value, value + count)]
            if _torn(offsets, placing.trimmed):
                places = ", ".join("nowhere" if at < 0 else str(at) for at in offsets)
                text = f"its values are at offsets {places}"
                findings.add(ViolationKind.TORN_BATCH, text, history.append_row(row))
    for row, (low, high) in enumerate(zip(reads.low, reads.high, strict=True)):
        if low == high < len(placing.log) and placing.batch_start(high) != high:
            text = f"the end {high} is inside a batch"
            witness = history.append_row(placing.rows[high])
            findings.add(ViolationKind.TORN_BATCH, text, history.read_row(row), witness)


def _torn(offsets: list[int], trimmed: int) -> bool:
    """Whether a batch with its values at ``offsets``, -1 for nowhere, is not in one piece.

    Below the trim point a value may have been in the log without a client that saw it.
    """
    starts = {offset - number for number, offset in enumerate(offsets) if offset >= 0}
    if len(starts) != 1:
        return bool(starts)
    [start] = starts
    missing = (start + number for number, offset in enumerate(offsets) if offset < 0)
    return any(not 0 <= place < trimmed for place in missing)
