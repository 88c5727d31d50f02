"""The verdict on a run: every check, log by log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verification.checker.history import AppendOutcome, BadHistory
from verification.checker.linear import check_linear
from verification.checker.placing import Placing
from verification.checker.sessions import check_batches, check_producers, check_sessions
from verification.checker.verdict import LogViolations, Verdict, ViolationKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from verification.checker.history import FinalLog, History

__all__ = ["check"]


def check(
    histories: Mapping[str, History], finals: Mapping[str, Sequence[FinalLog]], voters: int = 0
) -> Verdict:
    """Compare the histories of the clients with the final logs of the replicas, both by log.

    With ``voters``, every receipt must name a majority of them.
    """
    verdict = Verdict()
    starts = [
        min(starts)
        for history in histories.values()
        for starts in (history.appends.start, history.reads.start)
        if starts
    ]
    for log, history in histories.items():
        if log not in finals:
            raise BadHistory(f"log {log}: no replica has a final log")
        appends = history.appends
        verdict.appends += len(appends)
        verdict.reads += len(history.reads)
        verdict.unknown += appends.outcome.count(AppendOutcome.UNKNOWN)
        findings = LogViolations(verdict, log, min(starts))
        if voters:
            _check_disks(history, voters // 2 + 1, findings)
        placing = Placing(history, finals[log], findings)
        check_linear(placing, findings)
        check_sessions(placing, findings)
        check_producers(placing, findings)
        check_batches(placing, findings)
    return verdict


def _check_disks(history: History, majority: int, findings: LogViolations) -> None:
    """A receipt counts disks; an acknowledgement without a receipt proves no copies."""
    appends = history.appends
    for row, (offset, synced) in enumerate(zip(appends.offset, appends.synced, strict=True)):
        if offset >= 0 and synced < majority:
            text = f"{synced} disks, a majority is {majority}"
            findings.add(ViolationKind.THIN_ACK, text, history.append_row(row))
