"""What goes wrong in a chaos run: one fault after the other, drawn from a seed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorate.testing.processes import Cluster

__all__ = ["Nemesis"]

# How long a fault lasts, and how long the cluster is left alone after it.
FAULT_S = (0.2, 4.0)
REST_S = (0.5, 3.0)


class Nemesis:
    """Breaks a cluster and mends it, again and again."""

    def __init__(self, cluster: Cluster, logs: list[str], random: Random) -> None:
        self._cluster = cluster
        self._logs = logs
        self._random = random
        self.done: Counter[str] = Counter()
        self._faults: list[Callable[[], None]] = [
            self._kill_leader,
            self._kill,
            self._kill_all,
            self._pause_leader,
            self._pause,
            self._isolate_leader,
            self._split,
            self._one_way,
            self._bridge,
        ]

    def torment(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fault = self._random.choice(self._faults)
            self.done[fault.__name__.lstrip("_").replace("_", "-")] += 1
            fault()
            self.mend()
            time.sleep(self._random.uniform(*REST_S))

    def mend(self) -> None:
        """All nodes run and hear each other."""
        self._cluster.heal()
        for name, node in self._cluster.nodes.items():
            self._cluster.resume(name)
            node.start()

    def _wait(self) -> None:
        time.sleep(self._random.uniform(*FAULT_S))

    def _any(self) -> str:
        return self._random.choice(list(self._cluster.nodes))

    def _leader(self) -> str:
        return self._cluster.leader(self._random.choice(self._logs)) or self._any()

    def _others(self, name: str) -> list[str]:
        return [other for other in self._cluster.nodes if other != name]

    def _kill_leader(self) -> None:
        self._cluster.kill(self._leader())
        self._wait()

    def _kill(self) -> None:
        self._cluster.kill(self._any())
        self._wait()

    def _kill_all(self) -> None:
        for name in self._cluster.nodes:
            self._cluster.kill(name)

    def _pause_leader(self) -> None:
        self._cluster.pause(self._leader())
        self._wait()

    def _pause(self) -> None:
        self._cluster.pause(self._any())
        self._wait()

    def _isolate_leader(self) -> None:
        leader = self._leader()
        self._cluster.partition([leader], self._others(leader))
        self._wait()

    def _split(self) -> None:
        names = list(self._cluster.nodes)
        self._random.shuffle(names)
        cut = self._random.randrange(1, len(names))
        self._cluster.partition(names[:cut], names[cut:])
        self._wait()

    def _one_way(self) -> None:
        victim = self._any()
        for other in self._others(victim):
            pair = (victim, other) if self._random.random() < 0.5 else (other, victim)
            self._cluster.cut(*pair)
        self._wait()

    def _bridge(self) -> None:
        """All but one hear only that one."""
        middle = self._any()
        self._cluster.partition(*([other] for other in self._others(middle)))
        self._wait()
