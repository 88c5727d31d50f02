"""What hunts planted bugs: which tests are about which file, and what each hunter makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import quorate
from verification.mutants.apply import mutated
from verification.mutants.catalogue import MUTANTS
from verification.mutants.hunters import (
    Catch,
    failing_without_a_bug,
    files_of,
    hunt_by_fleet,
    hunt_by_rule,
    hunt_by_simulator,
    hunt_by_tests,
    hunt_on_disk,
)
from verification.mutants.mutant import Mutant
from verification.mutants.rule_tests import RuleTests, rule_tests_of
from verification.mutants.suites import FOLDERS, PROCESS_TESTS, SUITES, suite_of

PACKAGE = Path(quorate.__file__).parent
FOLDER = Path(__file__).resolve().parents[1]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_source_file_has_its_tests() -> None:
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    wanted = {
        file
        for file in files
        if file.startswith(tuple(FOLDERS)) and not file.endswith("__init__.py")
    }
    mapped = [file for row, _ in SUITES for file in row]
    assert len(mapped) == len(set(mapped)), "a file has two rows"
    assert wanted - set(mapped) == set(), "add these to verification.mutants.suites"
    assert set(mapped) - files == set(), "these files are gone"


def test_the_tests_of_a_file_are_there() -> None:
    named = {name for _, tests in SUITES for name in tests} | set(PROCESS_TESTS)
    named |= {name for folders in FOLDERS.values() for name in folders}
    assert [name for name in sorted(named) if not (FOLDER / name).exists()] == []


def test_the_files_of_a_folder_come_once_and_start_no_node() -> None:
    first, *rest = files_of(["server/test_service.py", "server"])
    assert first == FOLDER / "server" / "test_service.py"
    assert FOLDER / "server" / "test_node.py" in rest
    assert first not in rest
    assert {FOLDER / name for name in PROCESS_TESTS}.isdisjoint(rest)


def test_every_mutant_is_hunted_by_tests_first() -> None:
    assert [mutant.name for mutant in MUTANTS if not suite_of([mutant.file])] == []


def test_the_tests_of_several_files_are_run_once() -> None:
    both = suite_of(["raft/electorate.py", "raft/leader.py"])
    assert len(both) == len(set(both))
    assert set(both) == {*suite_of(["raft/electorate.py"]), *suite_of(["raft/leader.py"])}
    assert suite_of(["no/such/file.py"]) == ()


def test_a_test_that_fails_catches_a_bug_and_passes_without_it() -> None:
    mutant = Mutant("majority", "", "raft/electorate.py", "// 2 + 1", "// 2 or 1")
    with mutated(mutant) as root:
        caught = hunt_by_tests(root, "test", ("raft/test_electorate.py",))
    assert caught is not None
    assert caught.by == "test"
    assert caught.test.startswith(f"{FOLDER / 'raft' / 'test_electorate.py'}::test_")
    assert failing_without_a_bug([caught]) == set()


def test_the_tests_of_a_rule_hunt_its_bug() -> None:
    mutant = BY_NAME["joint-elects-by-one-half"]
    rule = rule_tests_of(mutant.name)
    assert FOLDER / "raft" / "test_electorate.py" in rule.files
    with mutated(mutant) as root:
        caught = hunt_by_rule(root, rule)
    assert caught is not None
    assert caught.by == "rule"
    assert f"test_{caught.rule}" in rule.names


def test_a_rule_names_tests_and_scenarios() -> None:
    rule = rule_tests_of("stale-term-append-accepted")
    assert rule.names == ("test_dledger_5_2_5_every_message_of_an_old_leader_is_refused", "s04-")
    assert FOLDER / "scenarios" / "test_scenarios.py" in rule.files
    assert rule_tests_of("no-such-mutant") == RuleTests()


def test_most_bugs_have_tests_of_their_rule() -> None:
    without = [mutant.name for mutant in MUTANTS if not rule_tests_of(mutant.name).files]
    assert len(without) * 10 < len(MUTANTS), without


def test_a_test_that_fails_anyway_catches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "test_broken.py"
    file.write_text("def test_it():\n    assert False\n", encoding="utf-8")
    broken = f"{file}::test_it"
    assert failing_without_a_bug([Catch("test", "it", broken), Catch("7", "I3")]) == {broken}


def test_without_a_bug_means_with_the_package_that_hunts(tmp_path: Path) -> None:
    file = tmp_path / "test_place.py"
    file.write_text(
        f"import quorate\n\n\ndef test_it():\n    assert quorate.__path__ == [{str(PACKAGE)!r}]\n",
        encoding="utf-8",
    )
    assert failing_without_a_bug([Catch("test", "it", f"{file}::test_it")]) == set()


def test_a_copy_that_cannot_be_imported_is_caught_by_no_test() -> None:
    mutant = Mutant("broken", "", "raft/electorate.py", "from __future__", "from __past__")
    with mutated(mutant) as root:
        assert hunt_by_tests(root, "test", ("raft/test_electorate.py",)) is None


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_the_simulator_finds_the_same_seed_every_time() -> None:
    mutant = BY_NAME["own-copy-counted-early"]
    with mutated(mutant) as root:
        first = hunt_by_simulator(root, (mutant.file,), 30)
        assert first.caught
        assert hunt_by_simulator(root, (mutant.file,), 30) == first
        assert not hunt_by_simulator(root, ("client/routing.py",), 1).caught


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_whole_nodes_find_a_bug_between_nodes() -> None:
    mutant = BY_NAME["first-start-waits-for-no-node"]
    with mutated(mutant) as root:
        assert hunt_by_fleet(root, (mutant.file,), 5).rule == "first-start"
        assert not hunt_by_fleet(root, ("raft/electorate.py",), 1).caught


def test_the_enumeration_of_crashes_looks_at_storage_only(tmp_path: Path) -> None:
    assert hunt_on_disk(tmp_path, ("raft/electorate.py", "client/routing.py")) is None
