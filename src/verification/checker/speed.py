"""How long the checker takes: ``python -m verification.checker.speed --operations 2000000``.

Another process writes the files of a made-up run, so that the memory shown is the checker's own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from verification.checker.files import Recorder, load_run, save_final
from verification.checker.judge import check
from verification.checker.model import Model

if TYPE_CHECKING:
    from verification.checker.model import Clock

__all__ = ["write_run"]

CLIENTS = 8
VOTERS = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.checker.speed")
    parser.add_argument("--operations", type=int, default=2_000_000, help="how many, at least")
    operations = parser.parse_args().operations
    with tempfile.TemporaryDirectory(prefix="quorate-checker-") as folder:
        writer = get_context("spawn").Process(target=write_run, args=(Path(folder), operations))
        writer.start()
        writer.join()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        began = time.process_time()
        histories, finals = load_run(Path(folder))
        loaded = time.process_time()
        verdict = check(histories, finals, VOTERS)
        checked = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{size / 1e6:8.0f}  MB of files")
    print(f"{loaded - began:8.1f}  s of processor time to load them")
    print(f"{checked - loaded:8.1f}  s of processor time to check")
    print(f"{peak / 1024:8.0f}  MiB of memory at most")
    print(f"checker: {verdict}")
    return 1 if verdict.counts else 0


def write_run(folder: Path, operations: int, logs: tuple[str, ...] = ("orders",)) -> None:
    """The files of a run without a violation."""
    with ExitStack() as stack:

        def recorder(client: int, clock: Clock) -> Recorder:
            path = folder / f"client-{client}.history"
            return stack.enter_context(Recorder(path, client, clock))

        model = Model("files", operations, recorder, CLIENTS, logs)
        model.run()
    for number, (log, finals) in enumerate(model.finals().items()):
        for final in finals:
            save_final(folder / f"final-{number}-{final.replica}.log", log, final)


if __name__ == "__main__":
    sys.exit(main())
