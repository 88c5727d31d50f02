"""Text for scenario files: short lines that a stranger can read.

The text omits values that differ from run to run or do not matter for the rules: no boot ids, no
chains, no clock.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from quorate.commands import Aborted, ChunkStaged, FenceChanged, ProducerOpened, Receipt
from quorate.entry_body import unpack_batches
from quorate.raft.messages import (
    Ack,
    Append,
    Compare,
    Heartbeat,
    Message,
    Mismatch,
    PreVote,
    PreVoteReply,
    ReadIndexReply,
    Transfer,
    Vote,
    VoteReply,
)
from quorate.raft.output import Event, EventKind, MembersChanged, Transferred
from quorate.replica.engine_io import ReadAnswer, Result
from quorate.types import EntryKind, Index, Role
from verification.scenario.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.entry import Entry
    from quorate.raft.messages import Envelope
    from quorate.raft.progress import Progress
    from quorate.replica.engine import Engine
    from quorate.types import Position
    from verification.hand import HandNode

__all__ = [
    "PADDING",
    "Result",
    "answer_line",
    "disks",
    "entries_of",
    "event_text",
    "log_table",
    "message_line",
    "peer_line",
    "records_of",
    "role_name",
    "status_line",
    "terms_of",
]

# Fills a record up to a wanted size; not part of its value.
PADDING = "."
COLUMNS_MAX = 20
COMMITTED_MARK, UNSYNCED_MARK = "*", "?"

EVENTS = {
    EventKind.FOLLOWS: "follows {peer} in term {term}",
    EventKind.PRE_CAMPAIGNS: "pre-campaigns in term {term}",
    EventKind.CAMPAIGNS: "campaigns in term {term}",
    EventKind.LEADS: "leads in term {term}",
    EventKind.STEPS_DOWN: "steps down, now in term {term}: {detail}",
    EventKind.VOTES: "votes for {peer} in term {term}",
    EventKind.REFUSES_VOTE: "refuses {peer} its vote in term {term}",
    EventKind.HINT_STARTED: "suspects {peer}: its link closed",
    EventKind.HINT_CANCELLED: "no longer suspects {peer}: it was heard",
    EventKind.HINT_ENDED_STICKINESS: "gives {peer} up: its link closed, no process listens there",
    EventKind.SPLIT_LEADERS: "sees a second leader {peer} in term {term}",
    EventKind.TRUNCATES: "truncates from index {index}",
    EventKind.PEER_COMPARES: "compares lower with {peer}: below index {index}",
    EventKind.PEER_STREAMS: "agrees with {peer} up to index {index}",
    EventKind.PEER_RESENT: "had no answer of {peer}, compares below index {index}",
    EventKind.PEER_RESTARTED: "sees {peer} restarted",
    EventKind.PEER_THROTTLED: "throttles {peer}, far behind at index {index}",
    EventKind.PEER_STALLED: "finds {peer} stalled at index {index}",
    EventKind.TRANSFERS: "gives the leadership to {peer}",
    EventKind.TRANSFERRED: "gave the leadership to {peer}",
    EventKind.TRANSFER_FAILED: "keeps the leadership: {detail}",
    EventKind.TAKES_OVER: "is to take the leadership over from {peer}",
    EventKind.UNSURE: "is unsure: it may lack entries that are committed",
    EventKind.SURE_AGAIN: "is sure again: it has all entries up to index {index}",
    EventKind.SLOW_DISK: "has too slow a disk, stuck after index {index}",
}


def event_text(event: Event) -> str:
    return EVENTS[event.kind].format(
        peer=event.peer or "nobody", term=event.term, index=event.index, detail=event.detail
    )


def answer_line(label: str, result: Result) -> str:
    """One answer, with its place in the log if it has one."""
    if isinstance(result, Receipt):
        place = f"offset {result.offset}, index {result.index}, term {result.term}"
        return f"{label} -> {place}, on {disks(result)}"
    if isinstance(result, ReadAnswer):
        return f"{label} -> end {result.end_offset}"
    if isinstance(result, ProducerOpened):
        return f"{label} -> epoch {result.epoch}, sequence {result.last_sequence}"
    if isinstance(result, FenceChanged | ChunkStaged | Aborted | MembersChanged):
        return f"{label} -> index {result.index}"
    if isinstance(result, Transferred):
        return f"{label} -> leader {result.leader}"
    return f"{label} -> {result.code}"


def disks(receipt: Receipt) -> str:
    return f"{receipt.synced} disk{'s' if receipt.synced > 1 else ''}"


# -- messages ----------------------------------------------------------------------------------


def message_line(envelope: Envelope) -> str:
    message = envelope.message
    link = f"{envelope.source}->{envelope.target}"
    return f"{link} {kind_of(envelope)} term {message.term}{_content(message)}"


def _content(message: Message) -> str:
    match message:
        case PreVote() | Vote() | Transfer():
            asked = isinstance(message, Vote) and message.transfer
            return f": log ends at {_at(message.last)}" + ", for a transfer" * asked
        case PreVoteReply() | VoteReply():
            return ": granted" if message.granted else ": refused"
        case Compare():
            return f": at {_at(message.prev)}"
        case Append():
            after = f"after {_at(message.prev)}, committed {message.committed}"
            return f": {terms_of(message.entries)} {after}"
        case Ack():
            return f": up to {message.match}"
        case Mismatch():
            if not message.hint_term:
                return f": at {message.prev}, log ends at {message.hint_index - 1}"
            return f": at {message.prev}, has term {message.hint_term} from {message.hint_index} on"
        case Heartbeat():
            return f": committed {_at(message.committed)}"
        case ReadIndexReply():
            return ": no" if message.index is None else f": index {message.index}"
        case _:
            return ""


def _at(position: Position) -> str:
    return f"{position.index}/t{position.term}" if position.index else "the origin"


def terms_of(entries: Sequence[Entry | None]) -> str:
    """The terms in a row, runs of ten and more as ``2x30``."""
    parts: list[str] = []
    for term, run in groupby(entries, lambda entry: str(entry.term) if entry else "-"):
        length = len(list(run))
        parts += [f"{term}x{length}"] if length >= 10 else [term] * length
    return " ".join(parts)


# -- nodes -------------------------------------------------------------------------------------


def role_name(engine: Engine | None) -> str:
    return engine.role.name.lower().replace("_", "-") if engine is not None else "down"


def status_line(node: HandNode) -> str:
    engine = node.engine
    if engine is None:
        halted = f", halted: {type(node.halted).__name__}" if node.halted else ""
        return f"{node.name}: down{halted}"
    raft = engine.core.raft
    known = f"of {raft.leader}" if raft.role is Role.FOLLOWER and raft.leader else ""
    role = " ".join([role_name(engine), *([known] if known else [])])
    return (
        f"{node.name}: {role}, term {raft.term}, vote {raft.vote or 'none'}; "
        f"last {raft.log.last_index}, persisted {raft.persisted}, "
        f"committed {raft.committed}"
    )


def peer_line(peer: Progress) -> str:
    return (
        f"{peer.node}: {peer.state}, match {peer.match}, next {peer.next}, "
        f"{len(peer.inflight)} in flight"
    )


def records_of(engine: Engine) -> list[str]:
    """The values of all applied records, in order of their offsets."""
    values: list[str] = []
    for entry in engine.core.raft.log.entries(Index(1), Index(engine.applied + 1)):
        if entry.kind is EntryKind.DATA:
            values += [batch.decode().rstrip(PADDING) for batch, _ in unpack_batches(entry)]
    return values


# -- logs --------------------------------------------------------------------------------------


def log_table(nodes: Sequence[HandNode]) -> list[str]:
    """A row per node, a column per index; each cell is a term with its marks."""
    rows = [_log_row(node) for node in nodes]
    width = max(len(cells) for _, cells, _ in rows)
    if width > COLUMNS_MAX:
        return [_long_row(node) for node in nodes]
    cell = max([3, *(len(text) + 1 for _, cells, _ in rows for text in cells)])
    name = max(len(label) for label, _, _ in rows) + 2
    header = "".join(f"{index:<{cell}}" for index in range(1, width + 1))
    lines = [f"{'':{name}}{header}".rstrip()]
    for label, cells, role in rows:
        drawn = "".join(f"{text:<{cell}}" for text in cells)
        lines.append(f"{label:{name}}{drawn:{cell * width}}{role}".rstrip())
    used = "".join(text for _, cells, _ in rows for text in cells)
    meanings = {COMMITTED_MARK: "known committed here", UNSYNCED_MARK: "not on this disk"}
    legend = [f"{mark} {meaning}" for mark, meaning in meanings.items() if mark in used]
    return [*lines, f"{'':{name}}{', '.join(legend)}"] if legend else lines


def _log_row(node: HandNode) -> tuple[str, list[str], str]:
    engine = node.engine
    entries = entries_of(node)
    committed = engine.core.raft.committed if engine is not None else 0
    cells = []
    for index, entry in enumerate(entries, start=1):
        text = str(entry.term) if entry is not None else "-"
        durable = node.store.durable.position(Index(index))
        synced = entry is not None and durable == entry.position
        marks = COMMITTED_MARK * (index <= committed) + UNSYNCED_MARK * (not synced)
        cells.append(text + marks)
    role = role_name(engine)
    if engine is not None and engine.role is Role.LEADER:
        role = f"leads in term {engine.core.raft.term}"
    return node.name, cells, "" if role == "follower" else role


def _long_row(node: HandNode) -> str:
    committed = node.engine.core.raft.committed if node.engine is not None else 0
    return f"{node.name}  {terms_of(entries_of(node))}  committed {committed}"


def entries_of(node: HandNode) -> Sequence[Entry | None]:
    """The log of a node, read from its disk while it is down."""
    if node.engine is None:
        return node.store.peek()
    log = node.engine.core.raft.log
    return log.entries(Index(1), Index(log.last_index + 1))
