"""A thread that samples, a few times a second, the progress of the sinks and the replicas' lags."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from quorate.demo.findings import Sample
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.blocking import Client
    from quorate.client.results import ClusterStatus
    from quorate.demo.queries import Query

__all__ = ["RATE_S", "Watcher", "lags_of", "rate"]

LOOK_S = 0.25
# Batches end one by one; a rate over less than a few of them would only flicker.
RATE_S = 3.0


class Watcher:
    """Takes samples from when it is made until it is closed."""

    def __init__(self, client: Client, queries: Sequence[Query]) -> None:
        self._client = client
        self._queries = queries
        self._began = time.monotonic()
        self._ended = threading.Event()
        self.samples: list[Sample] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        """Seconds since the watcher was made."""
        return time.monotonic() - self._began

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                status = self._client.status()
            except QuorateError:  # no node answers now: there will be other samples
                continue
            read = {query.name: query.read for query in self._queries}
            self.samples.append(Sample(round(self.now, 2), read, lags_of(status)))


def lags_of(status: ClusterStatus) -> dict[str, int | None]:
    """Committed entries of all logs that each node lacks; None for a node that is down."""
    lags: dict[str, int | None] = {
        node["id"]: 0 if node["up"] else None for node in status["nodes"]
    }
    for log in status["logs"]:
        for replica in log["replicas"]:
            so_far = lags.get(replica["node"])
            if so_far is not None:
                lags[replica["node"]] = so_far + (replica["lag"] or 0)
    return lags


def rate(samples: Sequence[Sample], sink: str, over_s: float = RATE_S) -> float:
    """Orders per second of a sink, over the seconds before the last of the samples."""
    if not samples:
        return 0.0
    last = samples[-1]
    first = next(one for one in samples if one.at >= last.at - over_s)
    if last.at <= first.at:
        return 0.0
    return (last.read[sink] - first.read[sink]) / (last.at - first.at)
