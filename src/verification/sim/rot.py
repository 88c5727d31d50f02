"""The damage that time does to a disk: flipped bits, zeroed, misdirected and older pages, one or
several in a row, files that end early or are gone.

Rot takes only bytes that the disk proves to be durable: no node could miss others. And it stays
within the budget of ``losses.py``, so that a loss or a standstill is a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.entry import HEADER_BYTES
from quorate.storage.checkpoint import CHECKPOINT
from quorate.storage.layout import PAGE, VOTE_BYTES, VOTE_COPIES, newest_vote
from verification.sim.losses import checkpointed
from verification.sim.proofs import marked_end, proved_bytes

if TYPE_CHECKING:
    from random import Random

    from verification.disk.durable import FramePlace
    from verification.sim.node import SimulatedNode

__all__ = [
    "rot", "rot_body", "rot_page", "rot_tail", "spoil_body", "spoil_page", "stop_before", "tear",
]  # fmt: skip

# The number of pages in a row that are bad, if several are.
RUN_PAGES = 4
KINDS = (
    "flip", "flip", "flip", "zero", "misdirected", "run", "lost-write", "zero-tail", "short",
    "gone",
)  # fmt: skip


def rot(node: SimulatedNode, random: Random) -> str | None:
    """Spoil a part of the disk of ``node``; return a description, or None if no part may be
    touched."""
    disk, losses = node.store.disk, node.world.losses
    ranges = _spoilable(node)
    if not ranges or not losses.allows(node):
        return None
    name, size = random.choice(ranges)
    kind = random.choice(KINDS)
    if kind in ("short", "gone", "run", "zero-tail") and not name.endswith(".segment"):
        kind = "flip"
    older = {page: data for page, data in disk.files[name].older.items() if page < size}
    if kind == "lost-write" and not older:
        kind = "zero"
    position = random.randrange(size)
    page = position - position % PAGE
    end = min(page + PAGE, size)
    losses.note(node, name, 0 if kind == "gone" else page)
    if kind == "flip":
        byte = disk.files[name].content[position] ^ (1 << random.randrange(8))
        disk.spoil(name, position, bytes([byte]))
    elif kind == "zero":
        disk.spoil(name, page, bytes(end - page))
    elif kind == "misdirected":
        source = random.randrange(size) // PAGE * PAGE
        content = bytes(disk.files[name].content[source : source + end - page])
        disk.spoil(name, page, content.ljust(end - page, b"\0"))
    elif kind == "run":
        end = min(page + random.randrange(1, RUN_PAGES + 1) * PAGE, size)
        disk.spoil(name, page, _bad(end - page, random))
    elif kind == "lost-write":
        page = random.choice(sorted(older))
        losses.note(node, name, page)
        disk.spoil(name, page, older[page][: size - page])
    elif kind == "zero-tail":
        start = max(PAGE, size - random.randrange(1, RUN_PAGES + 1) * PAGE)
        losses.note(node, name, start)
        disk.spoil(name, start, bytes(max(0, size - start)))
    elif kind == "short":
        disk.shorten(name, position)
    else:
        disk.lose(name)
    return kind


def rot_tail(node: SimulatedNode, random: Random) -> bool:
    """Spoil the last pages of a node that stopped in order, the proof behind the newest entries
    included: only the mark of the stop says that they were there."""
    marked = marked_end(node.store)
    if marked is None or not node.world.losses.allows(node):
        return False
    name, end = marked
    start = max(PAGE, end - random.randrange(1, RUN_PAGES + 1) * PAGE)
    if name not in node.store.disk.files or start >= end:
        return False
    node.world.losses.note(node, name, start)
    node.store.disk.spoil(name, start, _bad(end - start, random))
    return True


def rot_body(node: SimulatedNode, random: Random) -> bool:
    """Spoil the body of an old entry that enough others have."""
    places = node.world.losses.spoilable_bodies(node)
    if places:
        spoil_body(node, random.choice(places), random)
    return bool(places)


def rot_page(node: SimulatedNode, random: Random) -> bool:
    """Spoil a page of old entries that enough others have, with the headers that identify them."""
    pages = node.world.losses.spoilable_pages(node)
    if pages:
        spoil_page(node, random.choice(sorted(pages)), random)
    return bool(pages)


def spoil_page(node: SimulatedNode, page: tuple[str, int], random: Random) -> None:
    """Spoil a page, which is in the budget."""
    losses, (name, start) = node.world.losses, page
    losses.note_page(node, losses.spoilable_pages(node)[page])
    node.store.disk.spoil(name, start, _bad(PAGE, random))


def spoil_body(node: SimulatedNode, place: FramePlace, random: Random) -> None:
    """Spoil the body of an entry, which is in the budget."""
    node.world.losses.note_body(node, place)
    _spoil_body(node, place, random)


def stop_before(node: SimulatedNode, place: FramePlace, random: Random) -> None:
    """Spoil the body of an entry that a node, which is down, has to apply again."""
    node.world.losses.note_new_body(node, place)
    _spoil_body(node, place, random)


def _spoil_body(node: SimulatedNode, place: FramePlace, random: Random) -> None:
    disk, start = node.store.disk, place.start + HEADER_BYTES
    if random.randrange(2):
        position = random.randrange(start, place.stop)
        byte = disk.files[place.file].content[position] ^ (1 << random.randrange(8))
        disk.spoil(place.file, position, bytes([byte]))
    else:
        disk.spoil(place.file, start, random.randbytes(place.stop - start))


def tear(node: SimulatedNode, name: str, position: int) -> bool:
    """Whether a write that a power cut tore within a page spoils the rest of that page: only the
    cut of a log writes into a page of durable entries (ADR 10)."""
    if not node.world.losses.allows(node):
        return False
    node.world.losses.note(node, name, position - position % PAGE)
    node.world.sometimes["page torn around a write"] += 1
    return True


def _bad(size: int, random: Random) -> bytes:
    """Zeros or random bytes."""
    return random.randbytes(size) if random.randrange(2) else bytes(size)


def _spoilable(node: SimulatedNode) -> list[tuple[str, int]]:
    """The files that rot may touch, and the number of their bytes that it may touch."""
    disk = node.store.disk
    proved = proved_bytes(node.store)
    # The checkpoint proves the entries that it covers. It may rot itself if it proves no more than
    # the segments do.
    covered = [
        place
        for place in node.store.durable.places[: checkpointed(node)]
        if place.stop > proved.get(place.file, 0)
    ]
    proved |= {place.file: place.stop for place in covered}
    # An unfit node may lack files that it had, or their ends.
    lengths = {name: len(inode.content) for name, inode in disk.files.items()}
    found = [(name, min(size, lengths.get(name, 0))) for name, size in proved.items()]
    found = [(name, size) for name, size in found if size]
    for name, inode in disk.files.items():
        rots = name.endswith(".index") or (name == CHECKPOINT and not covered)
        if rots and inode.content:
            found.append((name, len(inode.content)))
    if all(_whole(node, name) for name in VOTE_COPIES):
        found += [(name, VOTE_BYTES) for name in VOTE_COPIES]
    return found


def _whole(node: SimulatedNode, name: str) -> bool:
    """Whether this copy holds the vote record that counts: then the other one may be spoilt."""
    inode = node.store.disk.files.get(name)
    if inode is None or inode.pending:
        return False
    record = newest_vote([inode.durable], node.store.identity)
    return record is not None and record == node.store.durable.vote
