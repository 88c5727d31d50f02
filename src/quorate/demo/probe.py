"""Threads that append all the while, to measure how long a log is without a leader."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from quorate.errors import QuorateError

if TYPE_CHECKING:
    from quorate.client.blocking import Log

__all__ = ["ProbeWriters"]

# Seconds to wait for the first append of another term.
PATIENCE_S = 120.0


class ProbeWriters:
    """Threads that append one record after the other, and remember the last acknowledgements."""

    def __init__(self, log: Log, count: int) -> None:
        self._log = log
        self._ended = False
        self._acked = threading.Condition()
        # By term: the time at which this process saw the first append of the term acknowledged.
        self._first: dict[int, float] = {}
        self._threads = [threading.Thread(target=self._write) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def term(self) -> int:
        with self._acked:
            return max(self._first, default=0)

    def wait_after(self, term: int) -> float:
        """Wait for the first acknowledged append of a term after ``term``; return its time."""
        with self._acked:
            if not self._acked.wait_for(lambda: max(self._first, default=0) > term, PATIENCE_S):
                raise TimeoutError(f"no append was acknowledged in {PATIENCE_S} s")
            return min(at for later, at in self._first.items() if later > term)

    def close(self) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        while not self._ended:
            try:
                receipt = self._log.append(b"one more")
            except QuorateError:
                continue
            now = time.monotonic()
            with self._acked:
                if receipt.term not in self._first:
                    self._first[receipt.term] = now
                    self._acked.notify_all()
