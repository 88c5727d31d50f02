"""What time does to a disk: flipped bits, zeroed and misdirected pages, files that end early or
are gone.

Within a budget: at most a minority of the nodes, and never bytes that nothing on the disk proves to
be durable yet. So nothing acknowledged may be lost, whatever rots: a loss is a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.checkpoint import CHECKPOINT
from quorate.storage.layout import PAGE, VOTE_COPIES, decode_vote, segment_name

if TYPE_CHECKING:
    from random import Random

    from quorate.testing.sim.node import Node

__all__ = ["rot"]


def rot(node: Node, random: Random) -> str | None:
    """Spoil something on the disk of ``node``; what it was, or None if nothing may be touched."""
    disk = node.store.disk
    ranges = _spoilable(node)
    if not ranges:
        return None
    name, size = random.choice(ranges)
    kind = random.choice(("flip", "flip", "flip", "zero", "misdirected", "short", "gone"))
    if kind in ("short", "gone") and not name.endswith(".segment"):
        kind = "flip"
    position = random.randrange(size)
    page = position - position % PAGE
    end = min(page + PAGE, size)
    if kind == "flip":
        byte = disk.files[name].content[position] ^ (1 << random.randrange(8))
        disk.spoil(name, position, bytes([byte]))
    elif kind == "zero":
        disk.spoil(name, page, bytes(end - page))
    elif kind == "misdirected":
        source = random.randrange(size) // PAGE * PAGE
        content = bytes(disk.files[name].content[source : source + end - page])
        disk.spoil(name, page, content.ljust(end - page, b"\0"))
    elif kind == "short":
        disk.shorten(name, position)
    else:
        disk.lose(name)
    return kind


def _spoilable(node: Node) -> list[tuple[str, int]]:
    """The files that may be touched, and how many of their bytes."""
    disk, log = node.store.disk, node.store.log
    found = []
    segments = log.segments if log is not None else []
    for segment in segments:
        name = segment_name(segment.number)
        size = segment.proved if segment is segments[-1] else segment.end
        if name in disk.files and len(disk.files[name].content) >= size:
            found.append((name, size))
    for name, inode in disk.files.items():
        if (name.endswith(".index") or name == CHECKPOINT) and inode.content:
            found.append((name, len(inode.content)))
    whole = [name for name in VOTE_COPIES if _whole(node, name)]
    if len(whole) == len(VOTE_COPIES):
        found.append((whole[0], len(disk.files[whole[0]].content)))
    return found


def _whole(node: Node, name: str) -> bool:
    inode = node.store.disk.files.get(name)
    return inode is not None and not inode.pending and decode_vote(inode.durable) is not None
