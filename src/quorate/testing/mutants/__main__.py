"""Plants every bug in turn and requires that it is found.

What looks at one part closely and fast hunts first: the enumeration of crashes at bugs of storage,
and the tests of the file that a bug is in. All others, and those that these miss, are hunted by the
simulator.

``python -m quorate.testing.mutants [--patches DIR] [--only NAME ...]``
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quorate.testing.mutants.apply import (
    PACKAGE,
    DoesNotApply,
    environment,
    mutated,
    patched,
)
from quorate.testing.mutants.catalogue import MUTANTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

SEEDS = 5_000
SWARM_SEEDS = 10
NEVER = "-"
# The enumeration crashes the open that follows a crash once in so many times.
EVERY_OPEN = "25"
# No run of the simulator gets there, but to a producer's window.
NOT_SIMULATED = ("client/", "server/")
SIMULATED = ("client/window.py",)
# The tests that hunt first, by the files that hold the bug; the first that fits counts. The rest of
# consensus is the simulator's.
TESTS = (
    (
        ("storage/recovered.py", "storage/checkpoint.py", "replica/engine.py"),
        ("unit/test_engine_state.py", "unit/test_disk_full.py", "unit/test_engine_reads.py"),
    ),
    (("storage/", "entry.py"), ("unit/test_entry.py", "storage")),
    (
        ("state/", "replica/proposals.py", "replica/drafts.py", "replica/agreement.py"),
        ("state", "unit/test_proposals.py", "unit/test_proposals_answers.py",
         "unit/test_proposals_staging.py", "unit/test_agreement.py"),
    ),
    (
        ("replica/reader.py", "replica/published.py"),
        ("replica/test_published.py", "replica/test_reader_staging.py", "replica/test_reader.py"),
    ),
    (("raft/log.py",), ("unit/test_raft_log.py",)),
    (("raft/leader.py",), ("unit/test_engine_proposals.py",)),
    (("client/window.py",), ("client/test_producer_window.py", "client/test_producer_model.py")),
    (
        ("client/accumulator.py", "client/sender.py", "client/tickets.py"),
        ("client/test_producer_records.py", "client/test_producer_sending.py"),
    ),
    (("client/",), ("client/test_client_retries.py",)),
    (("server/roster.py",), ("server/test_roster.py",)),
    (
        ("server/reconciler.py", "server/catalog.py", "server/table.py"),
        ("server/test_reconciler.py", "server/test_catalog.py", "server/test_table.py"),
    ),
    (
        ("server/replicas.py", "server/carrier.py", "server/keeper.py"),
        ("server/test_halted_logs.py", "server/test_carrier.py"),
    ),
    (("server/",), ("server/test_manifest.py",)),
)  # fmt: skip


class _Candidate(NamedTuple):
    name: str
    # The file with the bug in it, below the package.
    file: str
    copy: AbstractContextManager[Path]


class _Catch(NamedTuple):
    """How the simulator noticed: which seed, which rule; no seed if it did not."""

    seed: str
    rule: str

    @property
    def caught(self) -> bool:
        return self.seed != NEVER


def main() -> int:
    parsed = _parser().parse_args()
    candidates = _candidates(parsed)
    if isinstance(candidates, str):
        print(f"error: {candidates}", file=sys.stderr)
        return 2
    caught = 0
    print(f"{'mutant':40} {'seed':>6} {'rule':14} {'swarm alone':>12}", flush=True)
    for candidate in candidates:
        try:
            with candidate.copy as root:
                found = (
                    _hunt_on_disk(root, candidate.file)
                    or _hunt_by_tests(root, candidate.file)
                    or _hunt(root, candidate.file, parsed.seeds)
                )
                seeds = min(parsed.swarm_seeds, parsed.seeds)
                alone = _hunt(root, candidate.file, seeds, "--no-adversaries")
        except DoesNotApply as problem:
            print(f"{candidate.name:40} does not apply: {problem}", flush=True)
            continue
        caught += found.caught
        print(f"{candidate.name:40} {found.seed:>6} {found.rule:14} {alone.seed:>12}", flush=True)
    print(f"mutants: {caught} of {len(candidates)} caught")
    return 0 if caught == len(candidates) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quorate.testing.mutants", description=__doc__)
    parser.add_argument("--patches", type=Path, help="try the *.patch files of this folder instead")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="try only these mutants")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds until one survives")
    parser.add_argument(
        "--swarm-seeds", type=int, default=SWARM_SEEDS, help="seeds for the column 'swarm alone'"
    )
    return parser


def _candidates(parsed: argparse.Namespace) -> list[_Candidate] | str:
    if parsed.patches is not None:
        patches = sorted(parsed.patches.glob("*.patch"))
        if not patches:
            return f"{parsed.patches} holds no *.patch file"
        return [_Candidate(patch.stem, _changes(patch), patched(patch)) for patch in patches]
    known = {mutant.name for mutant in MUTANTS}
    unknown = set(parsed.only or ()) - known
    if unknown:
        return f"no mutant {', '.join(sorted(unknown))}; there are: {', '.join(sorted(known))}"
    chosen = [mutant for mutant in MUTANTS if not parsed.only or mutant.name in parsed.only]
    return [_Candidate(mutant.name, mutant.file, mutated(mutant)) for mutant in chosen]


def _changes(patch: Path) -> str:
    """The first file of the package that ``patch`` changes."""
    found = re.search(r"^\+\+\+ \S*src/quorate/(\S+)", patch.read_text(), re.MULTILINE)
    return found[1] if found else ""


def _hunt_on_disk(root: Path, file: str) -> _Catch | None:
    """What the enumeration of crashes says; None if it finds nothing."""
    if not file.startswith(("storage/", "entry.py")):
        return None
    crashes = _run(root, "-m", "quorate.testing.disk.enumerate", "--every", EVERY_OPEN)
    if re.search(r"^crash states: \d+, bad: [1-9]", crashes, re.MULTILINE):
        return _Catch("crash", "enumerated")
    return None


def _hunt_by_tests(root: Path, file: str) -> _Catch | None:
    """What the tests of ``file`` say; None if none of them fails."""
    folder = PACKAGE.parents[1] / "tests"
    chosen = next((tests for files, tests in TESTS if file.startswith(files)), ())
    if not chosen or not folder.is_dir():
        return None
    paths = [str(folder / name) for name in chosen]
    told = _run(root, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths)
    failed = re.search(r"^FAILED \S+::(\w+)", told, re.MULTILINE)
    return _Catch("test", failed[1].removeprefix("test_")[:14]) if failed else None


def _run(root: Path, *arguments: str) -> str:
    """What ``python arguments`` prints in the copy."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment(root), cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout


def _hunt(root: Path, file: str, seeds: int, *flags: str) -> _Catch:
    """Run seeds in the copy until one fails."""
    if file.startswith(NOT_SIMULATED) and file not in SIMULATED:
        return _Catch(NEVER, "survived")
    command = [
        sys.executable, "-m", "quorate.testing.sim", "--seeds", str(seeds), "--stop-at-first",
        "--failures", str(root / "failures"), *flags,
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(root), cwd=root, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^seed (\d+) .*?\): ([\w-]+):", done.stdout, re.MULTILINE)
    if failed:
        return _Catch(failed[1], failed[2])
    # A copy that does not even run was not caught by any rule: it is no mutant worth having.
    return _Catch(NEVER, "survived" if done.returncode == 0 else "does not run")


if __name__ == "__main__":
    sys.exit(main())
