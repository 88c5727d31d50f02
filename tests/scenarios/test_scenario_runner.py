"""The runner of scenario files can fail: wrong output, wrong commands, broken rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from verification.scenario import ScenarioError, run_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RIGHT = """\
# A comment that stays.

cluster nodes=3 leader=n1
propose n1 a
settle
----
a -> offset 0, index 2, term 1, on 2 disks
committed: n1 2

# Another one.
run 100ms
expect same-logs
----
committed: n2 2, n3 2
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.txt"
    path.write_text(text, encoding="utf-8")
    return path


def problem_of(tmp_path: Path, text: str, *, rewrite: bool = False) -> str:
    """How the runner refuses ``text``, which it must leave as it is."""
    path = written(tmp_path, text)
    with pytest.raises(ScenarioError) as caught:
        run_file(path, rewrite=rewrite)
    assert path.read_text(encoding="utf-8") == text
    return str(caught.value)


def test_right_output_passes(tmp_path: Path) -> None:
    run_file(written(tmp_path, RIGHT))


def test_wrong_output_fails_with_the_difference(tmp_path: Path) -> None:
    wrong = RIGHT.replace("index 2", "index 3")
    problem = problem_of(tmp_path, wrong)
    assert "some.txt: other output than written" in problem
    assert "\n-a -> offset 0, index 3, term 1, on 2 disks\n" in problem
    assert "\n+a -> offset 0, index 2, term 1, on 2 disks\n" in problem


@pytest.mark.parametrize(
    "wrong",
    [
        RIGHT.replace("committed: n1 2\n", ""),
        RIGHT.replace("committed: n1 2\n", "committed: n1 2\nn1: leads in term 9\n"),
        RIGHT.replace("a -> offset 0", "a -> offset 1"),
        RIGHT.replace("----\na -> offset 0, index 2, term 1, on 2 disks\ncommitted: n1 2\n", ""),
    ],
    ids=["line missing", "line too many", "line changed", "no output yet"],
)
def test_rewriting_gives_what_then_passes(tmp_path: Path, wrong: str) -> None:
    problem_of(tmp_path, wrong)
    path = written(tmp_path, wrong)
    run_file(path, rewrite=True)
    assert path.read_text(encoding="utf-8") == RIGHT
    run_file(path)


def test_unknown_command_fails_by_file_and_line(tmp_path: Path) -> None:
    for rewrite in (False, True):
        problem = problem_of(tmp_path, RIGHT.replace("settle", "setle"), rewrite=rewrite)
        assert problem.startswith("some.txt:5: setle: unknown command")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("expect leader n2", "expected leader n2, found n1"),
        ("expect n2 committed=3", "expected n2 committed 3, found 2"),
        ("expect answer a BUSY", "expected answer to a BUSY, found OK"),
        ("expect records n3 b", "expected n3 records b, found a"),
        ("expect log n1 1 2", "expected n1 log 1 2, found 1 1"),
        ("expect peer n1->n2 match=1", "expected n1->n2 match 1, found 2"),
        ("expect table append count=2", "expected messages on the table count=2, found 0"),
        ("expect happened n1 truncates at-least=1", "expected n1 truncates at-least=1, found 0"),
        ("expect refused n1 stale-term count=1", "expected n1 refusals stale-term count=1"),
        ("expect arrived n1->n2 append at-most=0", "expected messages arrived at-most=0, found 1"),
    ],
)
def test_failed_expectation_is_never_rewritten(tmp_path: Path, line: str, said: str) -> None:
    for rewrite in (False, True):
        problem = problem_of(tmp_path, RIGHT.replace("expect same-logs", line), rewrite=rewrite)
        assert problem.startswith(f"some.txt:12: expect: {said}")


def test_same_logs_and_kept_receipts_are_looked_for(tmp_path: Path) -> None:
    early = RIGHT.replace("run 100ms\nexpect same-logs", "expect same-logs")
    assert "expected n2 committed 2, found 1" in problem_of(tmp_path, early)
    early = RIGHT.replace("run 100ms\nexpect same-logs", "expect receipts-hold")
    assert "expected n2 to have 'a' at [0], found []" in problem_of(tmp_path, early)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run soon", "'soon' is not a time such as 300ms or 2s"),
        ("run", "is written as ``run 300ms``"),
        ("deliver appends", "'appends' is neither a link such as n1->n2 nor one of: pre-vote"),
        ("deliver append", "no such message is on the table"),
        ("cut n1->n9", "unknown node n9"),
        ("cluster nodes=3 limit=4", "unknown option limit=; known: app_expiry_ms"),
        ("cluster nodes=3 append_entries=0", "limits.append_entries = 0 is not a whole number"),
        ("crash n1 power gone", "crash NODE... power lost|kept|torn"),
        ("restart n1", "n1 is up"),
        ("propose n1 a", "'a' was asked for already"),
        ("expect answer b OK", "'b' was never asked for"),
        ("expect n1 mood=good", "unknown option mood=; known: applied"),
        ("expect happiness", "unknown expectation: happiness"),
        ("flush n1", "n1 has no flush under way"),
        ("replay old", "no message was copied as old"),
        ("plant", "plant needs rows below it"),
        ("plant\n  n1: 1 2 2\n  n2: 2 2", "n2: another row has index 2 of term 2 after other"),
        ("plant\n  n1 1 2", "not a row such as `  n1: 1 1 2`: n1 1 2"),
        ('propose n1 "b', "No closing quotation"),
    ],
)
def test_wrong_words_are_told_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    problem = problem_of(tmp_path, RIGHT.replace("expect same-logs", line))
    assert problem.startswith("some.txt:12: ")
    assert said in problem


def test_a_cluster_comes_first(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "run 1s\n----\nok\n")
    assert problem == "some.txt:1: run: cluster comes first"


def test_an_indented_line_needs_a_command(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "# Here.\n\n  n1: 1\n----\nok\n")
    assert problem == "some.txt:3: an indented line belongs below a command"


def test_output_needs_a_command(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "----\nok\n")
    assert problem == "some.txt:1: there is no command above ----"


ALONE = "cluster nodes=3 leader=n1\nisolate n1\npropose n1 a\nsettle\n"
DUEL = "cluster nodes=3\ncampaign n1 n2\n"
DEPOSED = "cluster nodes=3 leader=n1\nisolate n1\nelect n2\npropose n2 a\nsettle\nread n1 as r\n"


@pytest.mark.parametrize(
    ("rule", "broken", "commands", "said"),
    [
        (
            "electorate.Electorate.reached",
            lambda _, values: max(values.values()),
            ALONE,
            "index 2 was acknowledged and is on 1 of 3",
        ),
        ("electorate.majority", lambda _: 1, DUEL, "n1 and n2 both lead in term 1"),
        ("leader.Leader.confirmed_round", lambda leader: leader.round, DEPOSED, "a read says that"),
    ],
    ids=["one copy is a majority", "one vote is a majority", "nobody vouches for a read"],
)
def test_a_broken_rule_fails_without_any_expectation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    broken: Callable[..., int],
    commands: str,
    said: str,
) -> None:
    monkeypatch.setattr(f"quorate.raft.{rule}", broken)
    assert f"RULE BROKEN: {said}" in problem_of(tmp_path, f"{commands}----\n", rewrite=True)
