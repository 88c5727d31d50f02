"""Plays a scenario file and compares, or rewrites, its output."""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument
from verification.scenario.commands import COMMANDS, make_cluster
from verification.scenario.parser import Command, Scenario, ScenarioError, parse

if TYPE_CHECKING:
    from pathlib import Path

    from verification.scenario.cluster import ScenarioCluster

__all__ = ["play", "run_file"]

# START begins again with another cluster; QUIET hides the events up to the end of the block.
START, QUIET = "cluster", "quiet"
# The output of a block without events.
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
    player = _Player()
    outputs = []
    for block in scenario.blocks:
        player.begin()
        for command in block.commands:
            try:
                player.carry_out(command)
            except (ScenarioError, InvalidArgument, LookupError, RuntimeError) as problem:
                place = f"{scenario.name}:{command.line}: {command.name}"
                so_far = "\n".join(player.output)
                raise ScenarioError(f"{place}: {problem}\n{so_far}".rstrip()) from problem
        outputs.append(player.output or [NOTHING])
    return outputs


class _Player:
    """The cluster at hand and the output of the block at hand."""

    def __init__(self) -> None:
        self.output: list[str] = []
        self._cluster: ScenarioCluster | None = None
        self._quiet = False

    def begin(self) -> None:
        """Begin another block."""
        self.output = []
        self._quiet = False

    def carry_out(self, command: Command) -> None:
        if command.name == START:
            self._cluster = make_cluster(command)
        elif command.name == QUIET:
            self._quiet = True
        elif command.name not in COMMANDS:
            known = ", ".join([START, QUIET, *COMMANDS])
            raise ScenarioError(f"unknown command; known: {known}")
        elif self._cluster is None:
            raise ScenarioError(f"{START} comes first")
        else:
            self._carry_out(self._cluster, command)

    def _carry_out(self, cluster: ScenarioCluster, command: Command) -> None:
        act = COMMANDS[command.name]
        try:
            shown = act(cluster, command)
        except ValueError as problem:  # a wrong number of words
            raise ScenarioError(f"is written as {act.__doc__}") from problem
        finally:
            happened = cluster.take_transcript()
            if not self._quiet:
                self.output += happened
        self.output += shown
