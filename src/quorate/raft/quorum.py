"""Majorities of voters, and the values that a majority has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["majority", "reached_by_majority"]


def majority(voters: int) -> int:
    """The smallest number such that any two sets of that many voters share one."""
    return voters // 2 + 1


def reached_by_majority(values: Collection[int]) -> int:
    """The highest value that a majority of ``values`` is at or above."""
    return sorted(values, reverse=True)[majority(len(values)) - 1]
