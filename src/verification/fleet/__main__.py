"""Command line: ``python -m verification.fleet --seeds 100 --start 0``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from verification.fleet.run import EXPECTED, run
from verification.mutants.apply import rerun_in_mutant

FAILURES_SHOWN_MAX = 20


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    if parsed.mutant:
        return rerun_in_mutant(parsed.mutant, "verification.fleet", sys.argv[1:])
    began = time.monotonic()
    events = seeds = violations = 0
    sometimes: Counter[str] = Counter()
    numbers = range(parsed.start, parsed.start + parsed.seeds)
    with ProcessPoolExecutor(max_workers=max(1, min(parsed.jobs, len(numbers)))) as pool:
        waiting = [pool.submit(run, seed) for seed in numbers]
        for future in waiting:
            outcome = future.result()
            seeds += 1
            events += outcome.events
            sometimes += outcome.sometimes
            if outcome.violation is not None:
                violations += 1
                if violations <= FAILURES_SHOWN_MAX:
                    print(f"seed {outcome.seed} ({outcome.nodes} nodes): {outcome.violation}")
                    again = f"--seeds 1 --start {outcome.seed}"
                    print(f"  again: python -m verification.fleet {again}", flush=True)
                if parsed.stop_at_first:
                    pool.shutdown(wait=True, cancel_futures=True)
                    break
    missing = [name for name in EXPECTED if not sometimes[name]] if parsed.sometimes else []
    if parsed.sometimes:
        for name, count in sorted(sometimes.items()):
            print(f"{count:12}  {name}")
    for name in missing:
        print(f"never met: {name}")
    rate = int(events / (time.monotonic() - began))
    print(f"fleet: seeds={seeds} events={events} events_per_s={rate} violations={violations}")
    return 1 if violations or missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verification.fleet", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutant", help="run against the named planted bug")
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation")
    parser.add_argument(
        "--sometimes",
        action="store_true",
        help="print the events that were met, and fail if one never was",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
