"""The results of a run of the demo: values while it runs, a document for reports and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quorate.demo.counting import SinkTally

__all__ = ["NAIVE", "QUORATE", "Check", "DemoFailed", "DemoFindings", "Kill", "Sample", "Step"]

# The sinks, as every document names them.
NAIVE = "naive"
QUORATE = "quorate"


class DemoFailed(Exception):
    """The demo cannot go on, or did not end as it must."""


class Step(NamedTuple):
    """A part of the demo that is over."""

    title: str
    detail: str
    seconds: float


class Kill(NamedTuple):
    """The kill of a process, in seconds since the queries were started."""

    at: float
    what: str


class Sample(NamedTuple):
    """The progress of the sinks and the lags of the nodes at one moment."""

    # Seconds since the queries were started.
    at: float
    # The number of orders that each sink has done, by its name.
    read: dict[str, int]
    # Committed entries that a node's replicas lack; None while it is down.
    lags: dict[str, int | None]


class Check(NamedTuple):
    """A number or text that was known beforehand, and the one that was found."""

    what: str
    expected: int | str
    found: int | str

    @property
    def kept(self) -> bool:
        return self.expected == self.found


@dataclass(slots=True)
class DemoFindings:
    """The results of a run, filled step by step."""

    orders: int = 0
    steps: list[Step] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    # The contents of the log of each sink, by its name.
    tallies: dict[str, SinkTally] = field(default_factory=dict)
    # The number of dead letters, of records in the archive, and of replicas with the same logs.
    letters: int = 0
    archived: int = 0
    replicas: int = 0
    # Milliseconds from the kill of the leader to the first append that its successor acknowledged.
    failover_ms: int = 0
    seconds: float = 0.0
    # Versions of the software, and the cores of the machine.
    versions: dict[str, str] = field(default_factory=dict)

    def check(self, what: str, expected: int | str, found: int | str) -> None:
        self.checks.append(Check(what, expected, found))

    def differences(self) -> list[str]:
        """A text for each check whose expected and found values differ."""
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
