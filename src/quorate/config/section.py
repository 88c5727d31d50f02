"""The base of the sections of the configuration: frozen objects whose fields have ranges."""

from __future__ import annotations

from dataclasses import field, fields
from typing import ClassVar

from quorate.errors import InvalidArgument

__all__ = ["KIB", "MIB", "Section", "bounded", "check_range"]

KIB = 1024
MIB = 1024 * KIB


def bounded(default: int, low: int, high: int) -> int:
    """A field of a section with its default and its range, both ends included."""
    value: int = field(default=default, metadata={"range": (low, high)})
    return value


def check_range(name: str, value: object, low: int, high: int) -> None:
    """Raise InvalidArgument unless ``value`` is a whole number from ``low`` to ``high``."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgument(f"{name} = {value!r} is not a whole number between {low} and {high}")


class Section:
    """Checks every field against its range when the section is made."""

    __slots__ = ()

    # The name of the section in messages and on the pages about it.
    section: ClassVar[str]

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            low, high = item.metadata["range"]
            check_range(f"{self.section}.{item.name}", getattr(self, item.name), low, high)
