"""``quorate pipeline init``: write a pipeline to begin with."""

from __future__ import annotations

from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate.cli.options import log_name
from quorate.cli.output import print_json, print_line
from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["init"]

_FILE = '''\
"""The pipeline {name}: from the log {source} to the log {sink}.

    quorate pipeline run {name}.py --dry-run    shows what it would do
    quorate pipeline run {name}.py              takes the new records, and ends
    quorate pipeline run {name}.py --trigger 1s runs until Ctrl-C
"""

from quorate.pipeline import pipeline


@pipeline(
    source="log:{source}",
    # The format of a value: json or csv with a schema, text, or raw.
    decode="json",
    schema="id long not null, amount double, currency string",
    # Conditions in SQL. A record that does not meet them goes to the dead letters.
    checks={{"amount is positive": "amount > 0"}},
    # log:NAME, or parquet:DIR for files.
    sink="log:{sink}",
    # The column that becomes the key of a record.
    key="id",
    # For records that do not decode or fail a check. Without it such a record ends the run.
    dead_letter="log:{dead_letter}",
)
def {name}(df):
    """``df`` has the columns of the schema, and ``_source``: log, offset, key, timestamp, headers.

    Any operation of Spark on a stream may stand here. Rows become JSON objects in the sink, unless
    they have a column ``value``.
    """
    return df.where("currency = 'EUR'").select("id", "amount")
'''


@click.command()
@click.argument("name")
@click.option("--source", metavar="LOG", callback=log_name, help="Log to read. Default: NAME.in.")
@click.option("--sink", metavar="LOG", callback=log_name, help="Log to write. Default: NAME.out.")
@click.option(
    "--dead-letter", metavar="LOG", callback=log_name,
    help="Log for records that do not decode or fail a check. Default: NAME.dlq.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def init(
    name: str, source: str | None, sink: str | None, dead_letter: str | None, as_json: bool
) -> None:
    """Write NAME.py, a pipeline to begin with, into this directory.

    The pipeline reads JSON, checks it, passes some of it on, and runs as it stands. A file that
    exists already is left alone.
    """
    if not name.isidentifier() or iskeyword(name):
        raise click.BadParameter(
            f"{name!r} cannot be the name of a Python function", param_hint="NAME"
        )
    logs = (source or f"{name}.in", sink or f"{name}.out", dead_letter or f"{name}.dlq")
    file = Path(f"{name}.py")
    text = _FILE.format(name=name, source=logs[0], sink=logs[1], dead_letter=logs[2])
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise InvalidArgument(f"{file} is there already; choose another name") from None
    if as_json:
        print_json({"file": str(file), "source": logs[0], "sink": logs[1], "dead_letter": logs[2]})
    else:
        for line in _next_steps(file, logs):
            print_line(line)


def _next_steps(file: Path, logs: Sequence[str]) -> list[str]:
    record = """{"id": 1, "amount": 9.5, "currency": "EUR"}"""
    return [
        f"{file} written. Next:",
        *(f"  quorate log create {log}" for log in logs),
        f"  echo '{record}' | quorate append {logs[0]}",
        f"  quorate pipeline run {file} --dry-run",
        f"  quorate pipeline run {file}",
        f"  quorate read {logs[1]}",
    ]
