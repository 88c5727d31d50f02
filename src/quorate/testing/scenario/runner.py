"""Plays a scenario file and compares, or rewrites, its output."""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument
from quorate.testing.scenario.commands import COMMANDS, make_cluster
from quorate.testing.scenario.parser import Command, Scenario, ScenarioError, parse

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.testing.scenario.cluster import ScenarioCluster

__all__ = ["play", "run_file"]

START = "cluster"
NOTHING = "ok"


def run_file(path: Path, *, rewrite: bool = False) -> None:
    """Play ``path``. Raises ScenarioError if an expectation fails or the output differs.

    With ``rewrite`` a difference is written to the file instead; a failed expectation still
    raises, and leaves the file as it is.
    """
    text = path.read_text(encoding="utf-8")
    scenario = parse(path.name, text)
    played = scenario.render(play(scenario))
    if played == text:
        return
    if rewrite:
        path.write_text(played, encoding="utf-8")
        return
    difference = unified_diff(
        text.splitlines(), played.splitlines(), f"{path.name} (written)", "(played)", lineterm=""
    )
    raise ScenarioError("\n".join([f"{path.name}: other output than written:", *difference]))


def play(scenario: Scenario) -> list[list[str]]:
    """The output of every block."""
    cluster: ScenarioCluster | None = None
    outputs: list[list[str]] = []
    for block in scenario.blocks:
        output: list[str] = []
        for command in block.commands:
            try:
                if command.name == START:
                    cluster = make_cluster(command)
                else:
                    output += _carry_out(cluster, command)
            except (ScenarioError, InvalidArgument, LookupError, ValueError) as problem:
                so_far = [*output, *(cluster.take_transcript() if cluster is not None else [])]
                place = f"{scenario.name}:{command.line}"
                raise ScenarioError(
                    "\n".join([f"{place}: {_explain(command, problem)}", *so_far])
                ) from problem
        outputs.append(output or [NOTHING])
    return outputs


def _carry_out(cluster: ScenarioCluster | None, command: Command) -> list[str]:
    if command.name not in COMMANDS:
        raise ScenarioError(f"unknown command; known: {', '.join([START, *COMMANDS])}")
    if cluster is None:
        raise ScenarioError(f"{START} comes first")
    shown = COMMANDS[command.name](cluster, command)
    return [*cluster.take_transcript(), *shown]


def _explain(command: Command, problem: Exception) -> str:
    """A wrong number of words is told by how the command is written."""
    if isinstance(problem, ValueError):
        return f"{command.name}: {COMMANDS[command.name].__doc__}"
    return f"{command.name}: {problem}"
