"""Where the story is told: its logs, its steps, and how it waits."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from quorate.demo.findings import DemoFailed, Findings, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quorate.demo.jobs import Job

__all__ = ["LETTERS", "MASTER", "NAIVE_LOG", "ORDERS", "PAID", "Stage", "Teller"]

# The logs; the pipeline's file names the first three, too.
ORDERS = "orders"
PAID = "paid"
LETTERS = "orders.dlq"
NAIVE_LOG = "paid.naive"
# Two cores, and a task may fail as often as on any cluster.
MASTER = "local[2,4]"
LOOK_S = 0.05
# Longer than anything takes on the slowest machine.
PATIENCE_S = 3600.0


class Teller(Protocol):
    """Who is told how far the story is."""

    def live(self, text: str) -> None:
        """What is going on, until the next word."""

    def done(self, step: Step) -> None: ...


class _Detail:
    """What a step found out, told when it is over."""

    text = ""


class Stage:
    """What all steps share."""

    def __init__(self, place: Path, findings: Findings, teller: Teller) -> None:
        # A directory that is the story's own.
        self.place = place
        self.findings = findings
        self.live = teller.live
        # Ends all that was started, in reverse.
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
        """Wait for ``condition``, with a word about how it goes."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailed(f"it did not come in {PATIENCE_S:g} s that {what}")
            if told is not None:
                self.live(told())
            time.sleep(look_s)

    def run(self, job: Job) -> str:
        """A job to its end; what it printed."""
        self.stack.callback(job.kill)
        self.until(lambda: job.status is not None, f"{job.name} has ended")
        if job.status != 0:
            raise job.failure()
        return job.said
