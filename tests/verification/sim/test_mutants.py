"""Planted bugs: each still applies, the runner finds them, and says so when one survives."""

from __future__ import annotations

import difflib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import quorate
from verification.mutants.apply import DoesNotApply, mutated, patched, planted
from verification.mutants.catalogue import MUTANTS, Mutant, share_of_mutants

PACKAGE = Path(quorate.__file__).parent
REQUIRED = 100


def run_mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verification.mutants", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_what_it_says(mutant: Mutant) -> None:
    changed = planted(mutant)
    assert changed != (PACKAGE / mutant.file).read_text()
    compile(changed, mutant.file, "exec")


def test_a_copy_differs_in_the_file_of_the_mutant_only() -> None:
    mutant = MUTANTS[0]
    with mutated(mutant) as root:
        copy = root / "src" / "quorate"
        files = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
        assert {path.relative_to(copy) for path in copy.rglob("*.py")} == files
        different = {
            file for file in files if (copy / file).read_text() != (PACKAGE / file).read_text()
        }
    assert different == {Path(mutant.file)}


def test_the_catalogue() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= REQUIRED


def test_a_mutant_that_no_longer_applies_is_named() -> None:
    gone = Mutant("gone", "nothing", "raft/electorate.py", "no such text", "")
    with pytest.raises(DoesNotApply, match=r"gone: raft/electorate\.py has its text 0 times"):
        mutated(gone).__enter__()


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_the_runner_catches_and_counts() -> None:
    done = run_mutants("--swarm-seeds", "2", "--only", "double-vote", "noop-skipped")
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows, last = done.stdout.splitlines()
    assert last == "mutants: 2 of 2 caught"
    assert head.endswith("swarm alone")
    assert [row.split()[:2] for row in rows] == [["double-vote", "rule"], ["noop-skipped", "rule"]]


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_patches_from_outside(tmp_path: Path) -> None:
    """One that breaks a rule, one that breaks none, one that does not apply."""
    write_patch(tmp_path / "a-majority.patch", "raft/electorate.py", "// 2 + 1", "// 2 or 1")
    write_patch(tmp_path / "b-harmless.patch", "wire/shapes.py", "Structures in", "Structs in")
    (tmp_path / "c-stale.patch").write_text(
        "--- a/src/quorate/raft/electorate.py\n+++ b/src/quorate/raft/electorate.py\n"
        "@@ -1 +1 @@\n-no such line\n+another\n"
    )
    done = run_mutants("--patches", str(tmp_path), "--in-process", "--seeds", "2")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "mutants: 1 of 3 caught"
    assert "c-stale" in done.stdout
    assert "does not apply" in done.stdout
    assert "survived" in done.stdout


def test_every_mutant_is_in_one_share() -> None:
    shares = [share_of_mutants(part, 10) for part in range(1, 11)]
    assert all(shares)
    assert sorted(itertools.chain(*shares)) == sorted(MUTANTS)
    assert share_of_mutants(1, 1) == list(MUTANTS)


@pytest.mark.parametrize("share", ["0/3", "4/3", "1/0", "1", "one/two", "-1/3"])
def test_a_share_that_cannot_be_had_is_a_usage_error(share: str) -> None:
    done = run_mutants(f"--share={share}")
    assert (done.returncode, "--share is K/N" in done.stderr) == (2, True)


def test_unknown_names_and_empty_folders_are_usage_errors(tmp_path: Path) -> None:
    unknown = run_mutants("--only", "no-such-mutant")
    assert (unknown.returncode, "no mutant no-such-mutant" in unknown.stderr) == (2, True)
    empty = run_mutants("--patches", str(tmp_path))
    assert (empty.returncode, "no *.patch file" in empty.stderr) == (2, True)


@pytest.mark.sim
@pytest.mark.timeout(300)
def test_a_failing_run_is_saved_replayed_and_shrunk(tmp_path: Path) -> None:
    """The whole way from a planted bug to a smaller record of it."""
    mutant = "own-copy-counted-early"
    found = run_sim("--mutant", mutant, "--seeds", "30", "--stop-at-first",
                    "--failures", str(tmp_path))  # fmt: skip
    assert found.returncode == 1
    (record,) = tmp_path.glob("seed-*.json")
    again = run_sim("--mutant", mutant, "--replay", str(record), "--shrink", "25")
    assert again.returncode == 1, again.stdout + again.stderr
    small = record.with_suffix(".small.json")
    assert small.stat().st_size < record.stat().st_size
    assert run_sim("--mutant", mutant, "--replay", str(small)).returncode == 1
    assert run_sim("--replay", str(small)).returncode == 0, "the bug is only in the mutant"


def test_an_unknown_mutant_is_a_usage_error() -> None:
    done = run_sim("--mutant", "no-such-mutant")
    assert done.returncode == 2
    assert "no mutant 'no-such-mutant'" in done.stderr


def test_a_patch_that_does_not_apply_is_named(tmp_path: Path) -> None:
    patch = tmp_path / "broken.patch"
    patch.write_text("this is no patch\n")
    with pytest.raises(DoesNotApply, match=r"broken\.patch"):
        patched(patch).__enter__()


def run_sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verification.sim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_patch(path: Path, file: str, find: str, replace: str) -> None:
    before = (PACKAGE / file).read_text()
    after = before.replace(find, replace)
    assert after != before
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/src/quorate/{file}",
        f"b/src/quorate/{file}",
    )
    path.write_text("".join(lines))
