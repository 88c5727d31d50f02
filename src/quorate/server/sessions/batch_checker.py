"""Checks batches of clients: each is whole and valid, and no record of it is too long."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.batch import Batch, batch_count, is_single
from quorate.errors import QuorateError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BatchChecker"]


class BatchChecker:
    """Counts the records of batches, which are checked completely."""

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes

    def count_some(self, batches: Sequence[bytes]) -> list[int]:
        """The record count of each batch, up to the first invalid batch."""
        counts: list[int] = []
        limit = self._record_bytes
        # The error is raised again, and answered, when the batch is handled alone.
        with suppress(QuorateError):
            for batch in batches:
                short = len(batch) <= limit and is_single(batch)  # as most batches are
                counts.append(1 if short else self.count_records(batch))
        return counts

    def count_records(self, data: bytes) -> int:
        """The record count of a batch. Raises the error in the batch."""
        limit = self._record_bytes
        # A record is shorter than its batch, so only a long batch can have a long one.
        if len(data) <= limit:
            return batch_count(data)
        batch = Batch.parse(data)
        if (size := _too_long(batch, limit)) is not None:
            raise TooLarge(f"record of {size} bytes, limit {limit} (limits.record_bytes)")
        return batch.count


def _too_long(batch: Batch, limit: int) -> int | None:
    """The size of a record with more than ``limit`` bytes; None if there is no such record.

    The search is a bisection: where all records together are within the limit, no record is above
    it. So a batch of a million small records takes as few steps as one of ten large records.
    """
    values, keys, headers = batch.values.offsets, batch.keys, batch.headers

    def end(place: int) -> int:
        """Bytes of key, value and headers of all records before the one at ``place``."""
        size = _offset(values, place)
        if keys is not None:
            size += _offset(keys.column.offsets, place)
        if headers is not None:
            row = _offset(headers.offsets, place)
            size += _offset(headers.names.offsets, row) + _offset(headers.contents.offsets, row)
        return size

    ranges = [(0, batch.count)]
    while ranges:
        start, stop = ranges.pop()
        size = end(stop) - end(start)
        if size > limit:
            if stop - start == 1:
                return size
            middle = (start + stop) // 2
            ranges += ((start, middle), (middle, stop))
    return None


def _offset(offsets: memoryview, place: int) -> int:
    return int.from_bytes(offsets[4 * place : 4 * place + 4], "little")
