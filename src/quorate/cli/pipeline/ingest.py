"""``quorate pipeline ingest``: append the rows of files as records."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate.cli.options import WholeNumber, log_name
from quorate.cli.output import tell
from quorate.cli.pipeline.options import job_options
from quorate.cli.pipeline.output import ProgressLine, print_summary
from quorate.cli.pipeline.ranges import existing_log, interval
from quorate.errors import InvalidArgument
from quorate.pipeline.checkpoints import StreamCheckpoint, checkpoint_for
from quorate.pipeline.files import address, check_apart, check_directory, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorate.cli.pipeline.options import JobOptions
    from quorate.client.blocking import Log
    from quorate.pipeline.ingest.file_rows import Columns
    from quorate.pipeline.ingest.sources import Format, Source

__all__ = ["ingest"]

# Seconds between two looks for new files.
FOLLOW_S = 1.0


@click.command()
@click.argument("src")
@click.argument("log", callback=log_name)
@click.option(
    "--format", "format_", type=click.Choice(["text", "json", "csv", "parquet"]),
    help="Format of the files: lines, one JSON object a line, CSV with a header, Parquet. Default: "
    "by the ends of their names; other files are left alone. A blank line is a row in text only.",
)  # fmt: skip
@click.option("--value", metavar="COL", help="Column for the value. Default: the row as JSON.")
@click.option("--key", metavar="COL", help="Column for the key. Default: no key.")
@click.option(
    "--timestamp", metavar="COL",
    help="Column for the time: ISO 8601, UTC without a zone, or milliseconds since 1970. A row "
    "without a time makes no record.",
)  # fmt: skip
@click.option(
    "--schema", metavar="DDL",
    help='Types of the columns of CSV: "id long, amount double". Default: text.',
)  # fmt: skip
@click.option(
    "--bad", metavar="DIR",
    help="Directory for rows that make no record, as JSON with file and reason; without it such a "
    "row ends the run.",
)  # fmt: skip
@click.option("--follow", is_flag=True, help="Watch SRC for new files until Ctrl-C or SIGTERM.")
@click.option(
    "--trigger", "every_s", metavar="1s", callback=interval,
    help="Watch SRC, and look for new files at this interval (1s, 5m).",
)  # fmt: skip
@click.option(
    "--max-files-per-batch", "files_max", metavar="N", type=WholeNumber(1),
    help="Maximum files in one micro-batch. Default: about 256 MB of files.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="DIR",
    help="Directory that notes which files were taken. Default: in .quorate beside or in SRC, if "
    "Spark runs on this machine.",
)  # fmt: skip
@job_options
def ingest(
    options: JobOptions,
    src: str,
    log: str,
    format_: Format | None,
    value: str | None,
    key: str | None,
    timestamp: str | None,
    schema: str | None,
    bad: str | None,
    follow: bool,
    every_s: float | None,
    files_max: int | None,
    checkpoint: str | None,
) -> None:
    """Append the rows of SRC, a file or a directory of files, to the log LOG.

    Each file is taken once, as a whole: another run reads only new files. Every row is in the log
    once, even if a run was killed. A line of text becomes a value as it is; a row of JSON, CSV or
    Parquet becomes a JSON object.

    \b
    quorate pipeline ingest orders.jsonl orders --key id
    quorate pipeline ingest /data/incoming orders --follow
    """
    every_s = every_s if every_s is not None else FOLLOW_S if follow else None
    # Checked before Spark is started, which takes long.
    local = local_path(src)
    if local is not None and not local.exists():
        raise InvalidArgument(f"{src} does not exist: SRC is a file or a directory")
    check_directory("--bad", bad)
    check_directory("--checkpoint", checkpoint)
    with options.client.client() as client:
        target = existing_log(client, log)
        with options.session(f"quorate ingest {log}") as spark:
            # These modules need PySpark, whose absence the session explains.
            from quorate.pipeline.ingest.file_rows import Columns
            from quorate.pipeline.ingest.sources import find_source

            master = spark.sparkContext.master
            where = address("SRC", src, master)
            bad = None if bad is None else address("--bad", bad, master)
            check_apart(spark, bad, "SRC", where)
            source = find_source(spark, where, format_, schema, waiting=every_s is not None)
            source = source.in_micro_batches(files_max)
            if source.others:
                more = ", …" if len(source.others) > 3 else ""
                tell(f"no {source.format}, so left alone: {', '.join(source.others[:3])}{more}")
            kept = _checkpoint(spark, source, target, checkpoint)
            columns = Columns(value, key, timestamp)
            with kept.held():
                _run(options, spark, source, target, columns, kept.location, bad, every_s)


def _checkpoint(
    spark: SparkSession, source: Source, log: Log, given: str | None
) -> StreamCheckpoint:
    """The checkpoint of a run: by default where the files are, so that every run finds the same."""
    master = spark.sparkContext.master
    if given is not None:
        location = address("--checkpoint", given, master)
    elif "://" in source.address:
        raise InvalidArgument(
            f"--checkpoint is needed: it says which files of {source.address} were taken, the next "
            f"run must find it, and no place is known to be yours alone"
        )
    else:
        location = checkpoint_for(None, _beside(Path(source.address), log.name), master)
    owner = {
        "source": source.address,
        "format": source.format,
        "log": log.name,
        "incarnation": log.incarnation,
    }
    return StreamCheckpoint(spark, location, owner)


def _beside(path: Path, log: str) -> str:
    """A checkpoint in a directory, or beside a file. Spark skips its name in search of files."""
    if path.is_dir():
        folder, name = path, f"ingest-{log}"
    else:
        folder, name = path.parent, f"ingest-{path.name}-{log}"
    if not os.access(folder, os.W_OK):
        raise InvalidArgument(
            f"--checkpoint is needed: it would be in {folder}, where this user cannot write"
        )
    return str(folder / ".quorate" / name)


def _run(
    options: JobOptions,
    spark: SparkSession,
    source: Source,
    log: Log,
    columns: Columns,
    checkpoint: str,
    bad: str | None,
    every_s: float | None,
) -> None:
    from quorate.pipeline.ingest.append import ingest as append_files

    if every_s is not None and not options.as_json:
        tell(f"{source.address} is watched until Ctrl-C")
    began = time.monotonic()
    with ProgressLine(log.name) as line:
        done, ended = append_files(
            spark,
            options.cluster,
            source,
            log,
            columns,
            checkpoint,
            bad=bad,
            every_s=every_s,
            watch=line,
        )
    print_summary(
        {
            "source": source.address,
            "format": source.format,
            "log": log.name,
            "read": done.read,
            "appended": done.appended,
            "bad": done.bad if bad is not None else None,
            "end": log.end_offset(),
            "seconds": round(time.monotonic() - began, 1),
            "checkpoint": checkpoint,
        },
        as_json=options.as_json,
    )
    if ended.interrupted and every_s is None:
        raise KeyboardInterrupt
