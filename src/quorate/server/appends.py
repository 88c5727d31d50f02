"""Appends of one client that arrived together, and the frame that answers them."""

from __future__ import annotations

from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from quorate.wire.requests import Receipts, encode_receipts

if TYPE_CHECKING:
    from quorate.replica.exchange import Receipt
    from quorate.server.replicas import Hosted

__all__ = ["Appends"]


class Appends:
    """Appends of one connection to one log that are proposed together, so that a turn with a
    thousand appends costs as much as a turn with one."""

    __slots__ = ("counts", "hosted", "requests", "size", "started")

    def __init__(
        self, hosted: Hosted, requests: list[int], counts: list[int], size: int, started: float
    ) -> None:
        self.hosted = hosted
        self.requests = requests
        # Number of records in each append.
        self.counts = counts
        # Bytes of all appends together.
        self.size = size
        self.started = started

    def answered(self, receipt: Receipt) -> bytes:
        """Encode the frame that tells the client the offsets of these appends."""
        offset, _, index, term, synced = receipt
        return encode_receipts(Receipts(index, term, offset, synced, self._rows()))

    def _rows(self) -> list[tuple[int, int, int, int]]:
        requests, counts = self.requests, self.counts
        first, each, many = requests[0], counts[0], len(requests)
        if counts.count(each) == many and requests == list(range(first, first + many)):
            return [(first, many, 0, each)]
        starts = accumulate(counts, initial=0)
        rows = zip(requests, repeat(1), starts, counts, strict=False)
        return list(rows)
