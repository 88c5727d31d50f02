"""A failing run on file: its options and choices, so that it can be replayed and taken apart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verification.sim.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from verification.sim.decisions import Choice
    from verification.sim.run import Outcome

__all__ = ["load", "save"]

FORMAT = 1


def save(path: Path, outcome: Outcome) -> None:
    """Write the options and choices that are needed to run ``outcome`` again."""
    violation = outcome.violation
    head: dict[str, Any] = {
        "format": FORMAT,
        "violation": None if violation is None else [violation.rule, violation.detail],
        "options": outcome.options.as_dict(),
    }
    # One choice a line: a shrunk record is read by people and reviewed as a diff.
    lines = ",\n".join(f"  {json.dumps(choice)}" for choice in outcome.choices)
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "choices": [\n{lines}\n ]\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def load(path: Path) -> tuple[Options, list[Choice], str | None]:
    """Options, choices and the broken rule of a saved run."""
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise ValueError(f"{path}: format {record.get('format')!r}, this release reads {FORMAT}")
    choices = [(name, position, value) for name, position, value in record["choices"]]
    violation = record["violation"]
    return Options.from_dict(record["options"]), choices, violation[0] if violation else None
