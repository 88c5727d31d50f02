"""One run of a simulated node: handshakes, the manifest, the catalog and the replicas.

It does what server/node.py, server/carrier.py and server/keeper.py do, in virtual time and in the
same order; what they decide is decided by the real Roster, Reconciler and Catalog.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING, Any

from quorate.errors import Damaged, DiskFailed, ReplicaHalted, WrongDirectory
from quorate.replica.exchange import LinkClosed, LinkRefused
from quorate.server.catalog import Catalog
from quorate.server.manifest import make_log, replace_manifest, take_list
from quorate.server.reconciler import Make, Open, Reconciler, Retire
from quorate.server.roster import Roster
from quorate.storage.directory import TABLE
from quorate.storage.layout import UNFINISHED
from quorate.storage.manifest import MANIFEST, LogLife, LogState, Manifest, Member
from quorate.storage.steps import PASSING
from quorate.testing.fleet.disk import PowerCut
from quorate.testing.fleet.history import records_of
from quorate.testing.fleet.replica import CLUSTER, open_replica
from quorate.testing.sim.violation import Violation
from quorate.types import Index
from quorate.wire.handshake import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from quorate.raft.messages import Envelope
    from quorate.server.catalog import LogFacts
    from quorate.server.reconciler import Step
    from quorate.testing.fleet.node import Node
    from quorate.testing.fleet.replica import Replica
    from quorate.types import NodeId

    # What is yielded is how long to wait, in microseconds.
    Work = Generator[int, None, None]

__all__ = ["POLL_US", "Process", "Work"]

# How often work that waits looks again.
POLL_US = 10_000
DIAL_US = 50_000
RETRY_US = 250_000


class Process:
    """It is gone once ``ended``: what it had scheduled does nothing then."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.number = self.world.next_process()
        self.ended = False
        # Links that this process dialled and that were accepted by both sides, and peers that it
        # let in; each with the number of the process at the other end.
        self.links: dict[NodeId, int] = {}
        self.let_in: dict[NodeId, int] = {}
        self.replicas: dict[int, Replica] = {}
        # Logs of users that must not go on here, and why.
        self.down: dict[int, ReplicaHalted] = {}
        # Manifests that are to be written, oldest first, each with its writer's outcome.
        self._saves: deque[tuple[bytes, _Outcome]] = deque()
        # The next entry of the catalog that is to be read.
        self._unread = Index(1)
        self._retry_at = 0
        self._table_applied = 0
        # The catalog is open, and so is every log that was made before.
        self.takes_part = False
        # Set by `start`, in this order.
        self.manifest: Manifest
        self.roster: Roster
        self.catalog: Catalog
        self.plan: Reconciler

    # -- life ----------------------------------------------------------------------------------

    def after(self, delay_us: int, act: Callable[..., None], *arguments: Any) -> None:
        """Do it later, unless the process is gone by then."""
        self.world.after(delay_us, self.run, act, *arguments)

    def run(self, act: Callable[..., None], *arguments: Any) -> None:
        """Do it now, and end as a process does that meets a power cut."""
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
            # Nothing that happens here spoils a disk that is in use.
            what = f"{self.node.name}: {type(halt).__name__}: {halt}"
            raise Violation("halt", what) from halt

    def begin(self, work: Work) -> None:
        """Do work that waits in between."""
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
            self._open_manifest()
            assert directory.storage is not None  # drawn before a process is made
            boot = self.world.random.getrandbits(63)
            own = Identity(CLUSTER, self.node.name, directory.storage, boot)
            self.roster = Roster(own, self.manifest, self.save_now)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.world.sometimes["a start could not be counted"] += 1
            self.node.kill()
            self.world.start_later(self.node)
            return
        if self.node.marked:
            raise Violation("rolled-back", f"{self.node.name} starts on a marked directory")
        self.catalog = self._read_table()
        self.plan = Reconciler(
            self.node.name, self.manifest, self.catalog, directory.incarnations(), self._has,
            self.world.catalog,
        )  # fmt: skip
        self._dial_all()
        self.begin(self._take_part())

    def _has(self, incarnation: int) -> bool:
        return incarnation in self.replicas or incarnation in self.down

    # -- the manifest --------------------------------------------------------------------------

    def _open_manifest(self) -> None:
        root = self.node.directory.root
        if MANIFEST not in root.names():
            if self.node.directory.logs:
                raise Damaged(f"{self.node.name}: the manifest is missing and there are logs")
            self.manifest = Manifest({name: Member(name) for name in self.node.listed})
            self.save_now()
            return
        file = root.open(MANIFEST)
        found = Manifest.decode(file.read(0, file.size()))
        if found is None:
            raise Damaged(f"{self.node.name}: the manifest is damaged")
        take_list(found, {name: name for name in self.node.listed})
        self.manifest = found

    def save_now(self) -> None:
        """One thread writes manifests: those that wait come first."""
        while self._saves:
            self._write_next()
        self._replace(self.manifest.encode())

    def _save(self) -> Work:
        """The manifest as it is now, durable when this ends. Raises OSError."""
        outcome = _Outcome()
        self._saves.append((self.manifest.encode(), outcome))
        yield self.node.disk_us()
        while not outcome.done:
            self._write_next()
        if outcome.error is not None:
            raise outcome.error

    def _write_next(self) -> None:
        data, outcome = self._saves.popleft()
        try:
            self._replace(data)
        except OSError as error:
            outcome.error = error
        outcome.done = True

    def _replace(self, data: bytes) -> None:
        armed = self.node.trouble.calls_left is not None
        try:
            replace_manifest(self.node.directory.root, data)
        except PowerCut:
            self.world.sometimes["power cut within a manifest replacement"] += armed
            raise
        self.node.allocated_ahead = not self.node.trouble.refusal
        self.world.history.saved(self.node)

    # -- links ---------------------------------------------------------------------------------

    def _dial_all(self) -> None:
        for peer in self.manifest.nodes:
            if peer != self.node.name and peer not in self.links:
                self.world.dial(self, peer)
        self.after(DIAL_US, self._dial_all)

    def learnt(self) -> None:
        """A peer said something of itself and of others."""
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
        """The connection that this process dialled has ended. What the peer had sent before may
        still arrive."""
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
        for first in self.plan.first_steps():
            yield from self._carry_out(first)
        self.takes_part = True
        self.begin(self._follow())
        while True:
            while (step := self.plan.next()) is not None:
                yield from self._carry_out(step)
            yield from self._keep_table()
            yield POLL_US
            if self._retry_at and self.world.now >= self._retry_at:
                self._retry_at = 0
                self.plan.retry()

    def _open_catalog(self) -> Work:
        own, nodes = self.world.catalog, tuple(sorted(self.world.nodes))
        self.world.history.opens_catalog(self)
        while own not in self.manifest.logs:
            try:
                yield from self._make_directory(own)
                yield from self._record({own: LogLife(LogState.MADE, 0, nodes, "/catalog")})
            except OSError as error:
                self._check_passing(error)
                yield RETRY_US
        yield from self._open(own, nodes)

    def note_boot(self, incarnation: int, boot: int) -> Work:
        """As server/manifest.py does it."""
        logs = self.manifest.logs
        logs[incarnation] = logs[incarnation]._replace(boot=boot)
        try:
            yield from self._save()
        except OSError as error:
            self._check_passing(error)

    def _follow(self) -> Work:
        """Read the catalog, entry after entry."""
        replica = self.replicas[self.world.catalog]
        while True:
            engine = replica.engine
            log = engine.core.standing.log
            for entry in log.walk(self._unread, Index(engine.applied + 1)):
                self._unread = Index(entry.index + 1)
                for offset, value in enumerate(records_of(entry), entry.base_offset):
                    if offset >= self.catalog.applied:
                        change = self.catalog.apply(value)
                        if change is not None:
                            self.plan.take(change)
            yield POLL_US

    @property
    def carried(self) -> int:
        """So many records of the catalog are carried out here."""
        return self.plan.carried if self.takes_part else 0

    # -- steps ---------------------------------------------------------------------------------

    def _carry_out(self, step: Step) -> Work:
        try:
            if isinstance(step, Make):
                yield from self._make(step.log)
            elif isinstance(step, Open):
                self._refuse_files(*PASSING)
                yield from self._open(step.incarnation, step.log.nodes)
            elif isinstance(step, Retire):
                yield from self._retire(step.incarnations)
            else:
                yield from self._remove(step.incarnation)
        except OSError as error:
            self._check_passing(error)
            self.world.sometimes[f"put off: {type(step).__name__}"] += 1
            self.plan.put_off(step, str(error))
            self._retry_at = self._retry_at or self.world.now + RETRY_US

    def _check_passing(self, error: OSError) -> None:
        if error.errno not in PASSING:
            raise DiskFailed(f"{self.node.name}: {error}") from error

    def _refuse_files(self, *reasons: int) -> None:
        """Raises OSError if the system refuses to open a file for one of these reasons."""
        refusal = self.node.trouble.refusal
        if refusal in reasons:
            raise OSError(refusal, "no file can be opened")

    def _make(self, facts: LogFacts) -> Work:
        name, incarnation, nodes, created_us = facts
        if incarnation in self.node.lost_logs:
            raise Violation("lost-log", f"{self.node.name} makes {incarnation:x} anew")
        yield from self._make_directory(incarnation)
        yield from self._record({incarnation: LogLife(LogState.MADE, created_us, nodes, name)})
        yield from self._open(incarnation, nodes)

    def _make_directory(self, incarnation: int) -> Work:
        yield self.node.disk_us()
        directory = self.node.directory
        with directory.room_needed(incarnation):
            make_log(directory, incarnation)  # type: ignore[arg-type]  # all of one that is needed
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
        if not known and incarnation in self.plan.in_doubt:
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
            yield from self._save()

    # -- the table on disk ---------------------------------------------------------------------

    def _read_table(self) -> Catalog:
        """The table that was written last. It is not torn: server/table.py has a checksum."""
        root = self.node.directory.root
        if TABLE not in root.names():
            return Catalog()
        file = root.open(TABLE)
        found = Catalog.decode(file.read(0, file.size()))
        if found is None:
            return Catalog()
        self._table_applied = found.applied
        self.world.sometimes["started from a table"] += 1
        return found

    def _keep_table(self) -> Work:
        due = self.catalog.applied >= self._table_applied + self.world.table_every
        if not due or not self.plan.deletions_done:
            return
        data, applied = self.catalog.encode(), self.catalog.applied
        yield self.node.disk_us()
        root = self.node.directory.root
        aside = TABLE + UNFINISHED
        try:
            if aside in root.names():
                root.unlink(aside)
            file = root.create(aside)
            file.write(0, [data])
            file.sync()
            root.rename(aside, TABLE)
        except OSError as error:
            self._check_passing(error)
        else:
            self._table_applied = applied


class _Outcome:
    """Of one manifest that was to be written."""

    def __init__(self) -> None:
        self.done = False
        self.error: OSError | None = None
