"""The report of the simulator when a rule is broken."""

from __future__ import annotations

__all__ = ["Violation"]


class Violation(Exception):
    """One broken rule: its name, and the observation."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule, detail)
        self.rule = rule
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"
