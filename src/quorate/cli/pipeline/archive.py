"""``quorate pipeline archive``: copy a log into Parquet files for any reader of Parquet."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from quorate.cli.options import WholeNumber, log_name
from quorate.cli.output import print_json, print_line, print_table, tell
from quorate.cli.pipeline.options import job_options
from quorate.cli.pipeline.output import ProgressLine, print_summary
from quorate.cli.pipeline.ranges import (
    existing_log,
    interval,
    pinned,
    range_end,
    range_options,
    size,
)
from quorate.errors import Corrupt, InvalidArgument
from quorate.pipeline.archive.note import (
    APPEND_DATE,
    LOCK,
    ArchiveNote,
    Wanted,
    check_same,
    load,
    save,
)
from quorate.pipeline.files import Files, address, check_apart, check_directory
from quorate.pipeline.job_watch import run_batch
from quorate.pipeline.run_lock import only_run
from quorate.spark.read.options import Moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from quorate.cli.pipeline.options import JobOptions
    from quorate.client.blocking import Log
    from quorate.pipeline.archive.verify import Compared
    from quorate.pipeline.archive.write import Pace

__all__ = ["archive"]

# Seconds between two micro-batches of --follow: each micro-batch makes files.
FOLLOW_S = 60.0
# Fields of a comparison that are shown, in this order.
_SHOWN = ("records", "distinct", "first", "last", "digest", "bad", "bad_digest")


@click.command()
@click.argument("log", callback=log_name)
@click.argument("dest")
@click.option(
    "--decode", type=click.Choice(["raw", "json"]),
    help="raw: key and value as they are. json: each value is an object with the columns of "
    "--schema.  [default: raw, or json with --schema]",
)  # fmt: skip
@click.option(
    "--schema", metavar="DDL", help='The columns of a JSON value: "id long, amount double".'
)
@click.option(
    "--partition-by", metavar="append_date|COLUMN|none",
    help="The column whose values become folders; a column of times gives its day, in UTC.  "
    "[default: append_date]",
)  # fmt: skip
@click.option(
    "--target-file-size", "file_bytes", metavar="SIZE", default="128MB", show_default=True,
    callback=size,
    help="Approximate size of a file, if there is as much to archive; files of the first "
    "micro-batch may be smaller.",
)  # fmt: skip
@click.option(
    "--bad", metavar="DIR",
    help="Directory for records that do not decode, as Parquet with the reason; without it such a "
    "record ends the run.",
)  # fmt: skip
@click.option(
    "--from", "starting", metavar="OFFSET|earliest|@ISO8601",
    callback=range_end("starting", ("earliest",)),
    help="Where the archive begins.  [default: earliest]",
)  # fmt: skip
@click.option(
    "--to", "ending", metavar="OFFSET|@ISO8601", callback=range_end("ending", ()),
    help="Where the archive ends for good: before this offset or time. Without it the archive "
    "grows with the log.",
)  # fmt: skip
@click.option(
    "--verify", is_flag=True,
    help="Afterwards compare the whole archive, and the records in --bad, with the log.",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True, help="Run until Ctrl-C or SIGTERM, with a micro-batch every minute."
)
@click.option(
    "--trigger", "every_s", metavar="1m", callback=interval,
    help="Run until Ctrl-C or SIGTERM, with a micro-batch at this interval (30s, 5m, 1h).",
)  # fmt: skip
@click.option(
    "--max-records-per-batch", "records_max", metavar="N", type=WholeNumber(1),
    help="Maximum records in one micro-batch.",
)  # fmt: skip
@job_options
def archive(
    options: JobOptions,
    log: str,
    dest: str,
    decode: str | None,
    schema: str | None,
    partition_by: str | None,
    file_bytes: int,
    bad: str | None,
    starting: Mapping[str, str],
    ending: Mapping[str, str],
    verify: bool,
    follow: bool,
    every_s: float | None,
    records_max: int | None,
) -> None:
    """Archive the log LOG into Parquet files in the directory DEST.

    Each run takes the new records. Files are named by the offsets that they cover; every reader of
    Parquet sees each record once, even if a run was killed. The options of the archive and its end
    are noted in DEST: later runs need only LOG and DEST.

    \b
    quorate pipeline archive orders /data/orders
    quorate pipeline archive orders /data/orders --verify
    quorate pipeline archive orders /data/typed --schema "id long, amount double"
    """
    if verify and (follow or every_s is not None):
        raise click.UsageError(
            "--verify compares at the end, and --follow and --trigger have no end"
        )
    every_s = every_s if every_s is not None else FOLLOW_S if follow else None
    check_directory("DEST", dest)
    check_directory("--bad", bad)
    with options.client.client() as client:
        source = existing_log(client, log)
        wanted = _wanted(options, source, decode, schema, partition_by, starting, ending)
        with options.session(f"quorate archive {log}") as spark:
            # These modules need PySpark, whose absence the session explains.
            from quorate.pipeline.archive.write import Pace

            pace = Pace(file_bytes, records_max, every_s)
            dest = address("DEST", dest, spark.sparkContext.master)
            bad = None if bad is None else address("--bad", bad, spark.sparkContext.master)
            files = Files(spark, dest)
            # An error is raised here, before the lock makes the directory.
            _meant(spark, source, load(files), dest, wanted, bad)
            with only_run(files, LOCK):
                found = load(files)
                noted = _meant(spark, source, found, dest, wanted, bad)
                if noted != found:
                    save(files, noted)
                noted = _extend(options, spark, source, noted, dest, pace)
                if verify:
                    _verify(options, spark, noted, dest)


def _wanted(
    options: JobOptions,
    source: Log,
    decode: str | None,
    schema: str | None,
    partition_by: str | None,
    starting: Mapping[str, str],
    ending: Mapping[str, str],
) -> Wanted:
    """The options of the command line, with offsets in place of times."""
    if decode == "json" and schema is None:
        raise click.UsageError('--decode json needs --schema "id long, amount double"')
    if decode == "raw" and schema is not None:
        raise click.UsageError("--decode raw takes no --schema")
    chosen = range_options(options.cluster, source.name, {**starting, **ending})
    if isinstance(chosen.ending, Moment) and chosen.ending.us > time.time_ns() // 1000:
        raise InvalidArgument("--to lies in the future: leave it out, and the archive grows")
    range_ = pinned(source, chosen)
    return Wanted(
        decode=decode if schema is None else "json",
        schema=schema,
        partition_by=partition_by,
        start=range_.start if starting else None,
        to=range_.stop if ending else None,
    )


def _meant(
    spark: SparkSession,
    source: Log,
    found: ArchiveNote | None,
    dest: str,
    wanted: Wanted,
    bad: str | None,
) -> ArchiveNote:
    """The archive that was found, or a new one, as it is to be noted; raises if an option is wrong
    or contradicts the note."""
    from quorate.pipeline.archive.rows import Layout

    if found is not None:
        check_same(found, source.name, source.incarnation, wanted, dest)
        meant = found if bad is None else replace(found, bad=bad)
    else:
        start = wanted.start if wanted.start is not None else source.first_offset()
        meant = ArchiveNote(
            log=source.name,
            incarnation=source.incarnation,
            decode=wanted.decode or "raw",
            schema=wanted.schema,
            partition_by=wanted.partition_by or APPEND_DATE,
            start=start,
            to=wanted.to,
            stop=start,
            repeated_from=start,
            bad=bad,
        )
        Layout(meant)
    check_apart(spark, meant.bad, "DEST", dest)
    return meant


def _extend(
    options: JobOptions,
    spark: SparkSession,
    source: Log,
    before: ArchiveNote,
    dest: str,
    pace: Pace,
) -> ArchiveNote:
    from quorate.pipeline.archive.write import extend

    endless = pace.every_s is not None
    if endless and not options.as_json:
        tell(f"{before.log} is archived until Ctrl-C")
    began = time.monotonic()
    with ProgressLine(before.log) as line:
        after, done, ended = extend(spark, options.cluster, source, before, dest, pace, line)
    interrupted = ended is not None and ended.interrupted
    print_summary(
        {
            "log": after.log,
            "archive": dest,
            "archived": done.rows,
            "bad": done.bad if after.schema is not None else None,
            "files": done.files,
            "bytes": done.size,
            "first": after.start,
            "next": after.stop,
            "complete": after.complete if after.to is not None else None,
            "seconds": round(time.monotonic() - began, 1),
        },
        as_json=options.as_json,
    )
    if interrupted and not endless:
        raise KeyboardInterrupt
    return after


def _verify(options: JobOptions, spark: SparkSession, archive: ArchiveNote, dest: str) -> None:
    from quorate.pipeline.archive.verify import compare

    with ProgressLine(f"verify {archive.log}") as line:
        compared = run_batch(spark, lambda: compare(spark, options.cluster, archive, dest), line)
    _show(options, archive, compared)
    if compared.differences:
        raise Corrupt(f"{dest} is not what {archive.log} has: {'; '.join(compared.differences)}")


def _show(options: JobOptions, archive: ArchiveNote, compared: Compared) -> None:
    """Show both sides, also if they agree: the user who asks for --verify wants to see them."""
    sides = {"archive": compared.archive._asdict(), "log": compared.log._asdict()}
    if options.as_json:
        print_json({"verified": not compared.differences, **sides})
        return
    print_line()
    rows = [
        [name.replace("_", " "), *map(_shown, (sides["archive"][name], sides["log"][name]))]
        for name in _SHOWN
        if name != "bad_digest" or compared.log.bad or compared.archive.bad
    ]
    print_table(["", "archive", "log"], rows, numbers=["archive", "log"])
    if not compared.differences:
        aside = f", and {archive.bad} has what does not decode" if compared.log.bad else ""
        print_line(f"verified: the archive has what the log has{aside}")


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
