"""The steps of the demo: its logs, the results of the steps, and the waits between them."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from quorate.demo.findings import DemoFailed, DemoFindings, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quorate.demo.jobs import Job

__all__ = ["LETTERS", "MASTER", "NAIVE_LOG", "ORDERS", "PAID", "DemoSteps", "Teller"]

# The names of the logs; the pipeline's file names the first three, too.
ORDERS = "orders"
PAID = "paid"
LETTERS = "orders.dlq"
NAIVE_LOG = "paid.naive"
# Two cores, and a task may fail as often as on any cluster.
MASTER = "local[2,4]"
LOOK_S = 0.05
# Seconds that a step may take: longer than any step on the slowest machine.
PATIENCE_S = 3600.0


class Teller(Protocol):
    """Shows the progress of the demo to the user."""

    def live(self, text: str) -> None:
        """Show the progress inside a step, until the next text."""

    def done(self, step: Step) -> None: ...


class _Detail:
    """The result of a step as a text, shown when the step is over."""

    text = ""


class DemoSteps:
    """The directory, the findings and the processes that all steps share."""

    def __init__(self, place: Path, findings: DemoFindings, teller: Teller) -> None:
        # A directory that is the demo's own.
        self.place = place
        self.findings = findings
        self.live = teller.live
        # Ends all processes that were started, in reverse.
        self.stack = ExitStack()
        self._teller = teller

    @contextmanager
    def step(self, title: str) -> Iterator[_Detail]:
        began = time.monotonic()
        detail = _Detail()
        self.live(title)
        yield detail
        step = Step(title, detail.text, round(time.monotonic() - began, 1))
        self.findings.steps.append(step)
        self._teller.done(step)

    def until(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        told: Callable[[], str] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """Wait for ``condition``; ``told`` gives the progress that is shown meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {PATIENCE_S:g} s in vain until {what}")
            if told is not None:
                self.live(told())
            time.sleep(look_s)

    def run(self, job: Job) -> str:
        """Wait for the end of a job, and return its standard output."""
        self.stack.callback(job.kill)
        self.until(lambda: job.status is not None, f"{job.name} has ended")
        if job.status != 0:
            raise job.failure()
        return job.said
