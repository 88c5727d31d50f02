"""Command line of the power cuts: ``python -m quorate.testing.powercut --cuts 1000 [--seed 0]``.

A worker process runs the storage engine on an ext4 image and reports each flush before it begins
the next. At a random moment, perhaps while the log is being opened, the file system is shut down as
if the power had failed, the worker killed and the image mounted again. The next worker says what it
finds. What a disk keeps in a cache of its own is not lost this way: for that, real power is needed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from quorate.testing.powercut.image import BLOCK_BYTES, LOG_FLUSH, NO_LOG_FLUSH, Image, why_not
from quorate.testing.powercut.known import Known, Opened
from quorate.testing.powercut.worker import work

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# An image is used for so many cuts, then a new one is made: a log begins at nothing, too.
CUTS_PER_IMAGE = 40
# How long a worker lives, in seconds, on average: hardly longer than an open takes, or much longer.
LIVES_S = (0.02, 0.15)
# A worker that says nothing for so long hangs.
SILENCE_S = 60
FAILURES_SHOWN_MAX = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m quorate.testing.powercut")
    parser.add_argument("--cuts", type=int, default=1000, help="how many power cuts")
    parser.add_argument("--seed", type=int, default=0, help="draws what is written and when")
    parsed = parser.parse_args(arguments)
    reason = why_not()
    if reason is not None:
        print(f"powercut: skipped: {reason}")
        return 0
    # The image must be unmounted whatever ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    outcome = run(parsed.cuts, parsed.seed)
    seconds = time.monotonic() - began
    for what, count in outcome.during.most_common():
        print(f"{count:8}  cuts during {what}")
    print(f"{outcome.images:8}  images")
    print(f"{outcome.reports:8}  reports checked")
    print(f"{outcome.cuts / seconds:8.1f}  cuts a second")
    for problem in outcome.lost[:FAILURES_SHOWN_MAX]:
        print(problem)
    print(f"powercut: cuts={outcome.cuts} lost={len(outcome.lost)}")
    return 1 if outcome.lost else 0


@dataclass(slots=True)
class Outcome:
    """Of a whole run."""

    cuts: int = 0
    images: int = 0
    reports: int = 0
    # What was going on when the power failed.
    during: Counter[str] = field(default_factory=Counter)
    # One text for each cut after which something was not as it must be.
    lost: list[str] = field(default_factory=list)


def run(cuts: int, seed: int) -> Outcome:
    """So many power cuts, on one image after the other."""
    outcome = Outcome()
    random = Random(f"power cuts/{seed}")
    with tempfile.TemporaryDirectory(prefix="quorate-power-") as folder:
        image = Image(Path(folder))
        try:
            while outcome.cuts < cuts:
                _use(image, min(CUTS_PER_IMAGE, cuts - outcome.cuts), random, outcome)
        finally:
            image.unmount()
    return outcome


def _use(image: Image, cuts: int, random: Random, outcome: Outcome) -> None:
    """Cut so often, then open once more in peace: the last cut is checked like the others."""
    image.make(random.choice(BLOCK_BYTES))
    outcome.images += 1
    known = Known()
    for number in range(cuts + 1):
        last = number == cuts
        outcome.reports += _live(image, known, random, cut=not last)
        if not last:
            outcome.cuts += 1
            outcome.during[known.doing] += 1
        elif known.doing == "open":
            known.problems.append("the log cannot be opened, and nobody said why")
        if known.problems:
            outcome.lost.append(f"cut {outcome.cuts}: {'; '.join(known.problems)}")
            return  # nothing that follows on this image would be news


def _live(image: Image, known: Known, random: Random, *, cut: bool) -> int:
    """One worker's life; how many reports it made."""
    context = get_context("fork")
    life = random.expovariate(1 / random.choice(LIVES_S)) if cut else None
    image.mount()
    ours, theirs = context.Pipe(duplex=False)
    arguments = (str(image.mounted), str(random.random()), known.committed, theirs)
    worker = context.Process(target=work, args=arguments)
    worker.start()
    theirs.close()
    try:
        heard = _listen(ours, known, life)
        if cut:
            image.cut(random.choice((NO_LOG_FLUSH, NO_LOG_FLUSH, LOG_FLUSH)))
    finally:
        worker.kill()
        worker.join()
    heard += _listen(ours, known, SILENCE_S)  # what is in the pipe was said before
    ours.close()
    image.unmount()
    return heard


def _listen(link: Connection[Any, Any], known: Known, seconds: float | None) -> int:
    """Hear reports for so long, or until the log is open; how many there were."""
    heard = 0
    ends = None
    try:
        while ends is None or (left := ends - time.monotonic()) > 0:
            if not link.poll(SILENCE_S if ends is None else left):
                break
            report = link.recv()
            known.hear(report)
            heard += 1
            if seconds is None and isinstance(report, Opened):
                break
            if seconds is not None and ends is None:
                ends = time.monotonic() + seconds  # from the first word on: it runs
    except (EOFError, OSError):
        pass  # it ended, perhaps in the middle of a word
    return heard


if __name__ == "__main__":
    sys.exit(main())
