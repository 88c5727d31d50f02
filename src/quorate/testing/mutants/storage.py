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
        "open-trusts-one-vote-copy",
        "the newest whole copy of the vote record counts",
        "storage/recovery.py",
        "whole = [(name, record) for name, record in votes.items() if record is not None]",
        "whole = [(n, record) for n, record in votes.items() if record and n == VOTE_COPIES[0]]",
    ),
    Mutant(
        "open-does-not-rewrite-the-vote",
        "what open found counts once it is durable: a killed process leaves page cache",
        "storage/recovery.py",
        "    yield from plan_vote(vfs, record, order)\n",
        "",
    ),
    Mutant(
        "open-rewrites-the-good-copy-first",
        "the copy that holds the newest vote is written last",
        "storage/recovery.py",
        "order = (*(other for other in VOTE_COPIES if other != name), name)",
        "order = (name, *(other for other in VOTE_COPIES if other != name))",
    ),
    Mutant(
        "open-touches-the-other-copy-first",
        "what was found is made durable before the other copy is touched",
        "storage/recovery.py",
        '            yield f"write {name} again"\n            file.sync()\n',
        '            yield f"write {name} again"\n',
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
        "yield from plan_record(log, segment=target.number, cutting=position)",
        "yield from plan_record(log, segment=target.number)",
    ),
    Mutant(
        "segment-number-not-lowered",
        "the record that says which segments there must be is lowered before one goes",
        "storage/cutting.py",
        "yield from plan_record(log, segment=target.number, cutting=position)",
        "yield from plan_record(log, cutting=position)",
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
    # -- opening -------------------------------------------------------------------------------
    Mutant(
        "body-crc-not-checked",
        "a frame counts if its body is what its header says",
        "storage/scan.py",
        "if body_crc != header.body_crc:",
        "if False:",
    ),
    Mutant(
        "header-crc-not-checked",
        "a header counts if its CRC holds",
        "entry.py",
        "if crc32c(data[start : start + HEADER_BYTES - 4]) != header_crc:",
        "if False:",
    ),
    Mutant(
        "chain-not-checked-at-open",
        "a frame follows the one before by its chain",
        "entry.py",
        "crc32c(frame[start : start + CHAINED_BYTES], before.chain) == position.chain",
        "True",
    ),
    Mutant(
        "tail-cut-below-durable",
        "what is bad below durable_end is damage, not a torn tail",
        "storage/scan.py",
        "torn = [fault for fault in self._faults if fault.start >= found.durable_end]",
        "torn = list(self._faults)",
    ),
    Mutant(
        "cut-at-the-block",
        "a torn tail is cut at the frame, not at its block",
        "storage/survey.py",
        "        seen.cut_at = found.torn.start\n",
        "        seen.cut_at = found.torn.start // PAGE * PAGE\n",
    ),
    Mutant(
        "open-syncs-without-rewriting",
        "after a failed sync only writing again makes durable what can be read",
        "storage/recovery.py",
        "        file.write(start, [file.read(start, min(WINDOW_BYTES, stop - start))])\n",
        "",
    ),
    Mutant(
        "open-without-tail-sync",
        "what open found is synced before the node speaks",
        "storage/recovery.py",
        '    file.sync()\n    yield f"sync {name} again"\n    if unknown',
        "    if unknown",
    ),
    Mutant(
        "newest-header-not-secured",
        "a segment that may be in the page cache only is secured before the record names it",
        "storage/recovery.py",
        "    yield from _secure_newest(vfs, record, seen)\n    yield from _renew_votes"
        "(vfs, log.record, found)\n",
        "    yield from _renew_votes(vfs, log.record, found)\n"
        "    yield from _secure_newest(vfs, record, seen)\n",
    ),
    Mutant(
        "cut-not-carried-out-again",
        "what stands behind a cut that was decided counts for nothing",
        "storage/survey.py",
        "cut = record.cutting if one.number == record.segment else 0",
        "cut = 0",
    ),
    Mutant(
        "cut-segments-come-back",
        "an open removes the segments after a cut that was decided",
        "storage/survey.py",
        "(record.cutting > 0 or newest.header is None)",
        "newest.header is None",
    ),
    Mutant(
        "torn-tail-cut-undecided",
        "what a crash tore is cut off like anything else: the place is in the record first",
        "storage/recovery.py",
        "cutting=seen.cut_at or 0,",
        "cutting=record.cutting,",
    ),
    Mutant(
        "cut-never-ends",
        "once a cut is done, a segment that is shorter than it was made is damage",
        "storage/recovery.py",
        "        yield from end_cut(log)\n",
        "        pass\n",
    ),
    # -- the mark of a clean stop --------------------------------------------------------------
    Mutant(
        "clean-mark-removed-before-the-loss-is-recorded",
        "the mark that proves a loss goes when the vote record says so",
        "storage/recovery.py",
        "    yield from _begin(vfs)\n",
        "    yield from _remove(vfs, [CLEAN])\n",
    ),
    Mutant(
        "mark-of-an-open-under-way-not-read",
        "an open that crashes leaves the mark of the clean stop to the next one",
        "storage/survey.py",
        "    for name in (CLEAN, OPENING):\n",
        "    for name in (CLEAN,):\n",
    ),
    Mutant(
        "mark-left-behind",
        "no mark of a clean stop outlives the open",
        "storage/recovery.py",
        "_remove(vfs, [OPENING, *seen.leftovers])",
        "_remove(vfs, seen.leftovers)",
    ),
    Mutant(
        "bad-end-kept-that-only-the-mark-proves",
        "what only a mark or a cut proves durable is kept up to its first bad byte",
        "storage/scan.py",
        "                self._drop_unproved()\n",
        "                pass\n",
    ),
    # -- pages whose old content comes back ----------------------------------------------------
    Mutant(
        "old-block-outweighs-a-newer-one",
        "a newer block says where the log stood, whatever an old page in front of it holds",
        "storage/scan.py",
        "        self._go_back(block.before)\n",
        "",
    ),
    Mutant(
        "loss-before-a-cut-not-noticed",
        "a cut that was decided proves everything before it",
        "storage/scan.py",
        "            if self._lost_from < proof.end:\n",
        "            if False:\n",
    ),
    # -- what the operating system answers -----------------------------------------------------
    Mutant(
        "short-write-taken-for-whole",
        "a write does all of its work or raises",
        "storage/vfs.py",
        "            if written < size:\n",
        "            if False:\n",
    ),
    Mutant(
        "short-read-taken-for-whole",
        "a read gives fewer bytes only at the end of the file",
        "storage/vfs.py",
        "        if len(data) == length or not data:\n",
        "        if True:\n",
    ),
    Mutant(
        "failed-sync-swallowed",
        "a sync that fails is told to whoever waits for it",
        "storage/vfs.py",
        "        os.fdatasync(self._fd)\n",
        "        try:\n            os.fdatasync(self._fd)\n"
        "        except OSError:\n            pass\n",
    ),
    Mutant(
        "directory-sync-skipped",
        "a name is durable when its directory is synced",
        "storage/vfs.py",
        "        os.fsync(self._fd)\n",
        "        pass\n",
    ),
    # -- opening, step by step -----------------------------------------------------------------
    Mutant(
        "open-cuts-before-the-record-says-so",
        "an open writes down where it cuts and what is lost before it cuts",
        "storage/recovery.py",
        "    yield from _renew_votes(vfs, log.record, found)\n    # Only now",
        "    yield from _cut(seen)\n    yield from _renew_votes(vfs, log.record, found)\n"
        "    # Only now",
    ),
    Mutant(
        "missing-newest-segment-not-noticed",
        "the vote record names the newest segment that must be there",
        "storage/survey.py",
        "    if record.segment > newest:\n",
        "    if False:\n",
    ),
    Mutant(
        "segment-without-a-header-trusted",
        "without its header a newest segment may have lost its end",
        "storage/survey.py",
        "        seen.lost_tail = True\n        seen.durable_end = segment.end\n",
        "        seen.durable_end = segment.end\n",
    ),
    Mutant(
        "short-file-is-no-loss",
        "a newest segment that is shorter than it was made lost its end",
        "storage/survey.py",
        "    seen.lost_tail = seen.lost_tail or proof is None\n",
        "",
    ),
    Mutant(
        "lost-entries-started-from",
        "a log with a hole of which nothing is known is not started from",
        "storage/recovered.py",
        "        refuse_lost(log)\n        archive = SegmentArchive(log)\n",
        "        archive = SegmentArchive(log)\n",
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
        "            # Only the head told how many frames there were: more may have stood here.\n"
        "            self._short = stop\n",
        "            pass\n",
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
