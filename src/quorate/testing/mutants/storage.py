"""Bugs planted between the log and the disk."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["STORAGE"]

STORAGE = (
    # -- the vote record -----------------------------------------------------------------------
    Mutant(
        "one-vote-file-only",
        "the vote record stands in two files: a crash tears one write, not both",
        "storage/layout.py",
        'VOTE_COPIES = ("vote-a", "vote-b")',
        'VOTE_COPIES = ("vote-a",)',
    ),
    Mutant(
        "vote-written-over-the-one-before",
        "a record goes to the page that does not hold the one before",
        "storage/layout.py",
        "    return number % VOTE_SLOTS * PAGE\n",
        "    return 0\n",
    ),
    Mutant(
        "open-trusts-one-vote-copy",
        "the newest whole record of both copies counts",
        "storage/recovery.py",
        "    found = newest_vote(copies.values())\n    seen",
        "    found = newest_vote([*copies.values()][:1])\n    seen",
    ),
    Mutant(
        "vote-in-the-place-of-another",
        "a record on the page of another is none",
        "storage/layout.py",
        "record if record is None or vote_place(record.number) == place else None",
        "record",
    ),
    Mutant(
        "open-does-not-rewrite-the-vote",
        "what open found counts once it is durable: a killed process leaves page cache",
        "storage/recovery.py",
        "    yield from plan_vote(vfs, record)\n",
        "",
    ),
    Mutant(
        "open-writes-over-the-vote-before",
        "what was found is made durable in both copies before the next record is written",
        "storage/recovery.py",
        "        yield from plan_vote(vfs, found)\n",
        "",
    ),
    Mutant(
        "recovered-vote-forgotten",
        "a vote outlives a restart",
        "storage/recovery.py",
        "        vote=record.vote if term == record.term else None,\n",
        "        vote=None,\n",
    ),
    Mutant(
        "loss-forgotten-at-the-next-open",
        "the vote record remembers a loss until it is made good",
        "storage/recovery.py",
        "unsure=record.unsure or seen.lost_tail,",
        "unsure=seen.lost_tail,",
    ),
    # -- flushes -------------------------------------------------------------------------------
    Mutant(
        "data-before-metadata",
        "a flush writes the vote before the log",
        "storage/flusher.py",
        "            yield from plan_record(self._log, term=term, vote=vote)\n",
        "            rest = Flush(1, None, flush.truncate_from, flush.entries, flush.committed)\n"
        "            yield from self.plan(rest)\n"
        "            yield from plan_record(self._log, term=term, vote=vote)\n"
        "            return\n",
    ),
    Mutant(
        "directory-not-synced",
        "a new name counts once its directory is synced",
        "storage/flusher.py",
        '        yield f"rename {name}"\n        vfs.sync_directory()\n',
        '        yield f"rename {name}"\n',
    ),
    Mutant(
        "rename-before-sync",
        "a file gets its name when its bytes are durable",
        "storage/publishing.py",
        '        file.sync()\n        yield f"sync {aside}"\n    vfs.rename(',
        "    vfs.rename(",
    ),
    Mutant(
        "durable-end-one-block-too-high",
        "a block names what was durable before it was written",
        "storage/flusher.py",
        "block = Block(segment.last, self._write_number, position, committed, length)",
        "block = Block(segment.last, self._write_number, position + PAGE, committed, length)",
    ),
    Mutant(
        "seal-before-commit",
        "a segment is sealed once everything in it is committed",
        "storage/flusher.py",
        "if segment is not None and segment.last.index <= settled:",
        "if segment is not None:",
    ),
    Mutant(
        "seal-what-memory-has-committed",
        "a segment is sealed once what the disk holds is committed, not what memory holds",
        "replica/engine.py",
        "return min(standing.committed, standing.persisted)",
        "return standing.committed",
    ),
    Mutant(
        "truncate-without-sync",
        "a truncation is durable before anything is written over it",
        "storage/cutting.py",
        '    file.sync()\n    yield f"sync {name}"\n    segment.end = pages(position)\n',
        "    segment.end = pages(position)\n",
    ),
    Mutant(
        "room-given-back-at-a-cut",
        "entries that were accepted find their room, whoever fills the disk meanwhile",
        "storage/cutting.py",
        "if dropped.capacity == dropped.header.capacity > spare_bytes:",
        "if dropped.capacity < 0:",
    ),
    Mutant(
        "short-segment-counts-as-whole",
        "room is what was allocated, also after a restart",
        "storage/survey.py",
        "    if one.size < header.capacity:\n",
        "    if one.size < 0:\n",
    ),
    Mutant(
        "cut-without-its-place",
        "a cut is decided, with its place, before anything is cut",
        "storage/cutting.py",
        "nonce=target.header.nonce, cutting=position, before=before",
        "nonce=target.header.nonce",
    ),
    Mutant(
        "segment-number-not-lowered",
        "the record that says which segments there must be is lowered before one goes",
        "storage/cutting.py",
        "log, segment=target.number, nonce=target.header.nonce, cutting=position, before=before",
        "log, cutting=position, before=before",
    ),
    Mutant(
        "cut-over-before-segments-are-gone",
        "the segments after a cut are gone for good before the cut is over",
        "storage/cutting.py",
        '    vfs.sync_directory()\n    yield f"sync directory up to',
        '    yield f"sync directory up to',
    ),
    Mutant(
        "cut-over-without-room",
        "a segment that takes nothing more stays marked until the next one",
        "storage/cutting.py",
        "if log.record.cutting and newest.capacity == newest.header.capacity:",
        "if log.record.cutting:",
    ),
    Mutant(
        "append-taken-without-room",
        "entries are accepted only into allocated space",
        "replica/allowance.py",
        "return None if self.room is None else self.room - self._durability.unwritten_bytes",
        "return None",
    ),
    Mutant(
        "follower-takes-what-does-not-fit",
        "a follower takes as much of an append as finds room",
        "replica/allowance.py",
        "            if free < kept:\n",
        "            if False:\n",
    ),
    # -- reading -------------------------------------------------------------------------------
    Mutant(
        "open-segment-looked-at-whole",
        "where the entries of an open segment lie is for the writer to say",
        "storage/log.py",
        "        if segment.footer is None:\n",
        "        if False:\n",
    ),
    # -- writing -------------------------------------------------------------------------------
    Mutant(
        "block-not-synced",
        "a flush is synced before it counts",
        "storage/flusher.py",
        '        segment.file.sync()\n        yield f"sync block at {position}"\n',
        "",
    ),
    Mutant(
        "write-number-starts-again",
        "write numbers rise over restarts",
        "storage/flusher.py",
        "max((one.write_number for one in log.segments), default=0)\n"
        "        self._write_number = max(newest, log.record.boot << BOOT_SHIFT)\n",
        "0\n        self._write_number = newest\n",
    ),
    Mutant(
        "write-number-of-a-block-that-was-cut-off",
        "what an earlier process wrote and cut off has a lower number",
        "storage/flusher.py",
        "        self._write_number = max(newest, log.record.boot << BOOT_SHIFT)\n",
        "        self._write_number = newest\n",
    ),
    Mutant(
        "block-within-an-entry-that-is-back",
        "an entry in whose bytes a newer block begins was cut off",
        "storage/scan.py",
        "                if self._has_newer_block(start, stop):\n",
        "                if False:\n",
    ),
    Mutant(
        "spare-with-old-bytes-adopted",
        "a spare segment is zeros",
        "storage/flusher.py",
        " and is_zero(file, size)",
        "",
    ),
    Mutant(
        "dropped-segment-becomes-spare-as-it-is",
        "a segment that becomes the spare is erased first",
        "storage/cutting.py",
        "            yield from _erase(dropped, 0)\n",
        "",
    ),
    Mutant(
        "frames-without-a-head-are-all-there-were",
        "behind frames whose block has lost its head more may have stood",
        "storage/scan.py",
        "        # Only the head told how many frames there were: more may have stood here.\n"
        "        self._short = stop\n",
        "",
    ),
    Mutant(
        "cut-ends-before-the-next-block",
        "a cut ends when a block behind it is durable: until then it proves what stands before",
        "storage/flusher.py",
        "            self._unproven = True\n        if flush.entries:\n",
        "            self._unproven = True\n"
        "            yield from end_cut(self._log)\n"
        "        if flush.entries:\n",
    ),
    Mutant(
        "erase-stops-at-the-page",
        "a truncation erases everything up to the end of the blocks",
        "storage/cutting.py",
        "    for start in range(position, segment.end, ERASED_BYTES):\n"
        "        file.write(start, [bytes(min(ERASED_BYTES, segment.end - start))])\n",
        "    for start in range(position, pages(position), ERASED_BYTES):\n"
        "        file.write(start, [bytes(min(ERASED_BYTES, pages(position) - start))])\n",
    ),
)
