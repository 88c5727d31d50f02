"""``quorate inspect``: show the contents of a data directory, for people and for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate.cli.documents import identity_document, position_document
from quorate.cli.output import print_json, print_line, printable
from quorate.cli.verify import check_directory
from quorate.storage.blocks import Gap
from quorate.storage.directory import log_name
from quorate.storage.layout import BLOCK_BYTES
from quorate.storage.offline.inspect import inspect_directory, pieces
from quorate.types import EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.cli.documents import Document
    from quorate.storage.blocks import EntryFrame, FlushedBlock
    from quorate.storage.offline.inspect import Inspection, LogView, SegmentView
    from quorate.types import VoteRecord

__all__ = ["inspect"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {int(kind): kind.name for kind in EntryKind}


@click.command()
@click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--log",
    "log",
    metavar="NAME",
    help="Only the log of this name, or of an id that begins with it.",
)
@click.option("--segment", "segment", type=int, metavar="N", help="Show the blocks of segment N.")
@click.option("--entries", is_flag=True, help="With --segment: show the entries of each block.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def inspect(
    directory: Path, log: str | None, segment: int | None, entries: bool, as_json: bool
) -> None:
    """Show the contents of a node's data directory.

    No file is changed and no lock is needed: the node may be running, and entries that it writes
    meanwhile may or may not be shown. A part that cannot be read is named and skipped. Not every
    byte is checked: the command verify does that.
    """
    if entries and segment is None:
        raise click.UsageError("--entries needs --segment: say which one")
    check_directory(directory)
    found = inspect_directory(directory)
    if log is not None:
        found.logs = [one for one in found.logs if _is_called(one, log)]
        if not found.logs:
            raise click.UsageError(
                f"no log in {directory} has the name {log}, or an id that begins with it"
            )
    document = _document(found)
    if segment is not None:
        view, chosen = _choose(found, segment)
        document["segment"] = _segment_document(found, view, chosen, entries=entries)
    if as_json:
        print_json(document)
        return
    lines = _lines(document) if segment is None else _segment_lines(document["segment"])
    for line in lines:
        print_line(line)


def _is_called(view: LogView, log: str) -> bool:
    return view.name == log or log_name(view.incarnation).startswith(log)


def _choose(found: Inspection, number: int) -> tuple[LogView, SegmentView]:
    if len(found.logs) != 1:
        names = ", ".join(one.name or log_name(one.incarnation) for one in found.logs) or "none"
        raise click.UsageError(f"--segment needs --log: the logs here are {names}")
    view = found.logs[0]
    for segment in view.segments:
        if segment.number == number:
            return view, segment
    numbers = [segment.number for segment in view.segments]
    have = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
    raise click.UsageError(f"there is no segment {number}; the log has {have}")


# -- documents ---------------------------------------------------------------------------------


def _document(found: Inspection) -> Document:
    return {
        "path": str(found.path),
        "identity": identity_document(found.identity),
        "process": found.process,
        "logs": [_log_document(one) for one in found.logs],
    }


def _log_document(view: LogView) -> Document:
    """The document of a log: ``mark`` is the mark of a clean stop, null if it is missing or not
    whole."""
    mark = None
    if view.mark is not None:
        last = position_document(view.mark.last)
        mark = {
            "boot": view.mark.boot, "segment": view.mark.number, "end": view.mark.end, "last": last
        }  # fmt: skip
    return {
        "name": view.name,
        "incarnation": log_name(view.incarnation),
        "clean": view.clean,
        "mark": mark,
        "votes": {name: _vote_document(record) for name, record in view.votes.items()},
        "spare_bytes": view.spare_bytes,
        "segments": [_summary_document(one) for one in view.segments],
    }


def _vote_document(record: VoteRecord | None) -> Document | None:
    if record is None:
        return None
    return {
        "number": record.number,
        "term": record.term,
        "vote": record.vote,
        "boot": record.boot,
        "first": record.first,
        "segment": record.segment,
        "unsure": record.unsure,
        "cutting": record.cutting,
        "before": position_document(record.before) if record.cutting else None,
    }


def _summary_document(view: SegmentView) -> Document:
    """The document of a segment: entries first..last and offsets first_offset..end_offset-1, null
    if the segment cannot be read."""
    header = view.header
    return {
        "number": view.number,
        "state": view.state,
        "bytes": view.bytes,
        "used": view.end if header is not None else None,
        "first": view.first if header is not None else None,
        "last": view.last if header is not None else None,
        "first_offset": header.base_offset if header is not None else None,
        "end_offset": view.next_offset if header is not None else None,
        "first_time": view.first_time,
        "last_time": view.last_time,
        "unreadable": [[gap.start, gap.stop] for gap in view.unreadable],
    }


def _segment_document(
    found: Inspection, log: LogView, view: SegmentView, *, entries: bool
) -> Document:
    document = _summary_document(view)
    header, footer = view.header, view.footer
    if header is None:
        return {**document, "header": None, "blocks": [], "footer": None}
    document["header"] = {
        "incarnation": f"{int.from_bytes(header.log.incarnation, 'little'):032x}",
        "storage": header.log.storage.hex(),
        "before": position_document(header.before),
        "base_offset": header.base_offset,
        "append_time": header.append_time,
        "previous_end": header.previous_end,
        "capacity": header.capacity,
    }
    walked = list(pieces(found.path, log.incarnation, header, view.cut))
    blocks = [piece for piece in walked if not isinstance(piece, Gap)]
    document["blocks"] = [_block_document(one, entries=entries) for one in blocks]
    unreadable = [piece for piece in walked if isinstance(piece, Gap) and not piece.blank]
    document["unreadable"] = [[gap.start, gap.stop] for gap in unreadable]
    document["footer"] = footer and {
        "end": footer.end,
        "last": position_document(footer.last),
        "write_number": footer.write_number,
        "end_offset": footer.next_offset,
        "append_time": footer.append_time,
    }
    return document


def _block_document(piece: FlushedBlock, *, entries: bool) -> Document:
    """The document of a block. If ``readable`` is less than ``length``, frames were truncated
    there, or they are damaged."""
    block = piece.block
    document: Document = {
        "position": piece.position,
        "write_number": block.write_number,
        "durable_end": block.durable_end,
        "committed": block.committed,
        "before": position_document(block.before),
        "length": block.length,
        "readable": piece.stop - piece.position - BLOCK_BYTES,
        "entry_count": len(piece.frames),
    }
    if entries:
        document["entries"] = [_entry_document(frame) for frame in piece.frames]
    return document


def _entry_document(frame: EntryFrame) -> Document:
    header = frame.header
    return {
        **position_document(header.position),
        "kind": _KINDS.get(header.kind, str(header.kind)),
        "base_offset": header.base_offset,
        "count": header.count,
        "runs": header.runs,
        "append_time": header.append_time,
        "position": frame.start,
        "bytes": frame.stop - frame.start,
        "whole": frame.whole,
    }


# -- text, from the documents ------------------------------------------------------------------


def _lines(document: Document) -> Iterator[str]:
    path = click.style(printable(document["path"]), bold=True)
    identity = document["identity"]
    if identity is None:
        yield f"{path}: {_bad('the identity cannot be read')}"
    else:
        whose = f"node {identity['node']} of cluster {identity['cluster']}"
        yield f"{path}: {whose}, storage {identity['storage']}"
    if document["process"] is not None:
        yield f"in use by process {document['process']}: what it writes meanwhile may be missing"
    for log in document["logs"]:
        yield from _log_lines(log)


def _log_lines(log: Document) -> Iterator[str]:
    mark = log["mark"]
    boots = [vote["boot"] for vote in log["votes"].values() if vote is not None]
    if mark is not None and boots and mark["boot"] != max(boots):
        stopped = _bad(f"the mark of a clean stop is of boot {mark['boot']}, not of the newest")
    elif mark is not None:
        stopped = f"closed in order at entry {mark['last']['index']}"
    else:
        stopped = _bad("the mark of a clean stop is bad") if log["clean"] else "not closed in order"
    name = f"{log['name']} " if log["name"] is not None else ""
    yield f"log {name}{log['incarnation']}, {stopped}"
    for line in _vote_lines(log["votes"]):
        yield f"  {line}"
    if log["segments"]:
        heads = ["segment", "state", "entries", "offsets", "bytes", "used", "from", "to"]
        for line in _table([heads, *map(_summary_row, log["segments"])]):
            yield f"  {line}"
    for segment in log["segments"]:
        for start, stop in segment["unreadable"]:
            what = f"segment {segment['number']}, bytes {start} to {stop}: no block can be read"
            yield f"  {_bad(what)}"
    if log["spare_bytes"] is not None:
        yield f"  spare segment of {log['spare_bytes']:,} bytes"


def _vote_lines(votes: dict[str, Document | None]) -> Iterator[str]:
    """A line for each copy of the vote record; only one if all copies are the same."""
    if len(votes) > 1 and len({json.dumps(vote) for vote in votes.values()}) == 1:
        votes = {"vote record, both copies": next(iter(votes.values()))}
    for name, vote in votes.items():
        if vote is None:
            yield f"{name}: {_bad('cannot be read')}"
            continue
        voted = f"voted for {vote['vote']}" if vote["vote"] is not None else "no vote"
        cutting = ""
        if vote["cutting"]:
            after = _position(vote["before"])
            cutting = f", being cut off at byte {vote['cutting']} of it, after {after}"
        unsure = ", unsure" if vote["unsure"] else ""
        yield (
            f"{name}: term {vote['term']}, {voted}, boot {vote['boot']}, number {vote['number']}, "
            f"entries from {vote['first']}, segments to {vote['segment']}{cutting}{unsure}"
        )


def _summary_row(segment: Document) -> list[str]:
    if segment["first"] is None:
        return [str(segment["number"]), segment["state"], "", "", f"{segment['bytes']:,}"]
    return [
        str(segment["number"]),
        segment["state"],
        _range(segment["first"], segment["last"]),
        _range(segment["first_offset"], segment["end_offset"] - 1),
        f"{segment['bytes']:,}",
        f"{segment['used']:,}",
        _time(segment["first_time"]),
        _time(segment["last_time"]),
    ]


def _segment_lines(segment: Document) -> Iterator[str]:
    header, footer = segment["header"], segment["footer"]
    if header is None:
        what = _bad("its header is bad, so nothing else can be read")
        yield f"segment {segment['number']}: {what}"
        return
    yield f"segment {segment['number']}, {segment['state']}, {segment['bytes']:,} bytes"
    yield f"  log {header['incarnation']}, storage {header['storage']}"
    yield (
        f"  after {_position(header['before'])}; offsets from {header['base_offset']}; "
        f"made with {header['capacity']:,} bytes; the segment before ended at "
        f"{header['previous_end']:,}"
    )
    blocks = segment["blocks"]
    if blocks and "entries" in blocks[0]:
        for block in blocks:
            yield from _block_lines(block)
    elif blocks:
        heads = ["block at", "write", "entries", "bytes", "readable", "durable", "committed"]
        for line in _table([heads, *map(_block_row, blocks)]):
            yield f"  {line}"
    for start, stop in segment["unreadable"]:
        yield f"  {_bad(f'bytes {start} to {stop}: no block can be read')}"
    if footer is not None:
        yield (
            f"  footer at {footer['end']}: ends at {_position(footer['last'])}, next offset "
            f"{footer['end_offset']}, write {footer['write_number']}"
        )


def _block_row(block: Document) -> list[str]:
    first = block["before"]["index"] + 1
    return [
        str(block["position"]),
        str(block["write_number"]),
        _range(first, first + block["entry_count"] - 1),
        str(block["length"]),
        str(block["readable"]),
        str(block["durable_end"]),
        str(block["committed"]),
    ]


def _block_lines(block: Document) -> Iterator[str]:
    yield (
        f"  block at {block['position']}, write {block['write_number']}, "
        f"{block['length']} bytes; durable below {block['durable_end']}, "
        f"committed up to {block['committed']}"
    )
    if block["entries"]:
        heads = [
            "entry",
            "term",
            "kind",
            "offsets",
            "batches",
            "bytes",
            "at",
            "append time",
            "chain",
        ]
        for line in _table([heads, *map(_entry_row, block["entries"])]):
            yield f"    {line}"
    if block["readable"] < block["length"]:
        missing = block["length"] - block["readable"]
        yield f"    {missing} more bytes: truncated, or they cannot be read"


def _entry_row(entry: Document) -> list[str]:
    return [
        str(entry["index"]),
        str(entry["term"]),
        entry["kind"],
        _range(entry["base_offset"], entry["base_offset"] + entry["count"] - 1),
        str(entry["runs"]),
        str(entry["bytes"]) if entry["whole"] else f"{entry['bytes']} (the body is bad)",
        str(entry["position"]),
        _time(entry["append_time"]),
        entry["chain"],
    ]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns as wide as their widest cell; the first row is the heads."""
    columns = len(rows[0])
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(columns)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))


def _position(position: Document) -> str:
    return f"index {position['index']}, term {position['term']}, chain {position['chain']}"


def _range(first: int, last: int) -> str:
    return f"{first}-{last}" if first <= last else "none"


def _time(microseconds: int | None) -> str:
    if microseconds is None:
        return "none"
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _bad(what: str) -> str:
    return click.style(what, fg="red")
