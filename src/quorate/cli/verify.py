"""``quorate verify``: check that every byte of a data directory is as it was written."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate.cli.documents import damage_document, identity_document, position_document
from quorate.cli.output import count, print_json, print_line, printable, span
from quorate.errors import Corrupt, WrongDirectory
from quorate.storage.directory import IDENTITY, LOGS, log_name
from quorate.storage.offline.verify import bytes_to_read
from quorate.storage.offline.verify import verify as verify_directories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.cli.documents import Document
    from quorate.storage.damage import Damage
    from quorate.storage.offline.compare import Agreement
    from quorate.storage.offline.report import LogReport
    from quorate.storage.offline.verify import DirectoryReport, Report

__all__ = ["check_directory", "verify"]

# Fewer bytes are checked before a user could read a progress bar.
PROGRESS_BYTES = 64 << 20


@click.command()
@click.argument(
    "directories",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def verify(directories: tuple[Path, ...], as_json: bool) -> None:
    """Check the data directories of stopped nodes, byte by byte.

    Each DIR is a node's data directory. No file in it is changed. The command fails if a byte of
    any file is not as it was written. After a crash, damage to data that no file proves to have
    been durable is only a warning.

    With several directories, their logs are also compared, up to the last entry that each of them
    proves committed.
    """
    for directory in directories:
        check_directory(directory)
    with _progress(bytes_to_read(directories)) as progress:
        report = verify_directories(directories, progress)
    if as_json:
        print_json(_document(report))
    else:
        for line in _lines(report):
            print_line(line)
    if not report.whole:
        raise Corrupt(_summary(report))


def check_directory(path: Path) -> None:
    """Raise WrongDirectory unless ``path`` is a data directory.

    The error names the data directories inside, as ``quorate dev`` makes them.
    """
    if _is_data(path):
        return
    inside = sorted(one.name for one in path.iterdir() if one.is_dir() and _is_data(one))
    known = f"name {', '.join(inside)} in it" if inside else "name one that a node made"
    raise WrongDirectory(f"{path} is not a data directory; {known}")


def _is_data(path: Path) -> bool:
    return (path / IDENTITY).exists() or (path / LOGS).is_dir()


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar for a user at a terminal who has to wait."""
    if not sys.stderr.isatty() or total < PROGRESS_BYTES:
        yield lambda _: None
        return
    with click.progressbar(
        length=total, label="verifying", file=sys.stderr, update_min_steps=total // 100
    ) as bar:
        yield bar.update
        bar.finish()
        bar.render_progress()


# -- text --------------------------------------------------------------------------------------


def _lines(report: Report) -> Iterator[str]:
    for directory in report.directories:
        yield from _directory_lines(directory)
    for one in report.agreements:
        yield from _agreement_lines(one, report.name_of(one.incarnation))


def _directory_lines(directory: DirectoryReport) -> Iterator[str]:
    identity = directory.identity
    whose = f"{identity}, storage {identity.storage.hex()}" if identity else "identity unknown"
    yield f"{click.style(printable(str(directory.path)), bold=True)}: {whose}"
    yield from _damage_lines("  ", directory.damage, [])
    for log in directory.logs:
        yield from _log_lines(log, directory.name_of(log.incarnation))
    warnings = sum(len(log.warnings) for log in directory.logs)
    if not directory.whole:
        yield "  " + click.style("damaged", fg="red", bold=True)
    elif warnings:
        yield "  " + click.style(f"whole, with {count(warnings, 'warning')}", fg="yellow")
    else:
        yield "  " + click.style("whole", fg="green")


def _log_lines(log: LogReport, name: str | None) -> Iterator[str]:
    stopped = "closed in order" if log.clean else "not closed in order"
    yield f"  log {_named(name, log.incarnation)}, {stopped}"
    records = log.next_offset - log.first_offset
    yield (
        f"    {count(log.segments, 'segment')}, {log.sealed} sealed; "
        f"{count(log.entries, 'entry', 'entries')}{_range(log.before.index + 1, log.last.index)}; "
        f"{count(records, 'record')}"
        f"{_range(log.first_offset, log.next_offset - 1, 'offset')}; {log.bytes} bytes"
    )
    index, term, chain = log.last
    ends = f"ends at index {index}, term {term}, chain {chain:08x}"
    yield f"    {ends}; committed up to {log.committed}"
    yield from _damage_lines("    ", log.damage, log.warnings)


