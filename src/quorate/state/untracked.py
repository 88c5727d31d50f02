"""A dictionary of named tuples whose items the garbage collector does not examine.

A full collection examines every object that could be part of a cycle, and the process stands still
meanwhile: 80 ms for a log at its limits. An instance of a named tuple is such an object; a plain
tuple of strings, numbers and bytes is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["UntrackedDict"]

Item = TypeVar("Item")
Row = tuple[Any, ...]


class UntrackedDict(Generic[Item]):
    """A dictionary of items by number, in the order in which their numbers were first set."""

    __slots__ = ("_pack", "_rows", "_unpack")

    def __init__(self, pack: Callable[[Item], Row], unpack: Callable[[Row], Item]) -> None:
        """Make an empty dictionary. ``pack`` turns an item into a tuple that holds neither
        containers nor objects with attributes; ``unpack`` turns the tuple back into the item."""
        self._pack = pack
        self._unpack = unpack
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Item:
        return self._unpack(self._rows[number])

    def __setitem__(self, number: int, item: Item) -> None:
        self._rows[number] = self._pack(item)

    def __delitem__(self, number: int) -> None:
        del self._rows[number]

    def get(self, number: int) -> Item | None:
        row = self._rows.get(number)
        return None if row is None else self._unpack(row)

    def values(self) -> Iterator[Item]:
        return map(self._unpack, self._rows.values())

    def rows(self) -> Iterable[Row]:
        """All items, packed. A search for a few among many need not unpack the others."""
        return self._rows.values()

    def copy(self) -> UntrackedDict[Item]:
        other = UntrackedDict(self._pack, self._unpack)
        other._rows = self._rows.copy()
        return other
