"""Who spent how much processor time while something was measured: the load, and each node.

It says why one system is slower than another when all of them share the cores.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    # Seconds by name: ``load``, ``leader`` and ``follower``, the mean of the two that did less.
    Effort = dict[str, float]

__all__ = ["NAMES", "effort"]

NAMES = ("load", "leader", "follower")
NODES = 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def effort() -> Iterator[Effort]:
    """What is spent inside, once it has been left. Of the processes that this one has started, the
    three busiest are the nodes: all others stand by."""
    found: Effort = {}
    before = _spent()
    yield found
    spent = {pid: seconds - before.get(pid, 0.0) for pid, seconds in _spent().items()}
    own = spent.pop(os.getpid())
    leader, *followers = sorted([*spent.values(), *[0.0] * NODES], reverse=True)[:NODES]
    shares = (own, leader, sum(followers) / len(followers))
    found.update(zip(NAMES, (round(share, 3) for share in shares), strict=True))


def _spent() -> dict[int, float]:
    """Seconds of this process and of all below it, by their id."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # One may end meanwhile.
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid] = int(fields[1])
            # In its own code and in the kernel.
            seconds[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: seconds[pid] for pid in family}
