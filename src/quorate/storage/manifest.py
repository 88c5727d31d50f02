"""The manifest of a node: the logs that it has, and the nodes of its cluster.

One file of the data directory, ``manifest``, as text::

    format 1
    applied 2
    failures 0
    start 7 3b9aca0000000001
    node n1 127.0.0.1:7401 - 0 0 0
    node n2 127.0.0.1:7402 4e03c514dedeeae3ad253841c9ba4ee8 12 5d21dba00000beef 7
    shown n2 11 2fe84ab30000cafe
    told n2 n3 14 6d0f35c10000feed
    log 00000000000000000000000000c0ffee made 1700000000000000 5 n1,n2 orders
    crc32c 01234567

The file is always replaced as a whole. A log that was made here and has no directory any more is
damage: made again, it would lack the votes and acknowledgements that it gave. So would an older
copy of that directory: a ``log`` line has, before its nodes, the boot that the vote record had when
the log was last opened. A ``start`` line is a start of this node with the random number that its
process drew. A ``node`` line has the storage id of a peer, the newest start that the peer showed to
this node with the random number of that process, and the newest start of this node that the peer is
known to have written down. The ``shown`` lines of the peer are the earlier starts that it told of
itself then. A ``told`` line is a start of the peer that a third node, here n3, was shown, and this
node was not. A line ``outdated n2 9 5d21dba00000beef`` after the starts says that this directory is
an older copy: n2 knows start 9 of this node as that process, and this directory does not. No node
starts on such a directory. server/identity/roster.py explains the use of these lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from quorate.errors import WrongDirectory
from quorate.storage.directory import log_name, proof_line
from quorate.types import NodeId

__all__ = ["MANIFEST", "LogLife", "LogState", "Manifest", "Member", "Outdated", "Told"]

MANIFEST = "manifest"
FORMAT = 1
_UNMET = "-"


class LogState(StrEnum):
    MADE = "made"
    # Some of its files may be removed already.
    DELETING = "deleting"


class LogLife(NamedTuple):
    """A log of this node, from its creation to the removal of its last file."""

    state: LogState
    created_us: int
    nodes: tuple[NodeId, ...]
    name: str
    # The boot of the log when its replica was last opened here: a vote record with a lower boot
    # belongs to an older copy of the log's folder.
    boot: int = 0


class Told(NamedTuple):
    """A start of a node that it showed to a third node, the witness."""

    witness: NodeId
    start: int
    boot: int


class Member(NamedTuple):
    """A node of the cluster. Of this node itself only the address is used."""

    address: str
    # The storage id of its disk. None until it is known; then it never changes.
    storage: bytes | None = None
    # The newest start that the member showed to this node, and the random number of that process.
    start: int = 0
    boot: int = 0
    # The newest start of this node that the member said it has written down; 0 if the member has
    # not said that it knows the disk of this node.
    confirmed: int = 0
    # The earlier starts that the member told of itself with the one above, oldest first: starts
    # that witnesses tell later are compared with them.
    earlier: tuple[tuple[int, int], ...] = ()
    # Starts of the member that witnesses told and that it has not shown to be its own: at most one
    # of each witness. They are kept beside the start above: a node that is let in must have been
    # all of those processes.
    told: tuple[Told, ...] = ()

    @property
    def history(self) -> dict[int, int]:
        """The starts that the member showed or told of itself, with the random number of each."""
        return dict(self.earlier) | ({self.start: self.boot} if self.start else {})


class Outdated(NamedTuple):
    """The proof that a directory is an older copy: a start of its node that it does not know."""

    peer: NodeId
    start: int
    boot: int


@dataclass(slots=True)
class Manifest:
    """The content of the manifest. It is changed in memory, then written: no action may rest on a
    change before it is written."""

    nodes: dict[NodeId, Member]
    logs: dict[int, LogLife] = field(default_factory=dict)
    # Number of records that had been applied to the newest catalog table by which the logs above
    # were changed. An older table makes no log: it still has logs that were deleted here.
    applied: int = 0
    # Number of disk failures in a row: each makes the next start wait longer.
    failures: int = 0
    # The starts of this node, oldest first, with the random number of each process; the last one is
    # the process that runs. server/identity/roster.py says which are kept.
    starts: dict[int, int] = field(default_factory=dict)
    # Set for good when a peer proves that this directory is an older copy: no node starts on it.
    outdated: Outdated | None = None

    @property
    def formed(self) -> bool:
        """Whether the first start is complete: the catalog is the first log that is made here, and
        it is never deleted."""
        return bool(self.logs)

    def encode(self) -> bytes:
        lines = [f"format {FORMAT}", f"applied {self.applied}", f"failures {self.failures}"]
        lines += [f"start {start} {boot:x}" for start, boot in self.starts.items()]
        if self.outdated is not None:
            lines.append("outdated {} {} {:x}".format(*self.outdated))
        for node, (address, storage, start, boot, confirmed, earlier, told) in self.nodes.items():
            disk = storage.hex() if storage else _UNMET
            lines.append(f"node {node} {address} {disk} {start} {boot:x} {confirmed}")
            lines += ["shown {} {} {:x}".format(node, *row) for row in earlier]
            lines += ["told {} {} {} {:x}".format(node, *row) for row in told]
        for incarnation, (state, created_us, nodes, name, boot) in self.logs.items():
            where = ",".join(nodes)
            lines.append(f"log {log_name(incarnation)} {state} {created_us} {boot} {where} {name}")
        text = "".join(f"{line}\n" for line in lines).encode()
        return text + proof_line(text)

    @staticmethod
    def decode(data: bytes) -> Manifest | None:
        """The manifest in ``data``; None if a bit of it is not as it was written.

        Raises WrongDirectory if a newer release wrote it.
        """
        start = data.rfind(b"\ncrc32c ") + 1
        text = data[:start]
        if data[start:] != proof_line(text):
            return None
        try:
            lines = [line.split(" ") for line in text.decode().splitlines()]
            (_, number), (_, applied), (_, failures) = lines[:3]
            if int(number) > FORMAT:
                raise WrongDirectory(
                    f"the manifest has format {number}, this release knows format {FORMAT}; run "
                    f"the release that wrote it, or a newer one"
                )
            manifest = Manifest({}, applied=int(applied), failures=int(failures))
            for kind, *fields in lines[3:]:
                manifest._take(kind, fields)
        except (ValueError, KeyError):
            return None
        return manifest if manifest.encode() == data else None

    def _take(self, kind: str, fields: list[str]) -> None:
        if kind == "node":
            node, address, storage, start, boot, confirmed = fields
            bound = bytes.fromhex(storage) if storage != _UNMET else None
            self.nodes[NodeId(node)] = Member(
                address, bound, int(start), int(boot, 16), int(confirmed)
            )
        elif kind == "shown":
            node, start, boot = fields
            member = self.nodes[NodeId(node)]
            earlier = (*member.earlier, (int(start), int(boot, 16)))
            self.nodes[NodeId(node)] = member._replace(earlier=earlier)
        elif kind == "told":
            node, witness, start, boot = fields
            member = self.nodes[NodeId(node)]
            told = (*member.told, Told(NodeId(witness), int(start), int(boot, 16)))
            self.nodes[NodeId(node)] = member._replace(told=told)
        elif kind == "start":
            start, boot = fields
            self.starts[int(start)] = int(boot, 16)
        elif kind == "outdated":
            peer, start, boot = fields
            self.outdated = Outdated(NodeId(peer), int(start), int(boot, 16))
        elif kind == "log":
            incarnation, state, created_us, boot, nodes, name = fields
            where = tuple(NodeId(node) for node in nodes.split(","))
            life = LogLife(LogState(state), int(created_us), where, name, int(boot))
            self.logs[int(incarnation, 16)] = life
        else:
            raise ValueError(kind)
