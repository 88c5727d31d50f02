"""The verdict on a run: every check, log by log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.testing.checker.history import BadHistory, Outcome
from quorate.testing.checker.linear import check_linear
from quorate.testing.checker.placing import Placing
from quorate.testing.checker.sessions import check_batches, check_producers, check_sessions
from quorate.testing.checker.verdict import Findings, Kind, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quorate.testing.checker.history import FinalLog, History

__all__ = ["check"]


def check(
    histories: Mapping[str, History], finals: Mapping[str, Sequence[FinalLog]], voters: int = 0
) -> Verdict:
    """Judge what clients saw against what the replicas hold in the end, both by log.

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
            raise BadHistory(f"log {log}: no replica says what it holds in the end")
        appends = history.appends
        verdict.appends += len(appends)
        verdict.reads += len(history.reads)
        verdict.unknown += appends.outcome.count(Outcome.UNKNOWN)
        findings = Findings(verdict, log, min(starts))
        if voters:
            _check_disks(history, voters // 2 + 1, findings)
        placing = Placing(history, finals[log], findings)
        check_linear(placing, findings)
        check_sessions(placing, findings)
        check_producers(placing, findings)
        check_batches(placing, findings)
    return verdict


def _check_disks(history: History, majority: int, findings: Findings) -> None:
    """A receipt counts disks; an acknowledgement without one tells nothing about them."""
    appends = history.appends
    for row, (offset, synced) in enumerate(zip(appends.offset, appends.synced, strict=True)):
        if offset >= 0 and synced < majority:
            text = f"{synced} disks, a majority is {majority}"
            findings.add(Kind.THIN_ACK, text, history.append_row(row))
