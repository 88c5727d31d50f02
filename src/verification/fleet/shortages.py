"""The work of a node while its disk has no room, or it may open no more files.

Each of these is a short script with random moments: random faults hardly ever meet while a log is
being made or deleted.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from verification.fleet.clients import NAMES, ClientCall
from verification.fleet.world import ELECTION_MS
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from verification.fleet.clients import DrawnLog, FleetClients
    from verification.fleet.node import FleetNode
    from verification.fleet.world import FleetWorld

__all__ = ["Shortages"]

ELECTION_US = ELECTION_MS * 1000
LOOK_US = 5_000
SLOWNESS = 300


class Shortages:
    """The faults that need clients at the right moment."""

    def __init__(self, world: FleetWorld, clients: FleetClients) -> None:
        self._world = world
        self._random = world.random
        self._clients = clients

    def refuse(self, node: FleetNode, refusal: int, duration_us: int) -> None:
        """Let the system refuse calls that need room or another open file, for a while."""
        node.trouble.refusal = refusal
        self._world.after(duration_us, _relieve, node)

    def full_start(self, node: FleetNode) -> None:
        """A node is killed and started again on a disk without room: the file of its next manifest
        is there, so the start is counted."""
        if node.process is None or not node.allocated_ahead or not node.good:
            return
        node.kill()
        self.refuse(node, errno.ENOSPC, self._random.randrange(1, 4 * ELECTION_US))
        node.start()
        if node.process is None:
            raise Violation("full-start", f"{node.name} cannot count a start on a full disk")
        self._world.sometimes["started on a full disk"] += 1

    def brief_log(self) -> None:
        """Files are slow to make and there is no room for them; a log is made and deleted."""
        for node in self._world.nodes.values():
            node.slowness = self._random.choice((1, SLOWNESS, SLOWNESS))
            refusal = self._random.choice((errno.ENOSPC, errno.EMFILE))
            self.refuse(node, refusal, self._random.randrange(2 * ELECTION_US, 6 * ELECTION_US))
        log = self._clients.draw("brief")
        self._clients.begin(ClientCall("create", log))
        self._delete_once_made(log, self._world.now + 4 * ELECTION_US)

    def _delete_once_made(self, log: DrawnLog, deadline: int) -> None:
        world = self._world
        if world.calm or world.now > deadline:
            return
        if log.incarnation in world.history.made:
            self._clients.begin(ClientCall("delete", log))
            world.sometimes["log deleted while there is no room to make it"] += 1
        else:
            world.after(LOOK_US, self._delete_once_made, log, deadline)

    def interrupted_deletion(self, node: FleetNode) -> None:
        """Logs are deleted while a node can open no file; soon after it can, it is killed."""
        world, random = self._world, self._random
        made = [log for log in self._clients.drawn if log.incarnation in self._clients.told_made]
        for log in made[-len(NAMES) :]:
            self._clients.begin(ClientCall("delete", log))
        lasts = random.randrange(ELECTION_US // 8, ELECTION_US)
        self.refuse(node, errno.EMFILE, lasts)
        world.after(lasts + random.randrange(1, ELECTION_US // 2), self._kill, node)

    def _kill(self, node: FleetNode) -> None:
        if not self._world.calm:
            node.kill()
            self._world.sometimes["killed amid deletions"] += 1
            self._world.start_later(node)


def _relieve(node: FleetNode) -> None:
    node.trouble.refusal = 0
    node.slowness = 1
