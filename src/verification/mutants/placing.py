"""Bugs planted in placements and preferences: the members and leaders that the catalog asks for."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["PLACING"]

PLACING = (
    Mutant(
        "earlier-placement-asked-for",
        "no placement undoes a later one (R14)",
        "server/logs/placing.py",
        "    if placement is None or placement.record <= newest.intent:\n",
        "    if placement is None or placement.record == newest.intent:\n",
    ),
    Mutant(
        "placements-lost-with-a-restart",
        "the table on disk has the placements of all logs",
        "server/logs/catalog.py",
        "        fields = _TableFields(self.applied, self.horizon, logs, gone, placements)\n",
        "        fields = _TableFields(self.applied, self.horizon, logs, gone)\n",
    ),
    Mutant(
        "placement-outlives-its-log",
        "a placement goes with its log",
        "server/logs/catalog.py",
        "            self._placements.pop(known.incarnation, None)\n",
        "",
    ),
    Mutant(
        "deleted-log-placed",
        "a placement of a log that was deleted before it has no effect",
        "server/logs/catalog.py",
        "        if incarnation in self._by_incarnation:  # else a deletion came in between\n",
        "        if True:\n",
    ),
    Mutant(
        "stranger-gets-a-priority",
        "only members of a log get a priority",
        "server/logs/catalog.py",
        "        if strange:\n",
        "        if False:\n",
    ),
    Mutant(
        "settings-answered-early",
        "a call that sets priorities is answered once the members have them",
        "server/logs/catalog_service.py",
        "                await self._placed(name, incarnation)\n",
        "",
    ),
    Mutant(
        "failed-placement-given-up",
        "a placement that its leader could not carry out is tried again",
        "server/logs/placing.py",
        "            self._busy.discard(incarnation)\n",
        "            pass\n",
    ),
    Mutant(
        "unsettled-voter-preferred",
        "a leader gives way once the preferred voter has kept up for the settling time",
        "server/logs/placing.py",
        "        return now - since >= self._settle_s and up_s >= UP_TIMES * self._settle_s\n",
        "        return up_s >= UP_TIMES * self._settle_s\n",
    ),
    Mutant(
        "young-node-preferred",
        "a node that came up a moment ago gets no leadership back",
        "server/logs/placing.py",
        "        return now - since >= self._settle_s and up_s >= UP_TIMES * self._settle_s\n",
        "        return now - since >= self._settle_s\n",
    ),
    Mutant(
        "fallen-voter-keeps-its-time",
        "a voter that fell back settles anew",
        "server/logs/placing.py",
        "            self._able.pop(incarnation, None)\n            return False\n",
        "            return False\n",
    ),
    Mutant(
        "lagging-voter-preferred",
        "a leader gives way only to a voter that lacks few entries",
        "raft/transfer.py",
        "            and self._near(peer)\n        ]\n",
        "        ]\n",
    ),
    Mutant(
        "equal-voter-preferred",
        "a leader gives way only to a voter with a higher priority than its own",
        "raft/transfer.py",
        "            if self._raft.priority(peer.node) > own\n            and self._unable",
        "            if self._raft.priority(peer.node) >= own\n            and self._unable",
    ),
    Mutant(
        "up-time-survives-a-cut",
        "a node whose link closed counts as up from its next link on",
        "server/identity/reachability.py",
        "        self._up.pop(peer, None)\n",
        "",
    ),
)
