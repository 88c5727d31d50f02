"""What a batch of runs must have met: a simulator that never gets into trouble proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

__all__ = ["EXPECTED", "never_met"]

# A hundred seeds meet each of these many times.
EXPECTED = (
    "answer BUSY",
    "answer DUPLICATE",
    "answer FENCED",
    "answer NOT_LEADER",
    "answer OFFSET_MISMATCH",
    "answer OUTCOME_UNKNOWN",
    "answer OUT_OF_SEQUENCE",
    "answer UNKNOWN_PRODUCER",
    "attempt failed",
    "batch aborted",
    "batch published",
    "batches appended together",
    "checkpoint written",
    "chores stopped for a flush",
    "chunk staged",
    "chunk told of its publish",
    "chunks replaced",
    "died between write and sync",
    "entry of an earlier term committed along",
    "entry spoiled that a peer needs",
    "event hint-cancelled",
    "event hint-ended-stickiness",
    "event peer-compares",
    "event peer-resent",
    "event peer-restarted",
    "event peer-throttled",
    "event refuses-vote",
    "event slow-disk",
    "event steps-down",
    "event truncates",
    "fault bridge",
    "fault clock_jump",
    "fault clock_rate",
    "fault flap",
    "fault kill",
    "fault one_way",
    "fault pause",
    "fault power",
    "fault power_all",
    "fault split",
    "fault stop",
    "fed from disk",
    "fence refused",
    "fence set",
    "job forgotten",
    "last flush proved",
    "mark of a clean stop found at open",
    "message as bytes",
    "message duplicated",
    "message lost",
    "message of an earlier boot",
    "plain append left in doubt",
    "plain append sent again",
    "producer acked",
    "producer expired",
    "producer left in doubt",
    "producer opened",
    "producer refused",
    "producer told of a duplicate",
    "read answer BUSY",
    "read answer NO_QUORUM",
    "read answered by a follower",
    "recovered",
    "refused earlier-boot",
    "refused leader-alive",
    "refused not-addressed",
    "refused other-cluster",
    "refused other-incarnation",
    "refused stale-term",
    "started from a checkpoint",
    "states compared",
    "stopped for a failed disk",
    "stopped for another state",
    "stopped in order",
    "stopped rather than drop committed entries",
    "too many producers",
    "torn log tail cut at open",
    "torn vote copy found at open",
    "window full",
    "zombie told",
)


def never_met(sometimes: Counter[str]) -> list[str]:
    """What was expected and did not happen once."""
    return [name for name in EXPECTED if not sometimes[name]]
