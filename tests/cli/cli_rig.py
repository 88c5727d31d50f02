"""A command that ran, and what it left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Ran", "Run"]


class Ran(NamedTuple):
    status: int
    out: bytes
    err: str

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


# Takes the command's arguments, and ``given``: the bytes of its standard input.
Run = Callable[..., Ran]
