"""Knowledge of the world that no node has: the one history of every log, and the disks that may
open one.

Every log has one history: the entries that any replica ever held committed agree, by index, term
and chain, with those of all other replicas at all times. The chain stands for all entries up to it,
so the position is compared and not the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from quorate.batch import Batch
from quorate.entry_body import unpack_batches
from quorate.storage.manifest import LogState
from quorate.types import EntryKind, Index, NodeId, Position, Term
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.commands import Receipt
    from quorate.entry import Entry
    from quorate.wire.handshake import Introduction
    from verification.fleet.node import FleetNode
    from verification.fleet.process import Process
    from verification.fleet.replica import FleetReplica
    from verification.fleet.world import FleetWorld

__all__ = ["FleetHistory", "records_of"]


def records_of(entry: Entry) -> Iterator[bytes]:
    """The values of the records of a data entry of the catalog."""
    if entry.kind is EntryKind.DATA:
        for batch, _ in unpack_batches(entry):
            yield from (record.value for record in Batch.parse(batch))


class _Committed:
    """The committed entries of one log."""

    def __init__(self) -> None:
        # By index - 1: the position, and the lowest term in which a replica held it committed.
        self.positions: list[Position] = []
        self.terms: list[Term] = []
        # The offsets of acknowledged batches, each with the batch.
        self.acknowledged: dict[int, bytes] = {}
        # The end of the acknowledged records.
        self.end = 0
        # The process that led each term.
        self.leaders: dict[Term, int] = {}
        # The offset of the record of the catalog that the newest membership serves.
        self.intent = 0


class FleetHistory:
    """Global knowledge, and the rules that are checked against it."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._logs: dict[int, _Committed] = {}
        # The meaning of the catalog's records, worked out a second time: live logs by name, and
        # every incarnation that was deleted. None is ever forgotten here.
        self.live: dict[str, int] = {}
        self.deleted: set[int] = set()
        self.made: set[int] = set()
        # The priorities that each placement asks for, by log and by the offset of its record.
        self.placements: dict[int, dict[int, dict[str, int]]] = {}
        # The number of records in the catalog.
        self.records = 0
        # Each node with the disk on which it opened its catalog.
        self._opened_on: dict[NodeId, bytes] = {}
        # The disk of a node, as another disk has it written down.
        self._bound: dict[tuple[bytes, NodeId], bytes] = {}
        # All starts of a disk that another disk was ever shown or told, each with its process.
        self._starts: dict[tuple[bytes, bytes], set[tuple[int, int]]] = {}
        # Stands for the whole run: all positions that were committed, in the order of their
        # commits.
        self.trace: list[Position] = []

    def log(self, incarnation: int) -> _Committed:
        return self._logs.setdefault(incarnation, _Committed())

    # -- one history ---------------------------------------------------------------------------

    def opened(self, replica: FleetReplica) -> None:
        """A replica begins with the log that its disk proves."""
        self.turned(replica)

    def turned(self, replica: FleetReplica) -> None:
        """A replica has had a turn."""
        engine = replica.engine
        raft = engine.core.raft
        if raft.committed > replica.checked:
            self._check_committed(replica)
        if replica.leads and not replica.led:
            self._check_leader(replica)
        replica.led = replica.leads

    def _check_committed(self, replica: FleetReplica) -> None:
        raft = replica.engine.core.raft
        known = self.log(replica.incarnation)
        is_catalog = replica.incarnation == self._world.catalog
        first = Index(replica.checked + 1)
        replica.checked = raft.committed
        for entry in raft.log.walk(first, Index(raft.committed + 1)):
            row = entry.index - 1
            if row == len(known.positions):
                known.positions.append(entry.position)
                known.terms.append(raft.term)
                self.trace.append(entry.position)
                if entry.kind is EntryKind.MEMBERSHIP:
                    self._check_members(replica, entry.body)
                if is_catalog:
                    for value in records_of(entry):
                        self._take(msgspec.msgpack.decode(value))
            elif known.positions[row] != entry.position:
                raise Violation(
                    "one-history",
                    f"{replica.place} committed {entry.position}, another replica has committed "
                    f"{known.positions[row]}",
                )
            known.terms[row] = min(known.terms[row], raft.term)

    def _check_members(self, replica: FleetReplica, body: bytes) -> None:
        """Check that members only follow the catalog, and never go back to an earlier placement.
        The body is read here a second time: no code of the product decides what it means."""
        counts, intent = body[4:7], int.from_bytes(body[8:16], "little")
        known, at = self.log(replica.incarnation), 16
        priorities = {}
        for _ in range(sum(counts)):
            size, priority = body[at], body[at + 1]
            priorities[body[at + 2 : at + 2 + size].decode()] = priority
            at += 2 + size
        asked = self.placements.get(replica.incarnation, {}).get(intent)
        if asked is None or intent <= known.intent:
            raise Violation("placement", f"{replica.place} serves record {intent} of the catalog")
        if {node: value for node, value in priorities.items() if value != 100} != asked:
            raise Violation("placement", f"{replica.place}: {priorities}, not {asked}")
        known.intent = intent

    def _check_leader(self, replica: FleetReplica) -> None:
        """Check that a leader has all entries committed in terms before its own."""
        raft = replica.engine.core.raft
        known = self.log(replica.incarnation)
        number = known.leaders.setdefault(raft.term, replica.process_number)
        if number != replica.process_number:
            raise Violation("one-leader", f"{replica.place} leads term {raft.term} too")
        for position, term in zip(known.positions, known.terms, strict=True):
            if term < raft.term and (
                position.index > raft.log.last_index
                or (
                    position.index >= raft.log.first_in_memory
                    and raft.log.position(position.index) != position
                )
            ):
                raise Violation("leader", f"{replica.place} leads {raft.term}, lacks {position}")

    # -- the catalog's records -----------------------------------------------------------------

    def _take(self, record: dict[str, Any]) -> None:
        """A record was committed for the first time. The leader judged it before it was logged, so
        each one changes something."""
        name, incarnation = record["name"], int.from_bytes(record["incarnation"], "little")
        self.records += 1
        if record["op"] == "create":
            if incarnation in self.deleted:
                raise Violation("deleted", f"log {incarnation:x} was deleted and is made again")
            if name in self.live:
                raise Violation("name", f"log {name} is made while {self.live[name]:x} has it")
            self.live[name] = incarnation
            self.made.add(incarnation)
        elif record["op"] == "place":
            if self.live.get(name) != incarnation:
                raise Violation("name", f"log {name}, {incarnation:x} is placed and not there")
            asked = record.get("priorities", {})
            self.placements.setdefault(incarnation, {})[self.records - 1] = asked
        else:
            if self.live.get(name) != incarnation:
                raise Violation("name", f"log {name}, {incarnation:x} is deleted and not there")
            del self.live[name]
            self.deleted.add(incarnation)

    # -- answers to clients --------------------------------------------------------------------

    def appended(self, incarnation: int, receipt: Receipt, batch: bytes) -> None:
        """A client was told that its batch is in the log."""
        known = self.log(incarnation)
        other = known.acknowledged.setdefault(receipt.offset, batch)
        if other is not batch:
            raise Violation("offsets", f"offset {receipt.offset} of {incarnation:x} given twice")
        known.end = max(known.end, receipt.offset + 1)
        row = receipt.index - 1
        if row >= len(known.positions) or known.positions[row].term != receipt.term:
            raise Violation("acknowledged", f"{receipt} of {incarnation:x} is not committed")

    def read(self, incarnation: int, end_before: int, end: int) -> None:
        """A read that began when ``end_before`` records were acknowledged was told an end."""
        if end < end_before:
            raise Violation("read", f"log {incarnation:x} ends at {end}, {end_before} were given")

    def created(self, incarnation: int, *, deleted_before: bool) -> None:
        """A client was told that its log exists."""
        if deleted_before:
            raise Violation("deleted", f"a create of {incarnation:x} succeeds after its deletion")
        if incarnation not in self.made:
            raise Violation("acknowledged", f"the creation of {incarnation:x} is not committed")

    def placed(self, incarnation: int, record: int) -> None:
        """A client was told that the members of its log serve this record of the catalog."""
        if self.log(incarnation).intent < record:
            raise Violation("acknowledged", f"no member of {incarnation:x} serves record {record}")

    def wanted_intent(self, incarnation: int) -> int:
        """The offset of the newest placement of a log; 0 if it has none."""
        return max(self.placements.get(incarnation, {}), default=0)

    def removed(self, incarnation: int) -> None:
        """A client was told that its log is deleted."""
        if incarnation not in self.deleted:
            raise Violation("acknowledged", f"the deletion of {incarnation:x} is not committed")
        nodes = self._world.nodes.values()
        kept = [node.name for node in nodes if node.good and node.directory.is_durable(incarnation)]
        if len(nodes) - len(kept) < self._world.quorum:
            raise Violation("removed", f"{incarnation:x} is deleted and still on {kept}")

    # -- disks ---------------------------------------------------------------------------------

    def opens_catalog(self, process: Process) -> None:
        """A node is about to open its catalog: it must be the only disk of that name that ever did,
        and on its first start every node must have it written down."""
        node = process.node
        storage = node.directory.storage
        assert storage is not None  # the process runs
        if self._opened_on.setdefault(node.name, storage) != storage:
            raise Violation("wiped", f"{node.name} opens its catalog on a second disk")
        if process.manifest.formed:
            return
        for peer in self._world.nodes.values():
            if peer is node:
                continue
            if peer.name not in process.manifest.nodes:
                raise Violation("first-start", f"{node.name} opens its catalog without {peer.name}")
            bound = process.manifest.nodes[peer.name].storage
            if bound is None or self._bound.get((bound, node.name)) != storage:
                raise Violation(
                    "first-start", f"{node.name} opens its catalog, {peer.name} does not know it"
                )

    def saved(self, node: FleetNode) -> None:
        """The manifest of a node was replaced."""
        directory = node.directory
        manifest, storage = directory.durable_manifest, directory.storage
        if manifest is None or storage is None:
            raise Violation("manifest", f"{node.name} has no manifest that can be read")
        for name, member in manifest.nodes.items():
            if member.storage is not None:
                bound = self._bound.setdefault((storage, name), member.storage)
                # An older copy may have forgotten it.
                if bound != member.storage and not node.rolled_back:
                    raise Violation("disk", f"{node.name} knows {name} by another disk than before")
        self._check_done(node)

    def check_manifest(self, node: FleetNode) -> None:
        """Check after a power cut that the manifest can be read, and that all that it says was
        done."""
        if not node.directory.has_durable_manifest:
            if node.directory.logs:
                raise Violation("manifest", f"{node.name} has logs and no manifest")
            return
        if node.directory.durable_manifest is None:
            raise Violation("manifest", f"the manifest of {node.name} cannot be read")
        self._check_done(node)

    def _check_done(self, node: FleetNode) -> None:
        manifest = node.directory.durable_manifest
        assert manifest is not None  # the callers looked
        if manifest.applied > self.records:
            raise Violation(
                "manifest",
                f"{node.name} has carried out {manifest.applied} records of {self.records}",
            )
        for incarnation, life in manifest.logs.items():
            made = life.state is LogState.MADE and incarnation not in node.lost_logs
            if made and not node.directory.has_durable_log(incarnation):
                raise Violation("manifest", f"{node.name} says {incarnation:x} is made: it is not")
            if life.state is LogState.DELETING and incarnation not in self.deleted:
                raise Violation("manifest", f"{node.name} deletes {incarnation:x}: no node said so")

    def dropped(self, node: FleetNode, incarnation: int) -> None:
        """A manifest does not name a log any more."""
        if node.directory.is_durable(incarnation):
            raise Violation("manifest", f"{node.name} forgot {incarnation:x}, its files are there")

    # -- handshakes ----------------------------------------------------------------------------

    def accepted(self, hearer: FleetNode, speaker: FleetNode, said: Introduction) -> None:
        """A node accepted the introduction of another one: all that it says is written down now.

        Each side judges by itself. One of the two would be enough to keep a wrong disk out, and a
        bug in the other would never show in a link.
        """
        self._check_copies(hearer, speaker, said)
        for knows, other in ((hearer, speaker), (speaker, hearer)):
            own, storage = knows.directory.storage, other.directory.storage
            assert own is not None  # both were started
            assert storage is not None
            if knows.good and self._bound.get((own, other.name), storage) != storage:
                what = f"{hearer.name} accepts {speaker.name}, {knows.name} knows {other.name}"
                raise Violation("wiped", f"{what} by another disk")
        if hearer.good:
            self._check_written_down(hearer, speaker, said)

    def _check_copies(self, hearer: FleetNode, speaker: FleetNode, said: Introduction) -> None:
        """Check that no node lets an older copy in if it could know better, and that no older copy
        goes on after it was told that it is one."""
        suspected = hearer.name not in speaker.unsuspected_by
        if speaker.rolled_back and hearer.good and (suspected or self._refuted(hearer, said)):
            what = f"{speaker.name} runs on an older copy and is accepted by {hearer.name}"
            raise Violation("rolled-back", what)
        seen, manifest = said.known.get(hearer.name), hearer.directory.durable_manifest
        assert manifest is not None  # it was saved before the node said a word
        if hearer.rolled_back and any(
            start > hearer.copied_at and manifest.starts.get(start) != boot
            for start, boot in (seen.starts if seen is not None else ())
        ):
            what = f"{hearer.name} heard from {speaker.name} that it is an older copy, and goes on"
            raise Violation("rolled-back", what)

    def _refuted(self, hearer: FleetNode, said: Introduction) -> bool:
        """Whether the speaker differs from each process that the hearer was ever shown or told as a
        start of it."""
        assert hearer.directory.storage is not None  # it was started
        history = said.earlier | {said.start: said.boot}
        known = self._starts.get((hearer.directory.storage, said.storage), ())
        return any(start > said.start or history.get(start, boot) != boot for start, boot in known)

    def _check_written_down(
        self, hearer: FleetNode, speaker: FleetNode, said: Introduction
    ) -> None:
        own, manifest = hearer.directory.storage, hearer.directory.durable_manifest
        assert own is not None
        assert manifest is not None  # it was saved before the node said a word
        told = {speaker.name: (said.storage, [(said.start, said.boot)])}
        for name, seen in said.known.items():
            told[NodeId(name)] = (seen.storage, seen.starts)
        for name, (storage, starts) in told.items():
            if name == hearer.name:
                continue
            known = manifest.nodes[name].storage
            if known is None:
                what = f"{hearer.name} heard of the disk of {name} and has not written it down"
                raise Violation("disk", what)
            if known == storage:
                self._starts.setdefault((own, storage), set()).update(starts)

    def gave_up(self, node: FleetNode) -> None:
        """A node halted because its directory is an older copy: the next start must know that."""
        manifest = node.directory.durable_manifest
        node.marked = manifest is not None and manifest.outdated is not None
        if not node.marked and not node.trouble.refusal:
            raise Violation("rolled-back", f"{node.name} halts and does not mark its directory")

    def knows_later(self, node: FleetNode, other: FleetNode, start: int) -> bool:
        """Whether a node was shown or told a later start of another one than ``start``."""
        own, storage = node.directory.storage, other.directory.storage
        if own is None or storage is None:
            return False
        return any(known > start for known, _ in self._starts.get((own, storage), ()))
