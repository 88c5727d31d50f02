"""Bugs planted where an open judges old contents of pages that are back on disk."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["OLD_PAGES"]

OLD_PAGES = (
    # -- blocks and entries that are back --------------------------------------------------------
    Mutant(
        "old-block-outweighs-a-newer-one",
        "a newer block says where the log stood, even behind an old page",
        "storage/segment_scan.py",
        "        self._go_back(last)\n        while",
        "        while",
    ),
    Mutant(
        "newer-block-cut-off-for-an-old-one",
        "a whole block is never cut off because there is no room for the entries that it names",
        "storage/segment_scan.py",
        "            if not self._taken:\n                return False\n",
        "            if self._taken:\n                return False\n",
    ),
    Mutant(
        "entry-that-is-back-kept",
        "an entry is dropped if a newer block names another one in its place",
        "storage/segment_scan.py",
        "                stop = min(stop, rows.starts[row])\n",
        "                pass\n",
    ),
    Mutant(
        "loss-before-a-cut-not-noticed",
        "a cut that was decided proves every entry before it",
        "storage/recovery/inventory.py",
        "return Proof(record.cutting, record.before, newest=True) if cutting else None",
        "return None",
    ),
    Mutant(
        "cut-names-no-entry",
        "a cut that was decided names the entry before it, not only a byte",
        "storage/segment_scan.py",
        "        if proof.last == found.last:\n",
        "        if proof.last == found.last or (proof.newest and self._lost_from >= proof.end):\n",
    ),
    Mutant(
        "loss-behind-an-old-block-not-told",
        "entries in whose place an older block is back are reported as lost",
        "storage/segment_scan.py",
        "        if proof.drops:\n            self._make_room(proof.end, proof.last)\n",
        "",
    ),
    Mutant(
        "block-of-a-bad-head-not-the-newest",
        "of an old page that came back only the entries that it holds are lost",
        "storage/segment_scan.py",
        '        self._fault(position, start, "the head of a block is bad")\n'
        "        self._taken.append(position)\n",
        '        self._fault(position, start, "the head of a block is bad")\n',
    ),
    Mutant(
        "entry-in-front-of-a-loss-kept",
        "in front of a loss only the entries stay that are confirmed",
        "storage/segment_scan.py",
        "            self._lose_unconfirmed(entries)\n",
        "            pass\n",
    ),
    Mutant(
        "claim-confirms-no-entry",
        "an entry that a block claims committed is right, however old the block is",
        "storage/segment_scan.py",
        "max(self._confirmed, min(block.committed, found.last.index))",
        "self._confirmed",
    ),
    Mutant(
        "known-chains-given-up-for-a-scan",
        "the footer of a sealed segment says which of its entries are bad",
        "storage/log.py",
        "        if segment.footer is not None and not known:\n",
        "        if segment.footer is not None:\n",
    ),
    Mutant(
        "contradicting-segments-started-from",
        "segments that contradict each other stop the log",
        "storage/recovery/inventory.py",
        "        if last < first:\n",
        "        if False:\n",
    ),
    Mutant(
        "old-header-in-the-middle-believed",
        "a header without a confirmation is as good as none",
        "storage/recovery/inventory.py",
        "    forget_old_headers(vfs, found, record)\n",
        "",
    ),
    Mutant(
        "unreadable-end-of-a-full-segment-cut-off",
        "an open cuts off only frames that are proved to be no part of the log",
        "storage/recovery/inventory.py",
        "    ended = proof is not None and found.last == proof.last and not found.ends_with_loss\n",
        "    ended = True\n",
    ),
    # -- headers of earlier segments -------------------------------------------------------------
    Mutant(
        "header-confirmed-by-frames-alone",
        "no header counts without a block of its segment: frames may follow any header",
        "storage/recovery/headers.py",
        "    if not found.write_number:\n",
        "    if False:\n",
    ),
    Mutant(
        "header-of-an-empty-segment-confirmed-by-a-block-alone",
        "a segment that was cut to its beginning holds no block, and its header counts",
        "storage/recovery/headers.py",
        "    if proof is not None and proof.end <= PAGE:\n",
        "    if False:\n",
    ),
    Mutant(
        "any-header-counts-for-an-empty-segment",
        "the header of a segment without a block counts only if the next one agrees with it",
        "storage/recovery/headers.py",
        "        return header.before == proof.last\n",
        "        return True\n",
    ),
    Mutant(
        "header-behind-a-sealed-segment-confirmed-without-a-block",
        "a header that follows a sealed segment is confirmed by its first block",
        "storage/recovery/headers.py",
        "    if follows and _readable(lambda: is_written(file, header)):\n",
        "    if follows:\n",
    ),
    Mutant(
        "bytes-behind-a-lost-entry-cut-off",
        "bytes are cut off only behind the entry that the next segment names, if it was read",
        "storage/recovery/inventory.py",
        "found.last == proof.last and not found.ends_with_loss\n",
        "found.last == proof.last\n",
    ),
    Mutant(
        "begun-header-counts-against-a-longer-segment",
        "a begun header counts only if the newest segment ends no later than it says",
        "storage/recovery/headers.py",
        " and found.end <= proof.end\n",
        "\n",
    ),
    Mutant(
        "begun-header-with-the-same-entry-contradicts",
        "the header of a begun segment that names the last entry makes no node unsure",
        "storage/recovery/headers.py",
        "    other = found.last != proof.last  #",
        "    other = True  #",
    ),
    Mutant(
        "header-of-another-log-stops-the-log",
        "a header of another log counts as bad if another header names this one",
        "storage/recovery/inventory.py",
        "    if strange and not any(one.log == identity for one in found):\n",
        "    if strange:\n",
    ),
    Mutant(
        "header-of-another-log-believed",
        "a header of another log describes no segment of this one",
        "storage/recovery/headers.py",
        "header.belongs(number, record) and header.log == identity\n",
        "header.belongs(number, record)\n",
    ),
    Mutant(
        "directory-of-another-log-taken",
        "a directory of which all whole headers name another log is refused",
        "storage/recovery/inventory.py",
        "    if strange and not any(one.log == identity for one in found):\n",
        "    if strange and not found:\n",
    ),
    Mutant(
        "begun-header-that-contradicts-forgotten",
        "if the header of a begun segment contradicts the last block, the node is unsure",
        "storage/recovery/headers.py",
        "    return None, other and (found.unproven or found.torn is not None)\n",
        "    return None, False\n",
    ),
    Mutant(
        "verify-passes-over-a-header-that-contradicts",
        "verify warns if the header of a begun segment contradicts the segment before",
        "storage/offline/verify_log.py",
        "            if doubt:\n",
        "            if doubt and self._begun.number == 0:\n",
    ),
    Mutant(
        "begun-header-drops-entries",
        "a begun header is no reason to drop entries that are there",
        "storage/segment_scan.py",
        "        if proof.drops:\n",
        "        if True:\n",
    ),
    # -- pages of another log --------------------------------------------------------------------
    Mutant(
        "pages-of-another-log-believed",
        "a vote record, a mark and a checkpoint are those of one log on one disk",
        "storage/layout.py",
        "        return crc32c(self.incarnation + self.storage)\n",
        "        return 0\n",
    ),
    Mutant(
        "pages-of-another-node-believed",
        "a vote record, a mark and a checkpoint are those of one disk",
        "storage/layout.py",
        "        return crc32c(self.incarnation + self.storage)\n",
        "        return crc32c(self.incarnation)\n",
    ),
    Mutant(
        "pages-of-another-log-of-the-node-believed",
        "a vote record, a mark and a checkpoint are those of one log",
        "storage/layout.py",
        "        return crc32c(self.incarnation + self.storage)\n",
        "        return crc32c(self.storage)\n",
    ),
    Mutant(
        "log-with-strange-votes-taken-for-an-unused-one",
        "a log that the manifest does not know was used if its second vote page was written",
        "server/manifest.py",
        "            if any(copy[vote_place(1) :]):\n",
        "            if len(copy) < vote_place(1):\n",
    ),
    # -- entries that nothing confirms -----------------------------------------------------------
    Mutant(
        "dropped-loss-confirms-entries",
        "entries are as unconfirmed as before once the loss behind them is dropped",
        "storage/segment_scan.py",
        "            self._confirmed = Index(self._unconfirmed.pop().first - 1)\n",
        "            self._unconfirmed.pop()\n",
    ),
    Mutant(
        "entries-in-the-place-of-dropped-ones-confirmed",
        "what confirmed dropped entries does not confirm those that are read in their place",
        "storage/segment_scan.py",
        "        self._confirmed = min(self._confirmed, max(rows.last, self._before.index))\n",
        "",
    ),
    Mutant(
        "later-blocks-believed-with-an-old-record",
        "a log with a block of a later boot than its vote record is not started from",
        "storage/recovery/open.py",
        "        if segment.write_number >> BOOT_SHIFT > boot:\n",
        "        if False:\n",
    ),
    Mutant(
        "later-blocks-not-named-by-verify",
        "verify names a block of a later boot than the vote record",
        "storage/offline/verify_log.py",
        "        if report.record is not None and contents.write_number >> BOOT_SHIFT > "
        "report.record.boot:\n",
        "        if False:\n",
    ),
)
