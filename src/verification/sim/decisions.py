"""Every choice of a run, so that it can be replayed and taken apart.

A run asks named streams for its choices, one by one. Recording, a stream draws from its own seeded
generator and notes each choice that differs from the default; replaying, it gives back the noted
choices and the default for all others. So a run can be shrunk by forgetting choices, and a recorded
run survives changes to the code that draws them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Choice", "Decisions", "Stream"]

T = TypeVar("T")

# (stream, position in it, value): a value is any value that JSON can hold.
Choice = tuple[str, int, Any]


class Stream:
    """The choices of one kind at one place: one link, one disk, the faults, the clients."""

    __slots__ = ("_count", "_random", "_recorded", "noted")

    def __init__(self, random: Random, recorded: dict[int, Any] | None) -> None:
        self._random = random
        self._recorded = recorded
        self._count = 0
        self.noted: dict[int, Any] = {}

    def choose(self, default: T, draw: Callable[[Random], T]) -> T:
        """The next choice of this stream."""
        position = self._count
        self._count += 1
        if self._recorded is not None:
            choice: T = self._recorded.get(position, default)
        else:
            choice = draw(self._random)
        if choice != default:
            self.noted[position] = choice
        return choice


class Decisions:
    """All streams of one run."""

    def __init__(self, seed: str, recorded: list[Choice] | None = None) -> None:
        self._seed = seed
        self._recorded: dict[str, dict[int, Any]] | None = None
        self._streams: dict[str, Stream] = {}
        if recorded is not None:
            self._recorded = {}
            for name, position, value in recorded:
                self._recorded.setdefault(name, {})[position] = value

    def stream(self, name: str) -> Stream:
        """The stream ``name``; the same one every time."""
        if name not in self._streams:
            recorded = None if self._recorded is None else self._recorded.get(name, {})
            self._streams[name] = Stream(Random(f"{self._seed}/{name}"), recorded)
        return self._streams[name]

    def noted(self) -> list[Choice]:
        """The choices that differed from the defaults, stream by stream."""
        return [
            (name, position, value)
            for name, stream in sorted(self._streams.items())
            for position, value in stream.noted.items()
        ]
