"""JSON documents that several commands print.

Keys of a JSON document are never renamed. Numbers that a reader may take for a float and round,
such as ids and checksums, are strings of hex digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.storage.damage import Damage
    from quorate.storage.directory import Identity
    from quorate.types import Position

    Document = dict[str, Any]

__all__ = ["damage_document", "identity_document", "position_document"]


def position_document(position: Position) -> Document:
    return {
        "index": position.index,
        "term": position.term,
        "chain": f"{position.chain:08x}",
    }


def damage_document(damage: Damage) -> Document:
    """The document of a damage: ``first`` and ``last`` are the entries that cannot be read, null if
    every entry can."""
    return {
        "file": damage.file,
        "start": damage.start,
        "stop": damage.stop,
        "first": damage.first if damage.entries else None,
        "last": damage.last if damage.entries else None,
        "what": damage.what,
    }


def identity_document(identity: Identity | None) -> Document | None:
    if identity is None:
        return None
    return {
        "cluster": identity.cluster,
        "node": identity.node,
        "storage": identity.storage.hex(),
    }
