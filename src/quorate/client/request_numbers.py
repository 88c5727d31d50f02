"""The numbers of the requests of one connection: answers name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RequestNumbers"]

NUMBERS = 1 << 32


class RequestNumbers:
    """Gives numbers that no open request has. ``open_requests`` are tables by number."""

    def __init__(self, *open_requests: Mapping[int, object]) -> None:
        self._open = open_requests
        # The next number, unless an open request has it.
        self._next = 0

    def take(self) -> int:
        number = self._next
        while any(number in requests for requests in self._open):
            number = (number + 1) % NUMBERS
        self._next = (number + 1) % NUMBERS
        return number

    def take_some(self, count: int) -> Sequence[int]:
        numbers = range(self._next, self._next + count)
        if numbers.stop <= NUMBERS and all(
            requests.keys().isdisjoint(numbers) for requests in self._open
        ):
            self._next = numbers.stop % NUMBERS
            return numbers
        return [self.take() for _ in range(count)]
