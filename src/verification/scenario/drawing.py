"""Logs that are drawn instead of grown: for situations that take whole histories to reach.

A row is ``n1: 1 1 4 5x3 term=7 vote=n2``: the terms of its entries, then the contents of its vote
record if they are more than the log shows. Two rows with the same term at the same index mean the
same entry, as in the paper; rows that no history could give are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import Entry, make_entry
from quorate.entry_body import pack_batches
from quorate.storage.flusher import Flush
from quorate.types import ORIGIN, EntryKind, Index, NodeId, Position, Term
from verification.disk.store import Store
from verification.scenario.parser import ScenarioError
from verification.scenario.words import options, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verification.hand import HandCluster

__all__ = ["plant"]

_ROW = re.compile(r"\s*(\w+):(.*)")
_RUN = re.compile(r"(\d+)x(\d+)")


class _Row(NamedTuple):
    node: NodeId
    entries: tuple[Entry, ...]
    term: Term
    vote: NodeId | None


def plant(cluster: HandCluster, lines: Sequence[str]) -> None:
    """Give every drawn node a new disk that holds its row durably, and start it from there."""
    if not lines:
        raise ScenarioError("plant needs rows below it, such as `  n1: 1 1 2`")
    known: dict[tuple[Index, Term], Position] = {}
    for line in lines:
        row = _read_row(line, known)
        if row.node not in cluster.nodes:
            raise ScenarioError(f"unknown node {row.node}")
        cluster.crash(row.node)
        store = Store(row.node)
        store.open()
        store.write(Flush(1, (row.term, row.vote), entries=row.entries))
        cluster.nodes[row.node].store = store
        cluster.restart(row.node)


def _read_row(line: str, known: dict[tuple[Index, Term], Position]) -> _Row:
    found = _ROW.fullmatch(line)
    if found is None:
        raise ScenarioError(f"not a row such as `  n1: 1 1 2`: {line.strip()}")
    words, more = options(found[2].split(), ("term", "vote"))
    entries = _grow(_terms(words))
    for entry in entries:
        first = known.setdefault((entry.index, entry.term), entry.position)
        if first != entry.position:
            raise ScenarioError(
                f"{found[1]}: another row has index {entry.index} of term {entry.term} after "
                f"other entries: one leader wrote both, so this cannot be"
            )
    term = Term(whole(more["term"])) if "term" in more else Term(0)
    term = max(term, entries[-1].term if entries else Term(0))
    vote = NodeId(more["vote"]) if "vote" in more else None
    return _Row(NodeId(found[1]), entries, term, vote)


def _terms(words: Sequence[str]) -> list[int]:
    terms: list[int] = []
    for word in words:
        run = _RUN.fullmatch(word)
        terms += [int(run[1])] * int(run[2]) if run is not None else [whole(word)]
    return terms


def _grow(terms: Sequence[int]) -> tuple[Entry, ...]:
    """Every entry holds one record, whose value is its ``index/term``."""
    entries: list[Entry] = []
    before = ORIGIN
    for offset, term in enumerate(terms):
        body = pack_batches([(f"{offset + 1}/t{term}".encode(), 1)])
        entry = make_entry(
            before, Term(term), EntryKind.DATA, body, base_offset=offset, count=1, runs=1
        )
        entries.append(entry)
        before = entry.position
    return tuple(entries)
