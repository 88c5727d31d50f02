"""The faults of a chaos run: one after the other, drawn from a seed."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from verification.chaos.stops import Stops

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from quorate.testing.processes import Cluster
    from verification.chaos.sizes import Sizes
    from verification.preload import FaultyDisks

__all__ = ["Nemesis"]

# Seconds that a fault lasts, and seconds without a fault after it.
FAULT_S = (0.2, 3.0)
REST_S = (0.3, 2.0)
# Seconds of half a period of a link that flaps.
FLAP_S = (0.05, 0.5)
# Seconds that each sync of a slow disk takes longer.
SLOW_S = (0.01, 6.0)
# Seconds by which a node whose sync failed must have ended.
END_S = 10.0
# The share of starts after a fault that use other settings.
RESIZED = 0.5


class Nemesis:
    """Breaks a cluster and mends it, again and again."""

    def __init__(
        self,
        cluster: Cluster,
        logs: list[str],
        random: Random,
        sizes: Sizes,
        disks: FaultyDisks | None,
    ) -> None:
        """Without ``disks`` no disk fails."""
        self._cluster = cluster
        self._logs = logs
        self._random = random
        self._sizes = sizes
        self._disks = disks
        self.stops = Stops(cluster)
        self.done: Counter[str] = Counter()
        # The output of nodes that ended although the nemesis neither stopped them nor broke their
        # disk.
        self.gave_up: list[str] = []
        # Nodes whose disk was made to fail: these nodes may end.
        self._failing: set[str] = set()
        self._faults: list[Callable[[], None]] = [
            self._kill_leader,
            self._kill,
            self._kill_all,
            self._stop,
            self._stop_all,
            self._restart,
            self._pause_leader,
            self._pause,
            self._isolate_leader,
            self._split,
            self._one_way,
            self._bridge,
            self._flap,
        ]
        if disks is not None:
            self._faults += [self._fail_sync, self._slow_disk]

    @property
    def never_done(self) -> list[str]:
        return [name for name in map(_name, self._faults) if not self.done[name]]

    def torment(self, seconds: float) -> None:
        """Inject faults for so many seconds: every kind comes once before one comes again."""
        until = time.monotonic() + seconds
        waiting: list[Callable[[], None]] = []
        while time.monotonic() < until:
            waiting = waiting or self._random.sample(self._faults, len(self._faults))
            fault = waiting.pop()
            fault()
            self.done[_name(fault)] += 1
            self.mend()
            time.sleep(self._random.uniform(*REST_S))

    def mend(self) -> None:
        """Make all nodes run, mend their links and make their disks work."""
        self._cluster.heal()
        for name, node in self._cluster.nodes.items():
            if self._disks is not None:
                self._disks.mend(name)
            self._cluster.resume(name)
            if node.gave_up and name not in self._failing:
                self.gave_up.append(f"{name}: {node.last_words}")
            self._begin(name)
        self._failing.clear()

    def _begin(self, name: str) -> None:
        """Start a node unless it runs, in half of the cases with other settings."""
        if not self._cluster.nodes[name].running and self._random.random() < RESIZED:
            self._sizes.change(name)
        self._cluster.begin(name)

    def _wait(self) -> None:
        time.sleep(self._random.uniform(*FAULT_S))

    def _any(self) -> str:
        return self._random.choice(list(self._cluster.nodes))

    def _leader(self) -> str:
        return self._cluster.leader(self._random.choice(self._logs)) or self._any()

    def _one(self) -> str:
        """Choose a node, half of the time a leader: most mistakes happen at leaders."""
        return self._leader() if self._random.random() < 0.5 else self._any()

    # -- processes -----------------------------------------------------------------------------

    def _kill_leader(self) -> None:
        self._cluster.kill(self._leader())
        self._wait()

    def _kill(self) -> None:
        self._cluster.kill(self._any())
        self._wait()

    def _kill_all(self) -> None:
        for name in self._cluster.nodes:
            self._cluster.kill(name)

    def _stop(self) -> None:
        self.stops.stop(self._one())
        self._wait()

    def _stop_all(self) -> None:
        """Stop all nodes at once: the last ones to end have no majority any more."""
        self.stops.stop(*self._cluster.nodes)

    def _restart(self) -> None:
        """Restart a node before its peers miss it."""
        victim = self._one()
        self.stops.stop(victim)
        self._begin(victim)

    def _pause_leader(self) -> None:
        self._cluster.pause(self._leader())
        self._wait()

    def _pause(self) -> None:
        self._cluster.pause(self._any())
        self._wait()

    # -- links ---------------------------------------------------------------------------------

    def _isolate_leader(self) -> None:
        leader = self._leader()
        self._cluster.partition([leader], self._cluster.others(leader))
        self._wait()

    def _split(self) -> None:
        names = list(self._cluster.nodes)
        self._random.shuffle(names)
        cut = self._random.randrange(1, len(names))
        self._cluster.partition(names[:cut], names[cut:])
        self._wait()

    def _one_way(self) -> None:
        victim = self._one()
        for other in self._cluster.others(victim):
            pair = (victim, other) if self._random.random() < 0.5 else (other, victim)
            self._cluster.cut(*pair)
        self._wait()

    def _bridge(self) -> None:
        """Cut all links but those of one node: the other nodes hear only that one."""
        middle = self._any()
        self._cluster.partition(*([other] for other in self._cluster.others(middle)))
        self._wait()

    def _flap(self) -> None:
        """Cut a node off and reconnect it, several times a second."""
        victim = self._one()
        until = time.monotonic() + self._random.uniform(*FAULT_S)
        while time.monotonic() < until:
            self._cluster.partition([victim], self._cluster.others(victim))
            time.sleep(self._random.uniform(*FLAP_S))
            self._cluster.heal()
            time.sleep(self._random.uniform(*FLAP_S))

    # -- disks ---------------------------------------------------------------------------------

    def _fail_sync(self) -> None:
        """Make the next sync of a node fail: the node ends."""
        assert self._disks is not None
        victim = self._one()
        self._failing.add(victim)
        self._disks.fail_sync(victim)
        deadline = time.monotonic() + END_S
        while self._cluster.nodes[victim].running and time.monotonic() < deadline:
            time.sleep(0.05)

    def _slow_disk(self) -> None:
        assert self._disks is not None
        self._disks.slow_down(self._one(), self._random.uniform(*SLOW_S))
        self._wait()


def _name(fault: Callable[[], None]) -> str:
    return fault.__name__.lstrip("_").replace("_", "-")
