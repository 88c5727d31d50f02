"""The faults that hit the nodes of a fleet, within the limits that a cluster has to stand.

A minority of nodes is ever *spoiled*: wiped, rolled back, robbed of the folder of a log or given an
older copy of one. The others only crash.

Which rollbacks are seen (ADR 20): a peer refuses an older copy if it knows a later start of the
node than the one in which the copy was made. So a copy is restored here only when every node that
is not spoiled was shown or told a later start. Not restored, because no node could see it:

- a copy that was made during the newest start that some peer knows. It looks like a crash;
- a copy of a node some peer of which was away during all later starts.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from quorate.storage.layout import VOTE_BYTES, VOTE_COPIES, newest_vote
from verification.fleet.plays import FIVE, PLAYS
from verification.fleet.shortages import Shortages
from verification.fleet.world import ELECTION_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.storage.layout import LogId
    from verification.fleet.clients import FleetClients
    from verification.fleet.disk import Directory, FolderDisk
    from verification.fleet.node import FleetNode
    from verification.fleet.plays import Play
    from verification.fleet.world import FleetWorld

__all__ = ["FleetFaults"]

CALLS_MAX = 14
COPIES_MAX = 3
# More than a copy lacks, and more than a node remembers.
STARTS_UNHEARD = (0, 0, 3, 8, 70)
US = 1000
FAULTS = (
    "kill", "kill", "power", "power_in_call", "power_in_call", "cut", "no_room", "no_room",
    "copy", "copy", "roll_back", "roll_back", "wipe", "lose_log", "lose_log", "restore_log",
    "full_start", "brief_log", "interrupted_deletion",
)  # fmt: skip


class FleetFaults:
    """Draws faults until the world is calm."""

    def __init__(self, world: FleetWorld, clients: FleetClients) -> None:
        self._world = world
        self._random = world.random
        self._shortages = Shortages(world, clients)
        minority = (len(world.nodes) - 1) // 2
        # Only these nodes are ever spoiled.
        self.spoilable = self._random.sample([*world.nodes.values()], minority)
        self._gap_us = self._random.choice((1, 2, 4)) * ELECTION_MS * US
        # A wipe before all nodes have made their catalogs may stop the first start of the cluster
        # for good, and should: few seeds have one.
        self._early_wipes = self._random.random() < 0.15

    def run(self) -> None:
        """Begin a run: one seed of ten of three nodes with each play, half of those of five nodes
        with theirs, the others with random faults."""
        world = self._world
        plays: dict[int, tuple[Callable[[FleetWorld, FleetFaults], Play] | None, ...]] = {
            3: (*PLAYS, None, None, None, None),
            5: (*FIVE, None, None, None),
        }
        play = self._random.choice(plays.get(len(world.nodes), (None,)))
        if play is None:
            self._start_nodes()
            self._strike()
        else:
            self.begin(play)

    def begin(self, play: Callable[[FleetWorld, FleetFaults], Play]) -> None:
        """Begin a run with this play; random faults follow."""
        self._world.sometimes[f"play {play.__name__}"] += 1
        self._go_on(play(self._world, self))

    def _go_on(self, play: Play) -> None:
        delay = next(play, None)
        if delay is None:
            self._strike()
        elif not self._world.calm:
            self._world.after(delay, self._go_on, play)

    def _start_nodes(self) -> None:
        """Start most nodes at once; in most seeds start some of them much later."""
        world, random = self._world, self._random
        late = random.sample([*world.nodes.values()], random.choice((0, 1, len(world.nodes) // 2)))
        for node in world.nodes.values():
            delay = random.randrange(4, 12) * ELECTION_MS * US if node in late else 0
            world.after(delay + random.randrange(1, 20_000), node.start)

    def _strike(self) -> None:
        world = self._world
        if not world.calm:
            world.after(self._random.randrange(1, 2 * self._gap_us), self._strike)
            self._acts[self._random.choice(FAULTS)]()

    @property
    def _acts(self) -> dict[str, Callable[[], None]]:
        return {
            "kill": self._kill, "power": self._power, "power_in_call": self._power_in_call,
            "cut": self._cut, "no_room": self._no_room, "copy": self._copy_one,
            "roll_back": self._roll_back_one, "wipe": self._wipe_one, "lose_log": self._lose_log,
            "restore_log": self._restore_log,
            "full_start": lambda: self._shortages.full_start(self._pick()),
            "brief_log": self._shortages.brief_log,
            "interrupted_deletion": lambda: self._shortages.interrupted_deletion(self._pick()),
        }  # fmt: skip

    def _pick(self) -> FleetNode:
        """Pick a node: half of the faults hit the leader of the catalog."""
        nodes = [node for node in self._world.nodes.values() if node.began]
        leaders = [node for node in nodes if node.leads_catalog]
        if leaders and self._random.random() < 0.5:
            return leaders[0]
        return self._random.choice(nodes or [*self._world.nodes.values()])

    # -- faults that leave every disk whole ----------------------------------------------------

    def _kill(self) -> None:
        node = self._pick()
        node.kill()
        self._world.start_later(node)

    def _power(self) -> None:
        node = self._pick()
        node.cut_power()
        self._world.start_later(node)

    def _power_in_call(self) -> None:
        """The power fails some calls of the disk later. In half of the cases the node starts just
        before, so that this hits the manifest with the new start."""
        node = self._pick()
        if self._random.random() < 0.5:
            node.kill()
            self._arm(node)
            node.start()
        else:
            self._arm(node)

    def _arm(self, node: FleetNode) -> None:
        node.trouble.calls_left = self._random.randrange(CALLS_MAX)

    def _cut(self) -> None:
        """Let one node, or two, hear no message of the others for a while."""
        world = self._world
        names = [*world.nodes]
        side = self._random.sample(names, self._random.choice((1, 1, 2)))
        for one in side:
            for other in names:
                if other not in side:
                    world.cut(one, other)
        world.after(self._random.randrange(1, 6 * ELECTION_MS * US), world.cuts.clear)

    def _no_room(self) -> None:
        """For a while no log can be made on a node, and it cannot open another file."""
        refusal = self._random.choice((errno.ENOSPC, errno.EMFILE))
        self._shortages.refuse(
            self._pick(), refusal, self._random.randrange(1, 6 * ELECTION_MS * US)
        )

    # -- faults that spoil a disk --------------------------------------------------------------

    @property
    def _all_formed(self) -> bool:
        return all(
            (manifest := node.directory.durable_manifest) is not None and manifest.formed
            for node in self._world.nodes.values()
        )

    def _copy_one(self) -> None:
        nodes = [node for node in self.spoilable if node.began and node.good]
        if nodes:
            self.copy(self._random.choice(nodes))

    def copy(self, node: FleetNode) -> None:
        """Make a copy of the directory of a node, as it is now."""
        node.copies = [*node.copies, (node.starts, node.directory.copy())][-COPIES_MAX:]

    def _roll_back_one(self) -> None:
        """Roll back a node; in some cases wipe another node at the same time."""
        nodes = [node for node in self.spoilable if node.good]
        rolled_back = nodes and self._all_formed and self.roll_back(self._random.choice(nodes))
        if rolled_back and self._random.random() < 0.3:
            self._wipe_one()

    def roll_back(self, node: FleetNode) -> bool:
        """Restore a copy that other nodes can see to be one; return whether there is such a
        copy."""
        seen = [copy for start, copy in node.copies if self._all_know_later(node, start)]
        if seen:
            self.restore(node, self._random.choice(seen))
        return bool(seen)

    def restore(self, node: FleetNode, copy: Directory) -> None:
        """Put an older copy of its directory in the place of a node's own."""
        node.roll_back(copy)
        self._world.sometimes["rolled back"] += 1
        # The copy counts starts as if it were the node itself, before another node hears it.
        for _ in range(self._random.choice(STARTS_UNHEARD)):
            node.start()
            node.kill()
        self._world.start_later(node)

    def _all_know_later(self, node: FleetNode, start: int) -> bool:
        """Whether every peer that is not spoiled was shown or told a later start of ``node``."""
        return all(
            self._world.history.knows_later(peer, node, start)
            for peer in self._world.nodes.values()
            if peer is not node and peer.good
        )

    def _wipe_one(self) -> None:
        nodes = [node for node in self.spoilable if node.began and node.good]
        if nodes and (self._early_wipes or self._all_formed):
            self.wipe(self._random.choice(nodes))

    def wipe(self, node: FleetNode) -> None:
        """Replace the disk of a node by an empty one."""
        storage = node.directory.storage
        node.wipe()
        # A disk that no other node has written down is missed by none.
        node.wiped = any(
            (manifest := peer.directory.durable_manifest) is not None
            and manifest.nodes[node.name].storage == storage
            for peer in self._world.nodes.values()
            if peer is not node
        )
        self._world.sometimes["wiped"] += 1
        self._world.start_later(node)

    def _lose_log(self) -> None:
        """Remove the folder of a log while its node is down."""
        for node in self.spoilable:
            logs = sorted({*node.directory.logs} - {self._world.catalog} - node.lost_logs)
            if node.good and logs and self._random.random() < 0.5:
                node.kill()
                lost = self._random.choice(logs)
                manifest = node.directory.durable_manifest
                if manifest is not None and lost in manifest.logs:
                    node.directory.lose_log(lost)
                self._world.start_later(node)
                return

    def _restore_log(self) -> None:
        """Copy the folder of a log, and after another start of the node put the copy in the place
        of the folder."""
        for node in self.spoilable:
            logs = sorted({*node.directory.logs} - {self._world.catalog} - node.lost_logs)
            if node.good and node.process is not None and logs:
                log = self._random.choice(logs)
                older = node.directory.logs[log].twin(node.trouble)
                node.kill()
                node.start()
                delay_us = self._random.randrange(1, 8 * ELECTION_MS * US)
                self._world.after(delay_us, self._put_back, node, log, older)
                return

    def _put_back(self, node: FleetNode, log: int, older: FolderDisk) -> None:
        """Put back an older folder, unless no node could see it: the manifest does not know a later
        boot of the log yet."""
        manifest = node.directory.durable_manifest
        if self._world.calm or not node.good or manifest is None:
            return
        life = manifest.logs.get(log)
        there = log in node.directory.logs and log not in node.lost_logs
        if there and life is not None and _is_older(older, node.directory.log_id(log), life.boot):
            node.kill()
            node.directory.restore_log(log, older)
            self._world.sometimes["folder of a log restored"] += 1
            self._world.start_later(node)


def _is_older(files: FolderDisk, identity: LogId, boot: int) -> bool:
    """Whether the vote record is of a boot before ``boot``. The node is not asked: a check of its
    own that lets every folder in would never meet one."""
    names = {*files.names()}
    copies = [files.open(name).read(0, VOTE_BYTES) for name in VOTE_COPIES if name in names]
    found = newest_vote(copies, identity)
    return found is None or found.boot < boot
