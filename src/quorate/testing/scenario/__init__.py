"""Scenario files: situations as text, played on a cluster moved by hand.

A file opens with a comment that draws the situation and says what is at stake. Then come blocks:
commands, a line ``----``, the output that they gave, a blank line. Output is compared and can be
rewritten; what must never be rewritten is said with ``expect``.

The commands are in :mod:`quorate.testing.scenario.commands`, the expectations in
:mod:`quorate.testing.scenario.expectations`; each says in its docstring how it is written.
"""

from __future__ import annotations

from quorate.testing.scenario.parser import Scenario, ScenarioError, parse
from quorate.testing.scenario.runner import play, run_file

__all__ = ["Scenario", "ScenarioError", "parse", "play", "run_file"]
