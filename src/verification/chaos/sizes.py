"""Size limits in which the nodes of a chaos run differ: no promise may depend on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from quorate.config import KIB, MIB, Storage

if TYPE_CHECKING:
    from random import Random

    from quorate.testing.processes import Cluster

__all__ = ["BATCH_BYTES", "SEGMENT_BYTES_MAX", "Sizes"]

# Limits of a batch from clients. Clients send batches that exceed the limit of some nodes and fit
# the limit of others.
BATCH_BYTES = (32 * KIB, 128 * KIB, 512 * KIB, 1 * MIB)
SEGMENT_BYTES_MAX = 8 * MIB
SEGMENT_BYTES = (512 * KIB, 2 * MIB, SEGMENT_BYTES_MAX)

Settings = dict[str, dict[str, Any]]


class Sizes:
    """The settings of each node of a cluster."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        """Draw the settings before the first start: the first nodes all have different batch
        limits."""
        self._cluster = cluster
        self._random = random
        self._now: dict[str, Settings] = {}
        # The number of starts with other settings than the node had before.
        self.changes = 0
        # How often a node got each limit of a batch.
        self.batch_bytes: Counter[int] = Counter()
        drawn = random.sample(BATCH_BYTES, len(BATCH_BYTES))
        for number, name in enumerate(cluster.nodes):
            self._give(name, self._draw(drawn[number % len(drawn)]))

    def change(self, name: str) -> None:
        """Draw other settings, with which a node that is down will be started."""
        settings = self._draw(self._random.choice(BATCH_BYTES))
        self.changes += settings != self._now[name]
        self._give(name, settings)

    def _give(self, name: str, settings: Settings) -> None:
        self._now[name] = settings
        self.batch_bytes[settings["limits"]["batch_bytes"]] += 1
        self._cluster.configure(name, settings)

    def _draw(self, batch_bytes: int) -> Settings:
        random = self._random
        least = 2 * (batch_bytes + Storage().reserve_bytes)
        return {
            "limits": {
                "batch_bytes": batch_bytes,
                "record_bytes": random.choice((batch_bytes // 2, batch_bytes)),
                "pending_appends": random.choice((100, 1000, 16_384)),
                "pending_bytes": random.choice((batch_bytes, 4 * MIB, 64 * MIB)),
                "connections": random.choice((64, 4096)),
            },
            "storage": {
                "segment_bytes": random.choice([one for one in SEGMENT_BYTES if one >= least]),
                "disk_usage_max": random.choice((97, 99, 100)),
            },
        }
