"""Bugs planted where a node judges the disk and the start of another, and what a peer may send."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["IDENTITY"]

IDENTITY = (
    # -- disks ---------------------------------------------------------------------------------
    Mutant(
        "empty-disk-trusted",
        "another disk under the name of a node that is known is refused",
        "server/roster.py",
        "        if bound is None or bound == said.storage:\n",
        "        if bound is None or bound == said.storage or not said.formed:\n",
    ),
    Mutant(
        "known-disk-replaced",
        "a disk that is known is never replaced by what another node says",
        "server/roster.py",
        "            same = mine.storage == seen.storage\n",
        "            same = said.formed or mine.storage == seen.storage\n",
    ),
    Mutant(
        "first-start-without-acceptance",
        "a first start needs to hear from every node that it wrote down the disk of this one",
        "server/roster.py",
        " for peer, known in self._peers() if known.storage is None or not known.confirmed\n",
        " for peer, known in self._peers() if known.storage is None\n",
    ),
    Mutant(
        "first-start-with-a-majority",
        "a first start needs every node",
        "server/roster.py",
        "        return tuple(\n            peer for peer, known",
        "        return () if any(known.confirmed for _, known in self._peers()) else tuple(\n"
        "            peer for peer, known",
    ),
    Mutant(
        "first-start-waits-for-no-node",
        "a first start needs every node: who is met later is not trusted at first sight",
        "server/roster.py",
        "        if self._manifest.formed:\n            return ()\n        return tuple(\n",
        "        return ()\n        return tuple(\n",
    ),
    Mutant(
        "peer-answered-before-it-is-written-down",
        "the disk of a peer is durable before the peer is answered",
        "server/roster.py",
        "        try:\n            self._save()\n        except OSError as error:\n"
        "            self._nodes.update(before)\n",
        "        try:\n            pass\n        except OSError as error:\n"
        "            self._nodes.update(before)\n",
    ),
    Mutant(
        "unwritten-peer-kept",
        "what could not be written down is forgotten: no table may tell it",
        "server/roster.py",
        "            self._nodes.update(before)\n",
        "",
    ),
    Mutant(
        "told-disks-ignored",
        "what one node knows of the disk of another binds all that it tells",
        "server/roster.py",
        "            if mine.storage is None or (same and self._is_news(node, seen)):\n",
        "            if same and self._is_news(node, seen):\n",
    ),
    Mutant(
        "two-disks-in-a-first-start",
        "a first start in which a node has shown two disks does not go on",
        "server/roster.py",
        "            if bound is not None and bound != seen.storage:\n",
        "            if bound is None:\n",
    ),
    Mutant(
        "own-disk-disowned-unnoticed",
        "a node that a peer knows by another disk does not talk to that peer",
        "server/roster.py",
        "        if seen.storage != own.storage:\n",
        "        if False:\n",
    ),
    Mutant(
        "incomplete-table-opened",
        "a node that takes part knows all disks, or its manifest is damaged",
        "server/roster.py",
        "        self._check_complete()\n",
        "",
    ),
    # -- lists of nodes ------------------------------------------------------------------------
    Mutant(
        "lists-not-compared",
        "nodes whose lists have different members refuse each other",
        "wire/handshake.py",
        "    if {*said.members} != {*members}:\n",
        "    if not {*said.members} & {*members}:\n",
    ),
    Mutant(
        "confirmed-to-another-list",
        "what a peer confirmed to a node of another list does not complete a first start",
        "server/manifest.py",
        "member if named == before else member._replace(confirmed=0)\n",
        "member\n",
    ),
    Mutant(
        "met-node-dropped-from-the-list",
        "a node that was met before the first start is complete stays in the list",
        "server/manifest.py",
        "    if met:\n",
        "    if False:\n",
    ),
    Mutant(
        "list-of-a-formed-cluster-replaced",
        "the list of nodes does not change once the first start is complete",
        "server/manifest.py",
        "    if manifest.formed and named != before:\n",
        "    if False:\n",
    ),
    # -- what a peer may send ------------------------------------------------------------------
    Mutant(
        "peers-bounded-by-own-settings",
        "the settings of a node do not bound what its peers have logged",
        "server/node.py",
        "            connection.limits = PEER\n",
        "            most = 2 * self._settings.config.limits.batch_bytes\n"
        "            connection.limits = FrameLimits(PEER.control, (4 << 20) + most)\n",
    ),
    # -- starts --------------------------------------------------------------------------------
    Mutant(
        "start-counted-in-memory",
        "a start is counted durably before the node says a word",
        "server/roster.py",
        "                del starts[start]\n        self._save()\n",
        "                del starts[start]\n",
    ),
    Mutant(
        "next-manifest-not-allocated",
        "a start can be counted on a full disk",
        "server/manifest.py",
        "    _allocate_next(vfs, len(data))\n",
        "",
    ),
    Mutant(
        "earlier-start-accepted",
        "a node at an earlier start than is known is an older copy",
        "server/roster.py",
        "    return False if start > max(starts) else None\n",
        "    return True if start > max(starts) else None\n",
    ),
    Mutant(
        "copy-at-the-same-start-accepted",
        "a start is one process: the same start with another random number is a copy",
        "server/roster.py",
        "        return starts[start] == boot\n",
        "        return True\n",
    ),
    Mutant(
        "starts-not-compared",
        "a node at an earlier start than is known is an older copy",
        "server/roster.py",
        "    if start == 0:\n",
        "    if True:\n",
    ),
    Mutant(
        "older-copy-catches-up",
        "an older copy is refused however often it is started",
        "server/roster.py",
        "            if not _was(history, start, boot):\n",
        "            if said.start <= start and not _was(history, start, boot):\n",
    ),
    Mutant(
        "told-starts-ignored",
        "what one node knows of a start binds all that it tells",
        "server/roster.py",
        "            if mine.storage is None or (same and self._is_news(node, seen)):\n",
        "            if mine.storage is None:\n",
    ),
    Mutant(
        "own-rollback-unnoticed",
        "a node whose directory does not know a start that a peer knows halts",
        "server/roster.py",
        "        if was is False:\n            raise",
        "        if False:\n            raise",
    ),
    Mutant(
        "refused-copy-goes-on",
        "an older copy halts also when its own dial is refused",
        "server/roster.py",
        "        if known is not None and known.storage == self.own.storage:\n",
        "        if False:\n",
    ),
    Mutant(
        "copy-puts-out-the-node",
        "a later start is refused while the process before it has a link",
        "server/roster.py",
        "        if not linked or not self.is_second(peer, said):\n",
        "        if True:\n",
    ),
    Mutant(
        "restart-refused-for-good",
        "a restart is let in once the link of the process before has ended",
        "server/roster.py",
        "        if not linked or not self.is_second(peer, said):\n",
        "        if not self.is_second(peer, said):\n",
    ),
    Mutant(
        "links-of-peers-looked-at-too-seldom",
        "a link of a peer whose other end is gone ends within seconds",
        "server/node.py",
        "            connection.keep_alive(self._settings.network.peer_keepalive_ms)\n",
        "",
    ),
    Mutant(
        "copy-waits-for-its-chance",
        "a process on a copy of the directory of a node that runs halts",
        "server/refusals.py",
        "        elif self._clock() - self._second.setdefault(peer, self._clock()) >= SECOND_S:\n",
        "        elif False:\n",
    ),
    Mutant(
        "refused-node-says-ready",
        "a node that a majority refuses is not ready",
        "server/refusals.py",
        "        return nodes - len(self._texts) < nodes // 2 + 1\n",
        "        return False\n",
    ),
    Mutant(
        "older-copy-not-marked",
        "a directory that was proved to be an older copy is marked for good",
        "server/roster.py",
        "        self._manifest.outdated = proof\n",
        "",
    ),
    Mutant(
        "marked-copy-started",
        "no node starts on a directory that is marked as an older copy",
        "server/roster.py",
        "        if manifest.outdated is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "full-disk-keeps-an-older-copy-up",
        "an older copy halts although its directory cannot be marked",
        "server/roster.py",
        '            return WrongDirectory(f"{halt} (the',
        '            raise Busy(f"{halt} (the',
    ),
    Mutant(
        "forgotten-start-proves-continuity",
        "a start that a node does not remember does not prove that it was that process",
        "server/roster.py",
        "            if not _was(history, start, boot):\n",
        "            if _was(history, start, boot) is False:\n",
    ),
    Mutant(
        "contradicted-peer-kept",
        "links of a node end when another node tells a start that contradicts what it said",
        "server/roster.py",
        "        return seen.start in shown and shown[seen.start] != seen.boot\n",
        "        return False\n",
    ),
    Mutant(
        "told-start-replaces-the-shown-one",
        "a told start is asked for beside the start that a node showed itself",
        "server/roster.py",
        "                    storage=seen.storage, told_start=seen.start, told_boot=seen.boot\n",
        "                    storage=seen.storage, start=seen.start, boot=seen.boot\n",
    ),
    Mutant(
        "heard-tables-forgotten",
        "a node that contradicts what another node told before is refused",
        "server/roster.py",
        "            if _was(history, seen.start, seen.boot) is False:\n",
        "            if False:\n",
    ),
    Mutant(
        "starts-forgotten-too-early",
        "a node remembers its starts as far back as a peer may",
        "server/roster.py",
        "            if start < oldest or (len(starts) > STARTS_MAX and start not in confirmed):\n",
        "            if start < oldest or len(starts) > STARTS_MAX:\n",
    ),
)
