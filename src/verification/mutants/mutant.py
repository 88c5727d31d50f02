"""A planted bug."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Mutant"]


class Mutant(NamedTuple):
    """Replace ``find``, which stands once in ``file``, by ``replace``."""

    name: str
    breaks: str
    file: str
    find: str
    replace: str
