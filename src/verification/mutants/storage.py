"""Bugs planted between the log and the disk."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

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
        "storage/recovery/open.py",
        "    found = newest_vote(copies.values(), identity)\n    mark",
        "    found = newest_vote([*copies.values()][:1], identity)\n    mark",
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
        "entries that open found count once they are durable: a killed process leaves page cache",
        "storage/recovery/open.py",
        "    yield from plan_vote(vfs, identity, log.record)\n",
        "",
    ),
    Mutant(
        "open-writes-over-the-vote-before",
        "the record that was found is made durable in both copies before the next one is written",
        "storage/recovery/open.py",
        "        yield from plan_vote(vfs, identity, found, lacking)\n",
        "        pass\n",
    ),
    Mutant(
        "recovered-vote-forgotten",
        "a vote outlives a restart",
        "storage/recovery/open.py",
        "        vote=record.vote if term == record.term else None,\n",
        "        vote=None,\n",
    ),
    Mutant(
        "loss-forgotten-at-the-next-open",
        "the vote record remembers a loss until it is made good",
        "storage/recovery/open.py",
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
        "a block names the last entry that was durable before it was written",
        "storage/flusher.py",
        "Block(segment.last, self._write_number, position, committed, length, membership)",
        "Block(segment.last, self._write_number, position + PAGE, committed, length, membership)",
    ),
    Mutant(
        "seal-before-commit",
        "a segment is sealed once every entry in it is committed",
        "storage/seal.py",
        "if segment is None or segment.last.index > settled:",
        "if segment is None:",
    ),
    Mutant(
        "seal-what-memory-has-committed",
        "a segment is sealed once the entries on disk are committed, not those in memory",
        "replica/engine.py",
        "return min(raft.committed, raft.persisted)",
        "return raft.committed",
    ),
    Mutant(
        "truncate-without-sync",
        "a truncation is durable before an entry is written over it",
        "storage/spare.py",
        '        yield f"erase {name} from {place}"\n    file.sync()\n    yield f"sync {name}"\n',
        '        yield f"erase {name} from {place}"\n',
    ),
    Mutant(
        "room-given-back-at-a-cut",
        "entries that were accepted find their room, even if other programs fill the disk",
        "storage/truncate.py",
        "if dropped.capacity == dropped.header.capacity > spare.bytes:",
        "if dropped.capacity < 0:",
    ),
    Mutant(
        "short-segment-counts-as-whole",
        "room means allocated bytes, also after a restart",
        "storage/recovery/inventory.py",
        "    if one.size < header.capacity:\n",
        "    if one.size < 0:\n",
    ),
    Mutant(
        "cut-without-its-place",
        "a cut is decided, with its place, before an entry is cut",
        "storage/truncate.py",
        "nonce=target.header.nonce, cutting=position, before=before",
        "nonce=target.header.nonce",
    ),
    Mutant(
        "segment-number-not-lowered",
        "the record that says which segments there must be is lowered before one goes",
        "storage/truncate.py",
        "log, segment=target.number, nonce=target.header.nonce, cutting=position, before=before",
        "log, cutting=position, before=before",
    ),
    Mutant(
        "cut-over-before-segments-are-gone",
        "the segments after a cut are gone for good before the cut is over",
        "storage/truncate.py",
        '    vfs.sync_directory()\n    yield f"sync directory up to',
        '    yield f"sync directory up to',
    ),
    Mutant(
        "cut-over-without-room",
        "a segment that takes no more blocks stays marked until the next one",
        "storage/truncate.py",
        "    full = newest is None or newest.capacity == newest.header.capacity\n",
        "    full = True\n",
    ),
    Mutant(
        "append-taken-without-room",
        "entries are accepted only into allocated space",
        "replica/disk_space.py",
        "return None if self.room is None else self.room - self._durability.unwritten_bytes",
        "return None",
    ),
    Mutant(
        "follower-takes-what-does-not-fit",
        "a follower takes as much of an append as finds room",
        "replica/disk_space.py",
        "            if free < kept:\n",
        "            if False:\n",
    ),
    # -- reading -------------------------------------------------------------------------------
    Mutant(
        "open-segment-looked-at-whole",
        "where the entries of an open segment lie is for the writer to say",
        "storage/log.py",
        "        if segment.footer is not None and not known:\n",
        "        if segment.footer is None:\n",
    ),
    Mutant(
        "spare-left-behind-made-again",
        "a spare that an allocation left behind is taken",
        "storage/spare.py",
        "        there = SPARE in vfs.names()\n",
        "        there = bool(self.bytes)\n",
    ),
    # -- pages and folders that the disk does not give back --------------------------------------
    Mutant(
        "refused-header-ends-the-log",
        "a header or footer that the disk does not give back counts as bad",
        "storage/recovery/headers.py",
        "        if error.errno not in UNREADABLE:\n            raise\n        return None\n",
        "        raise\n",
    ),
    Mutant(
        "refused-end-is-no-loss",
        "a page in which the last block may have stood is a loss if the disk does not give it back",
        "storage/recovery/inventory.py",
        "    if proof is None and (found.torn is not None or refused[0] <= found.end):\n",
        "    if False:\n",
    ),
    Mutant(
        "refused-unused-page-is-a-loss",
        "behind the zeros of a page that can be read there is no block",
        "storage/recovery/inventory.py",
        "    if proof is None and (found.torn is not None or refused[0] <= found.end):\n",
        "    if True:\n",
    ),
    Mutant(
        "folder-without-a-listing-ends-the-node",
        "a folder that cannot be listed stops its log alone",
        "storage/recovery/open.py",
        "    with _stopping_this_log():\n        check_boot(vfs, identity, least_boot)\n",
        "    check_boot(vfs, identity, least_boot)\n    with _stopping_this_log():\n",
    ),
    # -- records, footers and spares that an open or a chore finds -----------------------------
    Mutant(
        "header-page-cut",
        "a header is never cut, even if the file ends within its page",
        "storage/recovery/inventory.py",
        "    return max(PAGE, min(ends))\n",
        "    return min(ends)\n",
    ),
    Mutant(
        "record-that-cuts-a-header-written",
        "no record is written that an open would not read",
        "storage/layout.py",
        '    check(not 0 < record.cutting < PAGE, "a header is never cut")\n',
        "",
    ),
    Mutant(
        "earlier-boot-wins-a-tie",
        "of two records with one number that of the later boot counts",
        "storage/layout.py",
        "key=lambda record: (record.number, record.boot)",
        "key=lambda record: record.number",
    ),
    Mutant(
        "only-whole-copy-written-first",
        "a copy that lacks the newest vote record is written before the one that has it",
        "storage/recovery/open.py",
        "plan_vote(vfs, identity, found, lacking)",
        "plan_vote(vfs, identity, found)",
    ),
    Mutant(
        "footer-of-a-failed-sync-only-synced",
        "a footer that may be in the page cache only is written again",
        "storage/index.py",
        "file.write(footer.end, [footer.encode(segment.number, segment.header.nonce)])",
        "pass",
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
        "a block that an earlier process wrote and cut off has a lower number",
        "storage/flusher.py",
        "        self._write_number = max(newest, log.record.boot << BOOT_SHIFT)\n",
        "        self._write_number = newest\n",
    ),
    Mutant(
        "block-within-an-entry-that-is-back",
        "an entry in whose bytes a newer block begins was cut off",
        "storage/segment_scan.py",
        "                if self._has_newer_block(start, stop):\n",
        "                if False:\n",
    ),
    Mutant(
        "spare-with-old-bytes-adopted",
        "a spare segment is zeros",
        "storage/spare.py",
        " and is_zero(file, 0, size)",
        "",
    ),
    Mutant(
        "dropped-segment-becomes-spare-as-it-is",
        "a segment that becomes the spare is erased first",
        "storage/truncate.py",
        "            yield from _erase(dropped, 0)\n",
        "",
    ),
    Mutant(
        "frames-without-a-head-are-all-there-were",
        "behind frames whose block has lost its head more may have stood",
        "storage/segment_scan.py",
        "        # Only the head told how many frames there were: more may have stood here.\n"
        "        self._short = stop\n",
        "",
    ),
    Mutant(
        "cut-ends-before-the-next-block",
        "a cut ends when a block behind it is durable: until then it proves the entries before it",
        "storage/flusher.py",
        "            self._unproven = True\n        if flush.entries:\n",
        "            self._unproven = True\n"
        "            yield from end_cut(self._log)\n"
        "        if flush.entries:\n",
    ),
    Mutant(
        "erase-stops-at-the-page",
        "a truncation erases every byte up to the end of the blocks",
        "storage/truncate.py",
        "segment_name(segment.number), position, segment.end)",
        "segment_name(segment.number), position, pages(position))",
    ),
    Mutant(
        "segment-cut-without-its-header",
        "a segment whose header cannot be read is not cut",
        "storage/recovery/inventory.py",
        "        if one.header is not None:\n            # Without",
        "        if one:\n            # Without",
    ),
    Mutant(
        "refused-page-counted-again-and-again",
        "a page that the disk refuses counts once, however often it is read",
        "storage/buffered.py",
        "if single and start - start % PAGE in self.refused:",
        "if single and start < 0:",
    ),
    Mutant(
        "hole-makes-a-header-old",
        "a header is confirmed by the end that the next one names, even if earlier ones are lost",
        "storage/recovery/headers.py",
        "and not found.ends_with_loss",
        "and not found.rows.holes",
    ),
    Mutant(
        "refused-unused-page-stops-a-log",
        "an unused page that the disk refuses stops no log",
        "storage/recovery/inventory.py",
        "not is_zero(file, segment.end, segment.end + PAGE)",
        "any(file.read(segment.end, PAGE))",
    ),
    # -- folders that verify calls whole -------------------------------------------------------
    Mutant(
        "verify-takes-an-older-copy",
        "verify blames a folder whose vote record is of a boot before that of the manifest",
        "storage/offline/verify.py",
        "        if boot < life.boot:\n",
        "        if boot < 0:\n",
    ),
    Mutant(
        "verify-takes-an-empty-folder",
        "verify blames the folder of a log that was made and has no vote record",
        "storage/offline/verify.py",
        "    elif not any((place / copy).exists() for copy in VOTE_COPIES):\n",
        "    elif not place.exists():\n",
    ),
    Mutant(
        "verify-ends-at-an-unreadable-folder",
        "verify blames a folder that the disk does not give back and goes on",
        "storage/offline/verify.py",
        "            except OSError as error:\n",
        "            except FileNotFoundError as error:\n",
    ),
    # -- a cut whose own segment is lost -------------------------------------------------------
    Mutant(
        "cut-forgotten-with-its-segment",
        "a cut whose segment is lost stays in the record until what is behind it is gone",
        "storage/recovery/inventory.py",
        "        if record.cutting and seen.cut_at is None:\n",
        "        if False:\n",
    ),
    Mutant(
        "whole-bytes-cut-behind-a-bad-header",
        "a cut whose segment is lost drops no byte of a segment without its header",
        "storage/recovery/inventory.py",
        "    headless = newest.header.capacity == PAGE\n",
        "    headless = False\n",
    ),
)
