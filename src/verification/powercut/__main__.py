"""Command line of the power cuts: ``python -m verification.powercut --cuts 1000 [--seed 0]``.

A worker process runs the storage engine on an ext4 image and reports each flush before it begins
the next. At a random moment, perhaps while the log is being opened, the file system is shut down as
if the power had failed, the worker is killed and the image is mounted again. The next worker
reports the log that it finds. The cache inside a disk is not lost this way: for that, real power is
needed.
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

from verification.powercut.image import BLOCK_BYTES, LOG_FLUSH, NO_LOG_FLUSH, Image, why_not
from verification.powercut.known import Known, LogOpened
from verification.powercut.worker import work

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# An image is used for so many cuts, then a new one is made: the creation of a log is tested, too.
CUTS_PER_IMAGE = 40
# Mean seconds until a worker is killed: hardly longer than an open takes, or much longer.
LIVES_S = (0.02, 0.15)
# A worker that reports nothing for so long hangs.
SILENCE_S = 60
FAILURES_SHOWN_MAX = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.powercut")
    parser.add_argument("--cuts", type=int, default=1000, help="how many power cuts")
    parser.add_argument("--seed", type=int, default=0, help="seed of the writes and their times")
    parsed = parser.parse_args(arguments)
    reason = why_not()
    if reason is not None:
        print(f"powercut: skipped: {reason}")
        return 0
    # The image must be unmounted even if SIGTERM ends this process.
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
class PowerCutOutcome:
    """The result of a whole run."""

    cuts: int = 0
    images: int = 0
    reports: int = 0
    # How often the power failed during each operation.
    during: Counter[str] = field(default_factory=Counter)
    # One text for each cut after which the log broke a promise.
    lost: list[str] = field(default_factory=list)


def run(cuts: int, seed: int) -> PowerCutOutcome:
    """Make so many power cuts, on one image after the other."""
    outcome = PowerCutOutcome()
    random = Random(f"power cuts/{seed}")
    with tempfile.TemporaryDirectory(prefix="quorate-power-") as folder:
        image = Image(Path(folder))
        try:
            while outcome.cuts < cuts:
                _use(image, min(CUTS_PER_IMAGE, cuts - outcome.cuts), random, outcome)
        finally:
            image.unmount()
    return outcome


def _use(image: Image, cuts: int, random: Random, outcome: PowerCutOutcome) -> None:
    """Cut the power so often, then open the log once more undisturbed: this checks the last cut."""
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
            known.problems.append("the log cannot be opened, and no worker told the reason")
        if known.problems:
            outcome.lost.append(f"cut {outcome.cuts}: {'; '.join(known.problems)}")
            return  # after a violation, further cuts on this image prove little


def _live(image: Image, known: Known, random: Random, *, cut: bool) -> int:
    """Run one worker until the power fails or the log is open; return its number of reports."""
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
    heard += _listen(ours, known, SILENCE_S)  # the pipe holds reports that were sent before the cut
    ours.close()
    image.unmount()
    return heard


def _listen(link: Connection[Any, Any], known: Known, seconds: float | None) -> int:
    """Receive reports for so many seconds, or until the log is open; return their number."""
    heard = 0
    ends = None
    try:
        while ends is None or (left := ends - time.monotonic()) > 0:
            if not link.poll(SILENCE_S if ends is None else left):
                break
            report = link.recv()
            known.hear(report)
            heard += 1
            if seconds is None and isinstance(report, LogOpened):
                break
            if seconds is not None and ends is None:
                # The time counts from the first report: then the worker runs.
                ends = time.monotonic() + seconds
    except (EOFError, OSError):
        pass  # the worker ended, perhaps in the middle of a report
    return heard


if __name__ == "__main__":
    sys.exit(main())
