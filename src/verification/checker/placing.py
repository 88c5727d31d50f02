"""Where every value of a log stands, and which append put it there: the start of all other checks.

The replicas' final logs say which value has which offset. Below a trim point no replica holds the
value any more: there, receipts and reads give its offset. Against this each receipt and each read
is compared; the times of operations play no part yet.
"""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING

from verification.checker.history import NEVER, AppendOutcome, BadHistory, FinalLog
from verification.checker.values import NOBODY, ByValue, show_values
from verification.checker.verdict import ViolationKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verification.checker.history import History, ReadOperation
    from verification.checker.verdict import LogViolations

__all__ = ["LONG_AGO", "Placing"]

# An offset without a known sender may have been appended at any time.
LONG_AGO = -(1 << 63)
# In ``rows``: no append is known.
NO_ROW = -1

_ACKED, _FAILED = int(AppendOutcome.ACKED), int(AppendOutcome.FAILED)


class Placing:
    """The one log of a run: offset to value, value to offset, offset to append."""

    def __init__(
        self, history: History, finals: Sequence[FinalLog], findings: LogViolations
    ) -> None:
        self.history = history
        self._findings = findings
        # The append that sent a value first, and all appends of values that were sent again.
        self._senders = ByValue()
        self._resent: dict[int, list[int]] = {}
        # Appends that share values and do not have the same first and last: no batch of theirs
        # need be in one piece.
        self._recut: set[int] = set()
        self._find_senders()
        # The records below this offset are trimmed; clients may know their values.
        self.trimmed = 0
        # By offset: the identity of the value there.
        self.log = self._settle(finals)
        self.offsets = ByValue()
        # By offset: the append that put the value there, when it began, and when the value was
        # first acknowledged.
        self.rows: array[int] = array("q", repeat(NO_ROW, len(self.log)))
        self.start: array[int] = array("q", repeat(LONG_AGO, len(self.log)))
        self.acked: array[int] = array("q", repeat(NEVER, len(self.log)))
        self._place()
        self._check_receipts()
        self._check_reads()

    def batch_start(self, offset: int) -> int:
        """The first offset of the batch that ``offset`` is in."""
        row = self.rows[offset]
        if row == NO_ROW or row in self._recut:
            return offset
        return max(0, offset - (self.log[offset] - self.history.appends.value[row]))

    def whole(self, row: int) -> bool:
        """Whether the values of an append must stand side by side if one of them is there."""
        return row not in self._recut

    def acked_by(self, offset: int) -> int:
        """The append that was the first to be acknowledged with the value at ``offset``."""
        appends = self.history.appends
        sent = self._sent(self.log[offset])
        acked = [row for row in sent if appends.outcome[row] == _ACKED]
        return min(acked, key=appends.end.__getitem__)

    # -- values that were sent -----------------------------------------------------------------

    def _find_senders(self) -> None:
        appends = self.history.appends
        for row, (value, count) in enumerate(zip(appends.value, appends.count, strict=True)):
            for identity in self._senders.claim(value, count, row):
                self._send_again(identity, row)

    def _send_again(self, identity: int, row: int) -> None:
        """The value of ``row`` has an earlier sender: this append is a retry, or the history is
        bad."""
        appends = self.history.appends
        first = self._senders[identity]
        same = self._sequence(first, identity) == self._sequence(row, identity)
        if not appends.producer[row] or not same:
            raise BadHistory(f"{show_values(identity)} was sent twice, not under one sequence")
        self._resent.setdefault(identity, [first]).append(row)
        if (appends.value[row], appends.count[row]) != (appends.value[first], appends.count[first]):
            self._recut |= {first, row}

    def _sequence(self, row: int, identity: int) -> tuple[int, int]:
        appends = self.history.appends
        return appends.producer[row], appends.sequence[row] + identity - appends.value[row]

    def _sent(self, identity: int) -> list[int]:
        """All appends that sent the value."""
        resent = self._resent.get(identity)
        if resent is not None:
            return resent
        first = self._senders[identity]
        return [first] if first >= 0 else []

    # -- values in the log ---------------------------------------------------------------------

    def _settle(self, finals: Sequence[FinalLog]) -> array[int]:
        """Choose one log out of the replicas' copies."""
        if not finals:
            raise BadHistory("no final log: the checker cannot tell which records were lost")
        # The log that most replicas hold, and the longest if two are held equally often.
        chosen = max(
            finals, key=lambda final: (sum(final[1:] == one[1:] for one in finals), final.end)
        )
        for final in finals:
            self._compare(chosen, final)
        self.trimmed = chosen.first
        if not self.trimmed:
            return chosen.values
        log = array("Q", repeat(NOBODY, self.trimmed))
        self._recall(log)
        return log + chosen.values

    def _compare(self, chosen: FinalLog, final: FinalLog) -> None:
        first = max(chosen.first, final.first)
        ours, theirs = chosen.values[first - chosen.first :], final.values[first - final.first :]
        if ours == theirs:
            return
        pairs = enumerate(zip(ours, theirs, strict=False), first)
        differ = (offset for offset, (one, other) in pairs if one != other)
        at = next(differ, min(chosen.end, final.end))
        self._findings.add(
            ViolationKind.REPLICAS_DIFFER,
            f"{chosen.replica} and {final.replica} differ from offset {at} on; "
            f"they end at {chosen.end} and {final.end}",
        )

    def _recall(self, log: array[int]) -> None:
        """Fill in the trimmed values, from receipts and then from reads."""
        appends, reads = self.history.appends, self.history.reads
        for offset, value, count in zip(appends.offset, appends.value, appends.count, strict=True):
            if 0 <= offset < len(log):
                for place, identity in enumerate(range(value, value + count), offset):
                    if place < len(log) and log[place] == NOBODY:
                        log[place] = identity
        for row, first in enumerate(reads.first):
            if first < len(log):
                for place, identity in enumerate(self.history.seen_by(row), first):
                    if place < len(log) and log[place] == NOBODY:
                        log[place] = identity

    def _place(self) -> None:
        """Give every value its offset and every offset its append and times."""
        appends, resent = self.history.appends, self._resent
        for offset, identity in enumerate(self.log):
            if identity == NOBODY:
                continue
            row = self._senders[identity]
            if row < 0:
                text = f"offset {offset} holds {show_values(identity)}, which no client sent"
                self._findings.add(ViolationKind.PHANTOM, text)
                continue
            if self.offsets.claim(identity, 1, offset):
                self._report_twice(identity, offset)
                continue
            if identity in resent or appends.outcome[row] == _FAILED:
                self._place_carefully(identity, offset)
                continue
            self.rows[offset] = row
            self.start[offset] = appends.start[row]
            if appends.outcome[row] == _ACKED:
                self.acked[offset] = appends.end[row]

    def _place_carefully(self, identity: int, offset: int) -> None:
        """Place a value that was sent more than once, or by an append that failed."""
        appends = self.history.appends
        sent = self._sent(identity)
        alive = [row for row in sent if appends.outcome[row] != _FAILED]
        if not alive:
            self._report_failed(identity, f"is at offset {offset}", [])
        row = min(alive or sent, key=appends.start.__getitem__)
        self.rows[offset] = row
        self.start[offset] = appends.start[row]
        ends = [appends.end[row] for row in sent if appends.outcome[row] == _ACKED]
        self.acked[offset] = min(ends, default=NEVER)

    def _report_twice(self, identity: int, offset: int) -> None:
        history = self.history
        sent = self._sent(identity)
        acked = any(history.appends.outcome[row] == _ACKED for row in sent)
        self._findings.add(
            ViolationKind.DUPLICATE if acked else ViolationKind.UNKNOWN_TWICE,
            f"{show_values(identity)} is at offsets {self.offsets[identity]} and {offset}",
            *map(history.append_row, sent),
        )

    def _report_failed(self, identity: int, text: str, reads: list[ReadOperation]) -> None:
        sent = map(self.history.append_row, self._sent(identity))
        self._findings.add(
            ViolationKind.FAILED_APPEARED, f"{show_values(identity)} {text}", *sent, *reads
        )

    # -- answers to clients --------------------------------------------------------------------

    def _check_receipts(self) -> None:
        """Every acknowledged value stands where its receipt says."""
        appends, offsets = self.history.appends, self.offsets
        columns = (appends.outcome, appends.value, appends.count, appends.offset)
        for row, (outcome, value, count, told) in enumerate(zip(*columns, strict=True)):
            if outcome != _ACKED:
                continue
            if told >= 0 and appends.taken[row] != count:
                text = f"the receipt is for {appends.taken[row]} records, {count} were sent"
                self._findings.add(ViolationKind.TORN_BATCH, text, self.history.append_row(row))
            for number in range(count):
                offset = offsets[value + number]
                if offset < 0:
                    if told < 0 and self.trimmed:
                        continue  # the value may have been trimmed, and no answer gave its offset
                    text = f"{show_values(value + number)} is not in the log of {len(self.log)}"
                    self._findings.add(ViolationKind.LOST_ACK, text, self.history.append_row(row))
                elif told >= 0 and offset != told + number:
                    text = f"{show_values(value + number)} is at offset {offset}"
                    self._findings.add(
                        ViolationKind.MISPLACED_ACK, text, self.history.append_row(row)
                    )

    def _check_reads(self) -> None:
        """Every value that was read is the one at its offset."""
        history, log = self.history, self.log
        reads = history.reads
        columns = (reads.first, reads.count, reads.seen, reads.low)
        for row, (first, count, place, low) in enumerate(zip(*columns, strict=True)):
            if low > len(log):
                text = f"{low} records were there, {len(log)} are left"
                self._findings.add(ViolationKind.VANISHED, text, history.read_row(row))
            if history.values[place : place + count] != log[first : first + count]:
                self._check_values(row)

    def _check_values(self, row: int) -> None:
        history, log = self.history, self.log
        for offset, identity in enumerate(history.seen_by(row), history.reads.first[row]):
            if offset < len(log) and log[offset] == identity:
                continue
            sent = self._sent(identity)
            if not sent:
                text = f"{show_values(identity)} was read at offset {offset}, no client sent it"
                self._findings.add(ViolationKind.PHANTOM, text, history.read_row(row))
            elif all(history.appends.outcome[one] == _FAILED for one in sent):
                text = f"was read at offset {offset}"
                self._report_failed(identity, text, [history.read_row(row)])
            elif offset < len(log):
                there = show_values(log[offset])
                text = f"offset {offset} holds {there}, {show_values(identity)} was read"
                self._findings.add(ViolationKind.DIFFERENT_READ, text, history.read_row(row))
