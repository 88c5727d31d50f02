"""Bugs planted where a log is opened: what is found there, and taken for torn or damaged."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["OPENING"]

OPENING = (
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
        '    file.sync()\n    yield f"sync {name} again"\n',
        "",
    ),
    Mutant(
        "record-renewed-before-the-end-is-secured",
        "what an open found is durable before the record says of a cut that it is",
        "storage/recovery.py",
        "    yield from _secure_newest(seen)\n    yield from _renew_votes"
        "(vfs, log.record, found)\n",
        "    yield from _renew_votes(vfs, log.record, found)\n"
        "    yield from _secure_newest(seen)\n",
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
        "(record.number > 0 or newest.header is None)",
        "newest.header is None",
    ),
    Mutant(
        "segment-believed-before-the-record-names-it",
        "the header of a segment that the record does not name limits no other segment",
        "storage/survey.py",
        "(record.number > 0 or newest.header is None)",
        "(record.cutting > 0 or newest.header is None)",
    ),
    Mutant(
        "entries-without-a-vote-record-removed",
        "a segment with entries is removed only if the record says that it is cut off",
        "storage/survey.py",
        "        if not record.cutting and begun.written:\n",
        "        if begun.number == 0:\n",
    ),
    Mutant(
        "header-of-a-begun-segment-proves-nothing",
        "the header of a segment that was begun proves the last block before it",
        "storage/survey.py",
        "            found[-1].begun = begun.header\n",
        "            pass\n",
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
        "        self._go_back(last)\n        while",
        "        while",
    ),
    Mutant(
        "newer-block-cut-off-for-an-old-one",
        "a whole block is never cut off because there is no room for what it names",
        "storage/scan.py",
        "            if not self._taken:\n                return False\n",
        "            if self._taken:\n                return False\n",
    ),
    Mutant(
        "entry-that-is-back-kept",
        "an entry in whose place something newer names another one is dropped",
        "storage/scan.py",
        "                stop = min(stop, rows.starts[row])\n",
        "                pass\n",
    ),
    Mutant(
        "loss-before-a-cut-not-noticed",
        "a cut that was decided proves everything before it",
        "storage/survey.py",
        "return Proof(record.cutting, record.before, newest=True) if cutting else None",
        "return None",
    ),
    Mutant(
        "cut-names-no-entry",
        "a cut that was decided names the entry before it, not only a byte",
        "storage/scan.py",
        "        if proof.last == found.last:\n",
        "        if proof.last == found.last or (proof.newest and self._lost_from >= proof.end):\n",
    ),
    Mutant(
        "loss-behind-an-old-block-not-told",
        "entries in whose place an older block is back are reported as lost",
        "storage/scan.py",
        "            self._make_room(proof.end, proof.last)\n",
        "",
    ),
    Mutant(
        "block-of-a-bad-head-not-the-newest",
        "of an old page that came back only the entries that it holds are lost",
        "storage/scan.py",
        '        self._fault(position, start, "the head of a block is bad")\n'
        "        self._taken.append(position)\n",
        '        self._fault(position, start, "the head of a block is bad")\n',
    ),
    # -- what is missing or not durable ----------------------------------------------------------
    Mutant(
        "index-file-before-its-footer-is-durable",
        "the footer of a segment is durable before its index file is made",
        "storage/index.py",
        "    if segment.synced:\n",
        "    if True:\n",
    ),
    Mutant(
        "log-that-voted-taken-for-a-new-one",
        "a log without a vote record is new only if its first open did not come to its end",
        "storage/recovery.py",
        '    if never_opened(vfs.names(), copies.get(VOTE_COPIES[0], b"")):\n',
        "    segments = [name for name in vfs.names() if name.endswith('.segment')]\n"
        "    if len(copies) < len(VOTE_COPIES) and not segments:\n",
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
        "old-header-of-the-newest-segment-believed",
        "the vote record names what was drawn for the newest segment",
        "storage/layout.py",
        " or record.nonce == self.nonce\n",
        " or record.nonce != -1\n",
    ),
    Mutant(
        "frames-without-a-header-only-in-a-row",
        "without a segment's header frames are believed wherever they continue the chain",
        "storage/scan.py",
        "tried = position == found.end or self._nonce is None",
        "tried = position == found.end",
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
        "        refuse_lost(log, committed)\n",
        "",
    ),
    Mutant(
        "damage-in-a-flush-ends-the-node",
        "an entry that the disk spoiled stops its own log, also if a truncation finds it",
        "storage/cutting.py",
        "    except Corrupt as error:\n"
        '        raise Damaged(f"{error}; {UNREADABLE_ADVICE}") from error\n',
        "",
    ),
    Mutant(
        "unreadable-copy-ends-the-log",
        "a copy of the vote record or a mark that the disk does not give back counts as bad",
        "storage/steps.py",
        '        if error.errno not in UNREADABLE:\n            raise\n        return b""\n',
        "        raise\n",
    ),
    Mutant(
        "unreadable-spare-ends-the-node",
        "a spare segment that the disk does not give back is not used",
        "storage/window.py",
        "        if error.errno not in UNREADABLE:\n            raise\n",
        "        raise\n",
    ),
    Mutant(
        "unreadable-log-ends-the-node",
        "a log that the disk does not give back is down, and no other",
        "storage/recovery.py",
        "        if error.errno not in UNREADABLE:\n            raise\n",
        "        raise\n",
    ),
    Mutant(
        "unreadable-checkpoint-ends-a-log",
        "a checkpoint that the disk does not give back counts for nothing",
        "storage/recovered.py",
        "        if error.errno in PASSING:\n            raise\n",
        "        raise\n",
    ),
    Mutant(
        "unreadable-checkpoint-not-told",
        "a checkpoint that the disk does not give back is reported",
        "storage/recovered.py",
        "        log.damage.append(Damage(CHECKPOINT, 0, 0, Index(1), Index(0), what))\n",
        "",
    ),
    Mutant(
        "checkpoint-given-up-for-a-moment",
        "a checkpoint that cannot be read for now is not taken for a bad one",
        "storage/recovered.py",
        "        if error.errno in PASSING:\n            raise\n",
        "",
    ),
    Mutant(
        "unreadable-index-hides-entries",
        "an index file that the disk does not give back costs only the time to look",
        "storage/index.py",
        "        if error.errno in PASSING:\n            raise\n",
        "        if not isinstance(error, FileNotFoundError):\n            raise\n",
    ),
    Mutant(
        "index-given-up-for-a-moment",
        "an index file that cannot be opened for now is not taken for a bad one",
        "storage/index.py",
        "        if error.errno in PASSING:\n            raise\n",
        "",
    ),
)
