"""What a run of the demo found: as values while it runs, as a document for reports and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quorate.demo.counting import Tally

__all__ = ["NAIVE", "QUORATE", "Check", "DemoFailed", "Findings", "Kill", "Sample", "Step"]

# The sinks, as every document names them.
NAIVE = "naive"
QUORATE = "quorate"


class DemoFailed(Exception):
    """The story cannot go on, or did not end as it must."""


class Step(NamedTuple):
    """A part of the story that is over."""

    title: str
    detail: str
    seconds: float


class Kill(NamedTuple):
    """When somebody was killed, in seconds since the queries were started."""

    at: float
    what: str


class Sample(NamedTuple):
    """How everybody was at one moment."""

    # Seconds since the queries were started.
    at: float
    # Up to which order each sink is done, by its name.
    read: dict[str, int]
    # Committed entries that a node's replicas lack; None while it is down.
    lags: dict[str, int | None]


class Check(NamedTuple):
    """Something that was known beforehand, and what was found."""

    what: str
    expected: int | str
    found: int | str

    @property
    def kept(self) -> bool:
        return self.expected == self.found


@dataclass(slots=True)
class Findings:
    """All that is known at the end. Filled step by step."""

    orders: int = 0
    steps: list[Step] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    # What is in the log of each sink, by its name.
    tallies: dict[str, Tally] = field(default_factory=dict)
    # How many dead letters there are, records in the archive, and replicas with the same logs.
    letters: int = 0
    archived: int = 0
    replicas: int = 0
    # From the kill of the leader to the first append that its successor acknowledged.
    failover_ms: int = 0
    seconds: float = 0.0
    # Of the machine and what ran on it.
    versions: dict[str, str] = field(default_factory=dict)

    def check(self, what: str, expected: int | str, found: int | str) -> None:
        self.checks.append(Check(what, expected, found))

    def differences(self) -> list[str]:
        """What is not as it was known to be."""
        return [
            f"{check.what}: expected {check.expected}, found {check.found}"
            for check in self.checks
            if not check.kept
        ]

    def document(self) -> dict[str, Any]:
        return {
            "orders": self.orders,
            "seconds": round(self.seconds, 1),
            "failover_ms": self.failover_ms,
            "letters": self.letters,
            "archived": self.archived,
            "replicas": self.replicas,
            "sinks": {name: tally._asdict() for name, tally in self.tallies.items()},
            "checks": [{**check._asdict(), "kept": check.kept} for check in self.checks],
            "steps": [step._asdict() for step in self.steps],
            "kills": [kill._asdict() for kill in self.kills],
            "samples": [sample._asdict() for sample in self.samples],
            "versions": self.versions,
        }
