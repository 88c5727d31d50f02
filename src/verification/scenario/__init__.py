"""Scenario files: situations as text, played on a cluster moved by hand.

A file opens with a comment that draws the situation and says why it matters. Then come blocks:
commands, a line ``----``, the output that they gave, a blank line. Output is compared and can be
rewritten; rules that must never be rewritten are stated with ``expect``.

The commands are in :mod:`verification.scenario.commands`, the expectations in
:mod:`verification.scenario.expectations`; the docstring of each gives its syntax.
"""

from __future__ import annotations

from verification.scenario.parser import Scenario, ScenarioError, parse
from verification.scenario.runner import play, run_file

__all__ = ["Scenario", "ScenarioError", "parse", "play", "run_file"]
