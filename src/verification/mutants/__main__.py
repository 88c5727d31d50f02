"""Plants every bug in turn and requires that it is found.

The tests that docs/rules.md names for the broken rule hunt first, then those of the file with the
bug, because they are fast and close to it. A bug that they miss is hunted by some seeds of the
simulator, the other tests of the package, the enumeration of crashes if it is a bug of storage,
many more seeds, whole simulated nodes, and at last by tests of real nodes. The same bug is caught
by the same test or seed in every run.

``python -m verification.mutants [--patches DIR] [--only NAME ...] [--share K/N]``
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from verification.mutants.apply import DoesNotApply, mutated, patched
from verification.mutants.catalogue import MUTANTS, share_of_mutants
from verification.mutants.hunters import (
    Catch,
    failing_without_a_bug,
    hunt,
    hunt_by_simulator,
)
from verification.mutants.rule_tests import RuleTests, rule_tests_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# A survivor costs all of them. No bug of the catalogue that the simulator catches needs a tenth.
SEEDS = 500


class _Candidate(NamedTuple):
    name: str
    # The files with the bug in them, below the package.
    files: tuple[str, ...]
    rule: RuleTests
    copy: AbstractContextManager[Path]


class _Verdict(NamedTuple):
    catch: Catch | None
    # The text to print for the bug.
    row: str


def main() -> int:
    parsed = _parser().parse_args()
    candidates = _candidates(parsed)
    if isinstance(candidates, str):
        print(f"error: {candidates}", file=sys.stderr)
        return 2
    swarm = f" {'swarm alone':>12}" if parsed.swarm_seeds else ""
    print(f"{'mutant':46} {'by':>7} {'rule or test':40} {'seconds':>7}{swarm}", flush=True)
    catches = []
    with ThreadPoolExecutor(max_workers=parsed.jobs) as pool:
        verdicts = pool.map(lambda candidate: _try(candidate, parsed), candidates)
        for number, verdict in enumerate(verdicts, start=1):
            print(f"{verdict.row}  [{number}/{len(candidates)}]", flush=True)
            if verdict.catch is not None and verdict.catch.caught:
                catches.append(verdict.catch)
    broken = failing_without_a_bug(catches)
    for test in sorted(broken):
        print(f"{test} fails without a planted bug, so it caught none", flush=True)
    caught = sum(catch.test not in broken for catch in catches)
    print(f"mutants: {caught} of {len(candidates)} caught")
    return 0 if caught == len(candidates) else 1


def _try(candidate: _Candidate, parsed: argparse.Namespace) -> _Verdict:
    began = time.monotonic()
    try:
        with candidate.copy as root:
            catch = hunt(
                root, candidate.files, candidate.rule, parsed.seeds,
                processes=not parsed.in_process,
            )  # fmt: skip
            alone = (
                hunt_by_simulator(root, candidate.files, parsed.swarm_seeds, "--no-adversaries")
                if parsed.swarm_seeds
                else None
            )
    except DoesNotApply as problem:
        return _Verdict(None, f"{candidate.name:46} does not apply: {problem}")
    row = f"{candidate.name:46} {catch.by:>7} {catch.rule:40.40} {time.monotonic() - began:7.1f}"
    return _Verdict(catch, row if alone is None else f"{row} {alone.by:>12}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verification.mutants", description=__doc__)
    parser.add_argument("--patches", type=Path, help="try the *.patch files of this folder instead")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try only these mutants")
    parser.add_argument(
        "--share", metavar="K/N", help="try only the K-th of N shares; a name decides its share"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at a time")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds until one survives")
    parser.add_argument(
        "--in-process", action="store_true", help="leave out the tests of real nodes"
    )
    parser.add_argument(
        "--swarm-seeds",
        type=int,
        default=0,
        help="print also which of so many seeds finds it with random faults alone",
    )
    return parser


def _candidates(parsed: argparse.Namespace) -> list[_Candidate] | str:
    if parsed.patches is not None:
        patches = sorted(parsed.patches.glob("*.patch"))
        if not patches:
            return f"{parsed.patches} holds no *.patch file"
        return [
            _Candidate(patch.stem, _changes(patch), RuleTests(), patched(patch))
            for patch in patches
        ]
    known = {mutant.name for mutant in MUTANTS}
    unknown = set(parsed.only or ()) - known
    if unknown:
        return f"no mutant {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}"
    share = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", parsed.share or "1/1")
    if share is None or int(share[1]) > int(share[2]):
        return f"--share is K/N with K from 1 to N, such as 1/10, not {parsed.share!r}"
    return [
        _Candidate(mutant.name, (mutant.file,), rule_tests_of(mutant.name), mutated(mutant))
        for mutant in share_of_mutants(int(share[1]), int(share[2]))
        if not parsed.only or mutant.name in parsed.only
    ]


def _changes(patch: Path) -> tuple[str, ...]:
    """The files of the package that ``patch`` changes."""
    return tuple(re.findall(r"^\+\+\+ \S*src/quorate/(\S+)", patch.read_text(), re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main())
