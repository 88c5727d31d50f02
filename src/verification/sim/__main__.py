"""Command line of the simulator: ``python -m verification.sim --seeds 200 --start 0``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from verification.mutants.apply import rerun_in_mutant
from verification.sim.adversaries import ADVERSARIES
from verification.sim.options import FAULTS, SWITCHES
from verification.sim.record import load, save
from verification.sim.run import Outcome, options_of, rotten_options, run
from verification.sim.shrink import shrink
from verification.sim.sometimes import never_met

EVENTS = 10_000
FAILURES_SHOWN_MAX = 20
FAILURES_SAVED_MAX = 5


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    if parsed.mutant:
        return rerun_in_mutant(parsed.mutant, "verification.sim", sys.argv[1:])
    if parsed.replay:
        return _replay(parsed)
    return _run_seeds(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verification.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--events", type=int, default=EVENTS, help="events per seed, at least")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutant", help="run against the named planted bug")
    parser.add_argument("--no-adversaries", action="store_true", help="random faults only")
    parser.add_argument(
        "--over-budget", action="store_true", help="any number of disks may rot: halts must be safe"
    )
    parser.add_argument(
        "--with",
        dest="turned_on",
        action="append",
        default=[],
        metavar="NAME",
        choices=sorted((*FAULTS, *SWITCHES, *ADVERSARIES)),
        help="a fault or switch that every seed has, or the adversary to play; may be repeated",
    )
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation")
    parser.add_argument(
        "--sometimes",
        action="store_true",
        help="print the events that were met, and fail if one never was",
    )
    parser.add_argument(
        "--failures", type=Path, default=Path("sim-failures"), help="where failing runs are saved"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a saved failing run")
    parser.add_argument("--shrink", type=int, default=0, metavar="RUNS",
                        help="with --replay: look for a smaller run, in so many tries")  # fmt: skip
    return parser


def _run_seed(
    seed: int, events: int, adversaries: bool, over_budget: bool, turned_on: frozenset[str]
) -> Outcome:
    if over_budget:
        options = rotten_options(seed, events, turned_on)
    else:
        options = options_of(seed, events, adversaries=adversaries, turned_on=turned_on)
    outcome = run(options)
    if outcome.violation is None:
        outcome.choices = []  # not needed, and large
    return outcome


def _run_seeds(parsed: argparse.Namespace) -> int:
    began = time.monotonic()
    events = seeds = violations = 0
    sometimes: Counter[str] = Counter()
    numbers = range(parsed.start, parsed.start + parsed.seeds)
    with ProcessPoolExecutor(max_workers=max(1, min(parsed.jobs, len(numbers)))) as pool:
        adversaries = not parsed.no_adversaries
        how = (parsed.events, adversaries, parsed.over_budget, frozenset(parsed.turned_on))
        waiting = [pool.submit(_run_seed, seed, *how) for seed in numbers]
        for future in waiting:
            outcome = future.result()
            seeds += 1
            events += outcome.events
            sometimes += outcome.sometimes
            if outcome.violation is not None:
                violations += 1
                _show_failure(outcome, violations, parsed.failures)
                if parsed.stop_at_first:
                    pool.shutdown(wait=True, cancel_futures=True)
                    break
            _progress(seeds, parsed.seeds, violations)
    missing = never_met(sometimes) if parsed.sometimes else []
    if parsed.sometimes:
        for name, count in sorted(sometimes.items()):
            print(f"{count:12}  {name}")
    for name in missing:
        print(f"never met: {name}")
    rate = int(events / (time.monotonic() - began))
    print(f"sim: seeds={seeds} events={events} events_per_s={rate} violations={violations}")
    return 1 if violations or missing else 0


def _progress(seeds: int, total: int, violations: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if seeds == total else ""
        print(f"\r{seeds} of {total} seeds, {violations} violations", end=end, file=sys.stderr)


def _show_failure(outcome: Outcome, number: int, folder: Path) -> None:
    options = outcome.options
    if number <= FAILURES_SHOWN_MAX:
        what = options.adversary or ", ".join(options.faults) or "no faults"
        print(f"seed {options.seed} ({options.nodes} nodes; {what}): {outcome.violation}")
    if number <= FAILURES_SAVED_MAX:
        path = folder / f"seed-{options.seed}.json"
        save(path, outcome)
        print(f"  again: python -m verification.sim --replay {path} [--shrink 500]")


def _replay(parsed: argparse.Namespace) -> int:
    options, choices, rule = load(parsed.replay)
    outcome = run(options, choices)
    print(f"{parsed.replay}: recorded {rule}, now {outcome.violation or 'no violation'}")
    if outcome.violation is not None and parsed.shrink:
        smallest = shrink(outcome, parsed.shrink, lambda text: print(f"  {text}", file=sys.stderr))
        path = parsed.replay.with_suffix(".small.json")
        save(path, smallest)
        print(f"{path}: {len(smallest.choices)} choices, {smallest.events} events")
    return 1 if outcome.violation is not None else 0


if __name__ == "__main__":
    sys.exit(main())