def _damage_lines(indent: str, damage: list[Damage], warnings: list[Damage]) -> Iterator[str]:
    for one in damage:
        yield f"{indent}{click.style('damage', fg='red')}: {printable(str(one))}"
    for one in warnings:
        yield f"{indent}{click.style('warning', fg='yellow')}: {printable(str(one))}"


def _named(name: str | None, incarnation: int) -> str:
    """The name of a log, as the manifest has it, and its incarnation, which names its directory."""
    return log_name(incarnation) if name is None else f"{name} {log_name(incarnation)}"


def _agreement_lines(one: Agreement, name: str | None) -> Iterator[str]:
    log = f"log {_named(name, one.incarnation)}"
    if not one.positions:
        copies = count(len(one.paths), "copy", "copies")
        yield f"{log}: {copies}, {click.style('the same', fg='green')} up to entry {one.through}"
        return
    differ = click.style("copies differ", fg="red", bold=True)
    yield f"{log}: {differ}, first at entry {one.positions[0].index}"
    for path, position in zip(one.paths, one.positions, strict=True):
        stands = f"term {position.term}, chain {position.chain:08x}"
        yield f"  {printable(str(path))}: {stands}"


def _range(first: int, last: int, one: str = "") -> str:
    return f" ({span(first, last, one)})" if first <= last else ""


def _summary(report: Report) -> str:
    """The message of the error: how many places are damaged, and how many logs differ."""
    parts = []
    damaged = [str(one.path) for one in report.directories if not one.whole]
    if damaged:
        places = sum(
            len(one.damage) + sum(len(log.damage) for log in one.logs) for one in report.directories
        )
        parts.append(f"{count(places, 'damaged place')} in {', '.join(damaged)}")
    different = sum(bool(one.positions) for one in report.agreements)
    if different:
        parts.append(f"copies of {count(different, 'log')} differ")
    return "; ".join(parts)


# -- JSON --------------------------------------------------------------------------------------


def _document(report: Report) -> Document:
    return {
        "whole": report.whole,
        "directories": [_directory_document(one) for one in report.directories],
        "agreements": [
            _agreement_document(one, report.name_of(one.incarnation)) for one in report.agreements
        ],
    }


def _directory_document(directory: DirectoryReport) -> Document:
    return {
        "path": str(directory.path),
        "whole": directory.whole,
        "identity": identity_document(directory.identity),
        "logs": [_log_document(log, directory.name_of(log.incarnation)) for log in directory.logs],
        "damage": [damage_document(one) for one in directory.damage],
    }


def _log_document(log: LogReport, name: str | None) -> Document:
    """The document of a log: ``name`` is null if no manifest has it."""
    return {
        "name": name,
        "incarnation": log_name(log.incarnation),
        "clean": log.clean,
        "segments": log.segments,
        "sealed": log.sealed,
        "entries": log.entries,
        "records": log.next_offset - log.first_offset,
        "bytes": log.bytes,
        "first": log.before.index + 1,
        "last": position_document(log.last),
        "first_offset": log.first_offset,
        "end_offset": log.next_offset,
        "committed": log.committed,
        "damage": [damage_document(one) for one in log.damage],
        "warnings": [damage_document(one) for one in log.warnings],
    }


def _agreement_document(one: Agreement, name: str | None) -> Document:
    """The document of a comparison: ``difference`` is null if the copies are the same."""
    difference = None
    if one.positions:
        difference = [
            {"path": str(path), **position_document(position)}
            for path, position in zip(one.paths, one.positions, strict=True)
        ]
    return {
        "name": name,
        "incarnation": log_name(one.incarnation),
        "paths": [str(path) for path in one.paths],
        "through": one.through,
        "difference": difference,
    }
