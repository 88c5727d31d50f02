"""The hunters of planted bugs: tests, the enumeration of crashes, the simulators."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from verification.mutants.apply import PACKAGE, environment
from verification.mutants.rule_tests import TESTS
from verification.mutants.suites import PROCESS_TESTS, folders_of, suite_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from verification.mutants.rule_tests import RuleTests

__all__ = [
    "Catch",
    "failing_without_a_bug",
    "files_of",
    "hunt",
    "hunt_by_fleet",
    "hunt_by_rule",
    "hunt_by_simulator",
    "hunt_by_tests",
    "hunt_on_disk",
]

NEVER = "-"
# The first seeds take as long as some tests, and find most bugs that break a cluster.
FIRST_SEEDS = 20
# Options of pytest: stop at the first failure, remember nothing, and draw the same examples in
# every run.
PYTEST = (
    "-m", "pytest", "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider",
    "--hypothesis-seed=0",
)  # fmt: skip
# A test that failed, or whose fixtures did. A file that cannot be imported has no "::".
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py)::(\w+)", re.MULTILINE)
# The enumeration crashes the open that follows a crash once in so many times.
EVERY_OPEN = "25"
# Packages that the simulator does not run.
NOT_SIMULATED = ("client/", "server/", "net/", "cli/", "spark/", "pipeline/", "demo/")
SIMULATED = ("client/produce/window.py",)
# Files that the fleet runs besides: whole nodes. A seed of it takes a second, and it finds most of
# its bugs in the first ten.
IN_THE_FLEET = (
    "server/logs/catalog.py", "server/logs/placing.py", "server/manifest.py",
    "server/logs/reconciler.py", "server/identity/roster.py", "storage/manifest.py",
)  # fmt: skip
FLEET_SEEDS = 40


class Catch(NamedTuple):
    """The hunter that noticed a bug, and the rule by which it did; ``by`` is a seed if it was a
    simulator."""

    by: str
    rule: str
    # The name of the failed test, as pytest takes it.
    test: str = ""

    @property
    def caught(self) -> bool:
        return self.by != NEVER


def hunt(
    root: Path, files: tuple[str, ...], rule: RuleTests, seeds: int, *, processes: bool
) -> Catch:
    """Let the hunters look for the bug in ``files`` of the copy at ``root``, until one notices
    it. ``rule``: the tests of the rule that the bug breaks."""
    near = hunt_by_rule(root, rule) or hunt_by_tests(root, "test", suite_of(files))
    if near is not None:
        return near
    first = hunt_by_simulator(root, files, min(seeds, FIRST_SEEDS))
    if first.caught:
        return first
    closer = hunt_by_tests(root, "test", folders_of(files)) or hunt_on_disk(root, files)
    if closer is not None:
        return closer
    start = ("--start", str(FIRST_SEEDS))
    simulated = hunt_by_simulator(root, files, max(0, seeds - FIRST_SEEDS), *start)
    if not simulated.caught:
        simulated = hunt_by_fleet(root, files, min(seeds, FLEET_SEEDS))
    if simulated.caught or not processes:
        return simulated
    return hunt_by_tests(root, "process", PROCESS_TESTS) or simulated


def failing_without_a_bug(catches: Iterable[Catch]) -> set[str]:
    """Those tests of ``catches`` that also fail on the package as it is."""
    tests = sorted({catch.test for catch in catches if catch.test})
    if not tests:
        return set()
    # Run all tests, not only those up to the first failure.
    arguments = [argument for argument in PYTEST if argument != "-x"]
    root = PACKAGE.parents[1]
    told = _run(PACKAGE.parent, root, *arguments, *tests).stdout
    return {_test(root, found) for found in FAILED.finditer(told)}


def hunt_by_tests(root: Path, by: str, names: tuple[str, ...]) -> Catch | None:
    """The result of these tests; None if none of them fails, or none is there."""
    if not names or not TESTS.is_dir():
        return None
    return _hunt_in(root, by, *map(str, files_of(names)))


def hunt_by_rule(root: Path, rule: RuleTests) -> Catch | None:
    """The result of the tests of a rule; None if none of them fails, or none is there."""
    if not rule.files:
        return None
    return _hunt_in(root, "rule", *map(str, rule.files), "-k", " or ".join(rule.names))


def _hunt_in(root: Path, by: str, *arguments: str) -> Catch | None:
    """The first failure of the tests that these arguments of pytest select."""
    failed = FAILED.search(_run(root / "src", root, *PYTEST, *arguments).stdout)
    if failed is None:
        return None
    return Catch(by, failed[2].removeprefix("test_"), _test(root, failed))


def files_of(names: Iterable[str]) -> list[Path]:
    """The files of these tests and folders, each once; of a folder those that start no node."""
    started = {TESTS / name for name in PROCESS_TESTS}
    found: list[Path] = []
    for path in (TESTS / name for name in names):
        found += sorted({*path.glob("test_*.py")} - started) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _test(directory: Path, found: re.Match[str]) -> str:
    """The test of a line that pytest printed in ``directory``."""
    return f"{(directory / found[1]).resolve()}::{found[2]}"


def hunt_on_disk(root: Path, files: tuple[str, ...]) -> Catch | None:
    """The result of the enumeration of crashes; None if it finds nothing."""
    if not any(file.startswith(("storage/", "entry.py")) for file in files):
        return None
    enumerate_crashes = ("-m", "verification.disk.enumerate", "--every", EVERY_OPEN)
    told = _run(root / "src", root, *enumerate_crashes).stdout
    bad = re.search(r"^crash states: \d+, bad: [1-9]", told, re.MULTILINE)
    return Catch("crash", "enumerated") if bad else None


def hunt_by_simulator(root: Path, files: tuple[str, ...], seeds: int, *flags: str) -> Catch:
    """Run seeds in the copy until one fails."""
    if not any(file in SIMULATED or not file.startswith(NOT_SIMULATED) for file in files):
        return Catch(NEVER, "survived")
    keep = ("--failures", str(root / "failures"))
    return _hunt_by_seeds(root, "verification.sim", seeds, *keep, *flags)


def hunt_by_fleet(root: Path, files: tuple[str, ...], seeds: int) -> Catch:
    """Run seeds of whole nodes in the copy until one fails."""
    if not any(file in IN_THE_FLEET for file in files):
        return Catch(NEVER, "survived")
    return _hunt_by_seeds(root, "verification.fleet", seeds)


def _hunt_by_seeds(root: Path, simulator: str, seeds: int, *flags: str) -> Catch:
    # One process: with several, the first seed to fail would depend on their speed.
    done = _run(
        root / "src", root, "-m", simulator, "--seeds", str(seeds), "--jobs", "1",
        "--stop-at-first", *flags,
    )  # fmt: skip
    failed = re.search(r"^seed (\d+) .*?\): ([\w-]+):", done.stdout, re.MULTILINE)
    if failed:
        return Catch(failed[1], failed[2])
    # A copy that does not even run was not caught by any rule: it is no mutant worth having.
    return Catch(NEVER, "survived" if done.returncode == 0 else "does not run")


def _run(source: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python arguments`` with the package below ``source``."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(source),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
