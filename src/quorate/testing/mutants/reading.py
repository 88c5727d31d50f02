"""Bugs planted where stored entries are read back."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["READING"]

READING = (
    Mutant(
        "frame-not-held-against-its-chain",
        "a frame that stood in its place before is not the entry",
        "entry.py",
        "        and found_chain == chain\n",
        "",
    ),
    Mutant(
        "header-not-held-against-its-chain",
        "the header of an entry that stood in its place before says nothing about the entry",
        "storage/segment.py",
        "    return header.position.index == index and header.position.chain == chain\n",
        "    return header.position.index == index\n",
    ),
    Mutant(
        "segment-walked-without-its-chain",
        "without an index file the chain says which entries a segment holds",
        "storage/index.py",
        "        if header is None or not header.follows(last, stretch, start - base):\n",
        "        if header is None:\n",
    ),
    Mutant(
        "walk-ends-anywhere",
        "the entries of a segment end with the one that its footer names",
        "storage/index.py",
        "    return rows if last == segment.last else None\n",
        "    return rows\n",
    ),
    Mutant(
        "block-not-held-against-the-walk",
        "a block goes on from the entry before it",
        "storage/index.py",
        "        if block is None or block.before != last:\n",
        "        if block is None:\n",
    ),
    Mutant(
        "archive-believes-the-index-file",
        "what a leader sends follows from entry to entry, whatever an index file says",
        "storage/recovered.py",
        "        if chain is not None and not chain_holds(",
        "        if chain is None and not chain_holds(",
    ),
    Mutant(
        "lost-entry-gets-an-index-file",
        "an index file is made of whole frames",
        "storage/log.py",
        "if not (one.indexed or one.hollow or one.lost)]",
        "if not (one.indexed or one.hollow)]",
    ),
    Mutant(
        "unreadable-segment-ends-the-node",
        "a sealed segment that the disk does not give back goes without an index file",
        "storage/index.py",
        "        if error.errno not in UNREADABLE:\n            raise\n",
        "        raise\n",
    ),
    Mutant(
        "turn-walks-through-a-segment",
        "a turn does not walk through a segment that has no index file",
        "storage/recovered.py",
        "rows = segment.rows_at_hand() if log.looks_later else segment.rows",
        "rows = segment.rows",
    ),
    Mutant(
        "turn-examines-a-segment",
        "a turn does not look at every byte of a segment",
        "storage/recovered.py",
        "                if log.looks_later and segment.footer is not None:\n",
        "                if False:\n",
    ),
    Mutant(
        "looks-not-carried-out",
        "chores look at the segments that a turn wants to know",
        "storage/flusher.py",
        "        yield from plan_looks(self._log)\n",
        "",
    ),
    Mutant(
        "looks-wait-for-a-flush",
        "a look that a turn waits for begins with the next tick",
        "replica/upkeep.py",
        "if prove or larger or wanted or (look",
        "if prove or larger or (look",
    ),
    Mutant(
        "unreadable-segment-looked-at-for-ever",
        "a segment of which the disk does not say where its entries lie is given up",
        "storage/recovered.py",
        "            log.give_up(segment, error)\n",
        "            pass\n",
    ),
    Mutant(
        "unreadable-page-takes-those-before-it",
        "entries before a page that the disk does not give back are read",
        "storage/recovered.py",
        "                if stop <= start + 1:\n                    raise\n",
        "                raise\n",
    ),
    Mutant(
        "unreadable-page-takes-its-segment",
        "a page that the disk does not give back costs the entries on it",
        "storage/window.py",
        "self._forgiven = UNREADABLE_PAGES_MAX if durable else 0",
        "self._forgiven = 0",
    ),
    Mutant(
        "lost-entry-hides-the-one-before",
        "the records of a lost entry come after those of the entry before it",
        "storage/scan.py",
        "            offset = min(before.base_offset + before.count, OFFSET_MAX)\n",
        "            offset = before.base_offset\n",
    ),
    Mutant(
        "lost-entry-sealed",
        "a segment with a lost entry is not sealed",
        "storage/log.py",
        "if not (one.hollow or one.lost)]\n\n    @property\n    def unindexed",
        "if not one.hollow]\n\n    @property\n    def unindexed",
    ),
    Mutant(
        "damage-outlives-its-entry",
        "what was bad of an entry goes with the entry",
        "storage/cutting.py",
        "    log.forget_damage(first)\n",
        "",
    ),
    Mutant(
        "damage-judged-again",
        "a lost entry stops only who needs it",
        "storage/recovered.py",
        "                log.refuse_hole(segment, start)\n                return read()\n",
        "                if segment.holes:\n"
        "                    raise\n"
        "                return read()\n",
    ),
)
