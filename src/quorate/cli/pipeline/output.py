"""The progress of a Spark job while it runs, and its summary at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from quorate.cli.output import StatusLine, print_json, print_line, tell
from quorate.pipeline.job_progress import TASKS, TASKS_DONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.pipeline.job_progress import JobProgress

__all__ = ["ProgressLine", "print_summary"]

# Seconds between two lines in a file; a terminal has one line, which is written anew.
LINE_S = 5.0


class ProgressLine(StatusLine):
    """Shows the progress of a job on the standard error. To be called with each progress."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._watched = sys.stderr.isatty()
        self._next = time.monotonic() + LINE_S
        # The progress that was printed last, without its rate: a job that waits has no news.
        self._told: JobProgress | None = None

    def __call__(self, progress: JobProgress) -> None:
        if self._watched:
            self.rewrite(f"{self._name}: {_line(progress)}")
        elif (now := time.monotonic()) >= self._next:
            fresh = progress._replace(rate=0.0)
            if fresh == self._told:
                return
            self._told = fresh
            self._next = now + LINE_S
            tell(f"{self._name}: {_line(progress)}")


def _line(progress: JobProgress) -> str:
    counts = dict(progress.counts)
    if TASKS in counts:
        return f"{counts[TASKS_DONE]} of {counts[TASKS]} tasks"
    counts.pop("read", None)
    parts = [f"read {progress.read}", f"{progress.rate:.0f}/s"]
    if progress.lag is not None:
        parts.append(f"lag {progress.lag}")
    parts += [f"{name.replace('_', ' ')} {number}" for name, number in counts.items()]
    parts.append(f"micro-batch {progress.micro_batches}")
    return ", ".join(parts)


def print_summary(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print a line for each fact that is not None; or one document with all facts."""
    if as_json:
        print_json(dict(facts))
        return
    shown = {name.replace("_", " "): fact for name, fact in facts.items() if fact is not None}
    width = max(map(len, shown))
    for name, fact in shown.items():
        print_line(f"{name.ljust(width)}  {_shown(fact)}")


def _shown(fact: object) -> str:
    if isinstance(fact, float):
        return f"{fact:.1f}"
    return str(fact)
