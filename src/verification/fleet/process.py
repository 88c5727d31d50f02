"""One run of a simulated node: handshakes, the manifest, the catalog and the replicas.

A simulated process takes the steps of server/node.py, server/logs/log_lifecycle.py and
server/logs/catalog_service.py, in virtual time and in the same order; the real Roster, Reconciler
and Catalog take its decisions.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from quorate.errors import Damaged, DiskFailed, ReplicaHalted, WrongDirectory
from quorate.replica.engine_io import LinkClosed, LinkRefused
from quorate.server.identity.roster import Roster
from quorate.server.logs.placing import next_change
from quorate.server.logs.reconciler import Make, Reconciler, Retire
from quorate.server.manifest import make_log
from quorate.storage.disk_errors import PASSING
from quorate.storage.manifest import LogLife, LogState
from quorate.types import Index
from quorate.wire.handshake import NodeIdentity
from verification.fleet.disk import PowerCut
from verification.fleet.history import records_of
from verification.fleet.manifest import KeptManifest
from verification.fleet.replica import CLUSTER, open_replica
from verification.fleet.table import KeptTable
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quorate.raft.messages import Envelope
    from quorate.server.logs.catalog import Catalog, LogFacts
    from quorate.server.logs.reconciler import Open, Remove, Step
    from quorate.storage.manifest import Manifest
    from quorate.types import NodeId
    from verification.fleet.manifest import Work
    from verification.fleet.node import FleetNode
    from verification.fleet.replica import FleetReplica, Question

__all__ = ["POLL_US", "Process"]

# Microseconds between two looks of work that waits.
POLL_US = 10_000
DIAL_US = 50_000
RETRY_US = 250_000
PLACE_US = 50_000


class Process:
    """A process of a node. Calls that it scheduled have no effect once it has ``ended``."""

    def __init__(self, node: FleetNode) -> None:
        self.node = node
        self.world = node.world
        self.number = self.world.next_process()
        self.ended = False
        # Links that this process dialled and that were accepted by both sides, and peers that it
        # let in; each with the number of the process at the other end.
        self.links: dict[NodeId, int] = {}
        self.let_in: dict[NodeId, int] = {}
        self.replicas: dict[int, FleetReplica] = {}
        # Logs of users that must not go on here, and the reason of each.
        self.down: dict[int, ReplicaHalted] = {}
        # The next entry of the catalog to be read.
        self._unread = Index(1)
        self._retry_at = 0
        self._table = KeptTable(node)
        self.kept_manifest = KeptManifest(node)
        # The catalog is open. Logs that were made before may still be opened.
        self.takes_part = False
        # Set by `start`, in this order.
        self.roster: Roster
        self.catalog: Catalog
        self.plan: Reconciler

    # -- life ----------------------------------------------------------------------------------

    def after(self, delay_us: int, act: Callable[..., None], *arguments: Any) -> None:
        """Call ``act`` later, unless the process has ended by then."""
        self.world.after(delay_us, self.run, act, *arguments)

    def run(self, act: Callable[..., None], *arguments: Any) -> None:
        """Call ``act`` now, and end the process if a power cut hits it."""
        if self.ended:
            return
        try:
            act(*arguments)
        except PowerCut:
            self.world.sometimes["power cut within a call of the disk"] += 1
            self.node.cut_power()
            self.world.start_later(self.node)
        except ReplicaHalted as halt:
            if isinstance(halt, WrongDirectory) and self.node.rolled_back:
                self.world.sometimes["older copy halted"] += 1
                self.world.history.gave_up(self.node)
                self.node.kill()
                self.world.start_later(self.node)
                return
            # No call in this process may spoil a disk that is in use.
            what = f"{self.node.name}: {type(halt).__name__}: {halt}"
            raise Violation("halt", what) from halt

    def begin(self, work: Work) -> None:
        """Run work that pauses in between."""
        delay = next(work, None)
        if delay is not None:
            self.after(delay, self.begin, work)

    def end(self) -> None:
        self.ended = True
        for replica in self.replicas.values():
            replica.close()
        for peer in self.world.nodes.values():
            if peer.process is not None and peer.process.links.get(self.node.name) == self.number:
                peer.process.lose_links(self.node.name)

    def start(self) -> None:
        """Read the manifest or make it, count the start, dial the others."""
        directory = self.node.directory
        try:
            self.kept_manifest.open()
            assert directory.storage is not None  # drawn before a process is made
            boot = self.world.random.getrandbits(63)
            own = NodeIdentity(CLUSTER, self.node.name, directory.storage, boot)
            self.roster = Roster(own, self.manifest, self.kept_manifest.save_now)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.world.sometimes["a start could not be counted"] += 1
            self.node.kill()
            self.world.start_later(self.node)
            return
        if self.node.marked:
            raise Violation("rolled-back", f"{self.node.name} starts on a marked directory")
        self.catalog = self._table.read()
        self.plan = Reconciler(
            self.node.name, self.manifest, self.catalog, directory.incarnations(), self._has,
            self.world.catalog,
        )  # fmt: skip
        self._dial_all()
        self.begin(self._take_part())

    @property
    def manifest(self) -> Manifest:
        return self.kept_manifest.manifest

    def _has(self, incarnation: int) -> bool:
        return incarnation in self.replicas or incarnation in self.down

    # -- links ---------------------------------------------------------------------------------

    def _dial_all(self) -> None:
        for peer in self.manifest.nodes:
            if peer != self.node.name and peer not in self.links:
                self.world.dial(self, peer)
        self.after(DIAL_US, self._dial_all)

    def learnt(self) -> None:
        """A peer told of itself and of other nodes."""
        for peer in self.roster.take_outdated():
            self.world.sometimes["links ended: a later start was told"] += 1
            self.let_in.pop(peer, None)
            self.lose_links(peer)
            other = self.world.nodes[peer].process
            if other is not None:
                other.lose_links(self.node.name)

    def linked(self, peer: NodeId) -> bool:
        """Whether a link to a process of ``peer`` is open, whoever dialled it."""
        passes = self.world.passes(self.node.name, peer)
        return passes and (peer in self.links or self.world.runs(self.let_in.get(peer)))

    def lose_links(self, peer: NodeId) -> None:
        """The connection that this process dialled has ended. Messages that the peer sent before
        may still arrive."""
        if self.links.pop(peer, None) is not None:
            for replica in self.replicas.values():
                self.after(1, replica.give, LinkClosed(peer))

    def refused_link(self, peer: NodeId) -> None:
        for replica in self.replicas.values():
            replica.give(LinkRefused(peer))

    def send(self, envelope: Envelope) -> None:
        if envelope.target in self.links:
            self.world.send(self, envelope)

    def deliver(self, envelope: Envelope) -> None:
        """A message of a peer that was let in."""
        replica = self.replicas.get(envelope.group.incarnation)
        if replica is None:
            self.world.sometimes["message for a log that is not open"] += 1
            return
        replica.deliver(envelope)

    # -- taking part ---------------------------------------------------------------------------

    def _take_part(self) -> Work:
        waited = bool(self.roster.missing)
        began = self.world.now
        while self.roster.missing:
            yield POLL_US
        if waited and self.world.now - began > self.world.late_us:
            self.world.sometimes["first start that waited for a late node"] += 1
        yield from self._open_catalog()
        self.takes_part = True
        self.begin(self._follow())
        self.begin(self._place())
        while True:
            self._begin_openings()
            while (step := self.plan.next()) is not None:
                yield from self._carry_out(step)
                self._begin_openings()
            yield from self._keep_table()
            yield POLL_US
            if self._retry_at and self.world.now >= self._retry_at:
                self._retry_at = 0
                self.plan.retry()

    def _open_catalog(self) -> Work:
        own, nodes = self.world.catalog, tuple(sorted(self.world.nodes))
        self.world.history.opens_catalog(self)
        while own not in self.replicas:
            try:
                if own not in self.manifest.logs:
                    yield from self._make_directory(own)
                    yield from self._record({own: LogLife(LogState.MADE, 0, nodes, "/catalog")})
                yield from self._open(own, nodes)
            except OSError as error:
                self._check_passing(error)
                yield RETRY_US

    def _follow(self) -> Work:
        """Read the catalog, entry after entry."""
        replica = self.replicas[self.world.catalog]
        while True:
            engine = replica.engine
            log = engine.core.raft.log
            for entry in log.walk(self._unread, Index(engine.applied + 1)):
                self._unread = Index(entry.index + 1)
                for offset, value in enumerate(records_of(entry), entry.base_offset):
                    if offset >= self.catalog.applied:
                        change = self.catalog.apply(value)
                        if change is not None:
                            self.plan.take(change)
            yield POLL_US

    def _place(self) -> Work:
        """Give the logs that are led here the members of the catalog, as server/logs/placing.py
        does."""
        asked: dict[int, Question] = {}
        while True:
            yield PLACE_US
            for incarnation, replica in self.replicas.items():
                waits = incarnation in asked and asked[incarnation].result is None
                if waits or not replica.serves or incarnation == self.world.catalog:
                    continue
                placement = self.catalog.placement(incarnation)
                change = next_change(placement, replica.engine.core.raft.memberships.newest)
                if change is not None:
                    asked[incarnation] = replica.change_members(change)

    @property
    def carried(self) -> int:
        """The number of records of the catalog that are carried out here."""
        return self.plan.carried if self.takes_part else 0

    # -- steps ---------------------------------------------------------------------------------

    def _begin_openings(self) -> None:
        for step in self.plan.openings():
            self.begin(self._open_beside(step))

    def _open_beside(self, step: Open) -> Work:
        """Open a log beside all other steps."""
        try:
            self._refuse_files(*PASSING)
            yield from self._open(step.incarnation, step.log.nodes)
        except OSError as error:
            self._put_off(step, error)
        else:
            gone = self.catalog.is_gone(step.incarnation)
            self.world.sometimes["deleted while it was opened"] += gone
            self.plan.opened(step)

    def _carry_out(self, step: Make | Retire | Remove) -> Work:
        try:
            if isinstance(step, Make):
                yield from self._make(step.log)
            elif isinstance(step, Retire):
                yield from self._retire(step.incarnations)
            else:
                yield from self._remove(step.incarnation)
        except OSError as error:
            self._put_off(step, error)

    def _put_off(self, step: Step, error: OSError) -> None:
        self._check_passing(error)
        self.world.sometimes[f"put off: {type(step).__name__}"] += 1
        self.plan.put_off(step, str(error))
        self._retry_at = self._retry_at or self.world.now + RETRY_US

    def _check_passing(self, error: OSError) -> None:
        if error.errno not in PASSING:
            raise DiskFailed(f"{self.node.name}: {error}") from error

    def _refuse_files(self, *reasons: int) -> None:
        """Raise OSError if the system refuses to open a file for one of these reasons."""
        refusal = self.node.trouble.refusal
        if refusal in reasons:
            raise OSError(refusal, "no file can be opened")

    def _make(self, facts: LogFacts) -> Work:
        name, incarnation, nodes, created_us = facts
        if incarnation in self.node.lost_logs:
            raise Violation("lost-log", f"{self.node.name} makes {incarnation:x} anew")
        yield from self._make_directory(incarnation)
        yield from self._record({incarnation: LogLife(LogState.MADE, created_us, nodes, name)})

    def _make_directory(self, incarnation: int) -> Work:
        yield self.node.disk_us()
        directory = self.node.directory
        with directory.room_needed(incarnation):
            make_log(directory, incarnation)  # type: ignore[arg-type]  # it needs no more
        yield self.node.disk_us()

    def _open(self, incarnation: int, nodes: tuple[NodeId, ...]) -> Work:
        try:
            if not self.node.directory.has_log(incarnation):
                raise Damaged(f"log {incarnation:x} was made on {self.node.name} and is missing")
            plan = open_replica(self, incarnation, nodes)
            while True:
                try:
                    next(plan)
                except StopIteration as end:
                    if incarnation in self.node.lost_logs:
                        what = f"{self.node.name} opens an older folder of {incarnation:x}"
                        raise Violation("lost-log", what) from None
                    self.replicas[incarnation] = end.value
                    return
                yield self.node.disk_us()
        except Damaged as halt:
            if incarnation not in self.node.lost_logs:
                raise Violation("halt", f"{self.node.name} opens {incarnation:x}: {halt}") from halt
            older = incarnation in self.node.directory.older_logs
            kind = "older" if older else "lost"
            self.world.sometimes[f"{kind} folder of a log reported"] += 1
            self.down[incarnation] = halt

    def _retire(self, incarnations: tuple[int, ...]) -> Work:
        for incarnation in incarnations:
            self.down.pop(incarnation, None)
            replica = self.replicas.pop(incarnation, None)
            if replica is not None:
                replica.close()
            yield self.node.disk_us()
            self._refuse_files(errno.EMFILE)
        lives = self.manifest.logs
        yield from self._record(
            {one: lives[one]._replace(state=LogState.DELETING) for one in incarnations}
        )

    def _remove(self, incarnation: int) -> Work:
        known = incarnation in self.manifest.logs
        if not known and incarnation in self.plan.may_be_recorded:
            yield from self._record({incarnation: None})
        yield self.node.disk_us()
        self._refuse_files(errno.EMFILE)
        self.node.directory.remove_log(incarnation)
        self.plan.removed(incarnation)
        if known:
            yield from self._record({incarnation: None})
            self.world.history.dropped(self.node, incarnation)

    def _record(self, lives: Mapping[int, LogLife | None]) -> Work:
        with self.plan.recorded(lives):
            yield from self.kept_manifest.save()

    def _keep_table(self) -> Work:
        due = self.catalog.applied >= self._table.applied + self.world.table_every
        if not due or not self.plan.deletions_done:
            return
        data, applied = self.catalog.encode(), self.catalog.applied
        yield self.node.disk_us()
        try:
            self._table.write(data)
        except OSError as error:
            self._check_passing(error)
        else:
            self._table.applied = applied
