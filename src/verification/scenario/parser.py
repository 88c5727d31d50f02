"""The scenario file: comments, commands, ``----``, the output they gave, a blank line.

Knows no command's meaning. Every line that was read is kept, so that a file can be written back
with other output and no other change.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "Scenario", "ScenarioBlock", "ScenarioError", "parse"]

SEPARATOR = "----"
COMMENT = "#"


class ScenarioError(AssertionError):
    """A scenario cannot be read or did not go as expected. The text names file and line."""


@dataclass(slots=True)
class Command:
    """One command line, and the indented lines below it."""

    line: int
    name: str
    words: list[str]
    body: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ScenarioBlock:
    """Commands and the output that they are expected to give together."""

    line: int
    # Comments and blank lines before the commands, and the commands as they were written.
    lines: list[str]
    commands: list[Command]
    # None if the block has no ``----`` yet: written for the first time.
    output: list[str] | None = None


@dataclass(slots=True)
class Scenario:
    name: str
    blocks: list[ScenarioBlock]
    # The lines after the last block.
    rest: list[str]

    def render(self, outputs: Sequence[Sequence[str]]) -> str:
        """The file with ``outputs`` in place of the output of each block."""
        lines: list[str] = []
        for block, output in zip(self.blocks, outputs, strict=True):
            lines += [*block.lines, SEPARATOR, *output]
        return "\n".join([*lines, *self.rest]).rstrip("\n") + "\n"


def parse(name: str, text: str) -> Scenario:
    """Read ``text``; errors name the file ``name``."""
    lines = text.split("\n")
    blocks: list[ScenarioBlock] = []
    pending: list[str] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith(COMMENT):
            pending.append(lines[at])
            at += 1
            continue
        block = ScenarioBlock(at + 1, pending, [])
        pending = []
        at = _read_commands(name, lines, at, block)
        at = _read_output(lines, at, block)
        blocks.append(block)
    return Scenario(name, blocks, pending)


def _read_commands(name: str, lines: list[str], at: int, block: ScenarioBlock) -> int:
    """Read up to the separator, or to the blank line that ends a block without one."""
    while at < len(lines) and lines[at].strip() and lines[at] != SEPARATOR:
        line = lines[at]
        block.lines.append(line)
        at += 1
        if line.startswith(COMMENT):
            continue
        if not line[0].isspace():
            block.commands.append(_command(name, at, line))
        elif block.commands:
            block.commands[-1].body.append(line)
        else:
            raise ScenarioError(f"{name}:{at}: an indented line belongs below a command")
    if not block.commands:
        raise ScenarioError(f"{name}:{block.line}: there is no command above {SEPARATOR}")
    return at


def _command(name: str, line: int, text: str) -> Command:
    try:
        first, *words = shlex.split(text)
    except ValueError as problem:
        raise ScenarioError(f"{name}:{line}: {problem}: {text}") from problem
    return Command(line, first, words)


def _read_output(lines: list[str], at: int, block: ScenarioBlock) -> int:
    if at == len(lines) or lines[at] != SEPARATOR:
        return at
    start = at = at + 1
    while at < len(lines) and lines[at].strip():
        at += 1
    block.output = lines[start:at]
    return at
