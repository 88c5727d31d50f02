"""``quorate pipeline run``: run the pipeline of a file."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from quorate.cli.options import WholeNumber
from quorate.cli.output import print_line, tell
from quorate.cli.pipeline.options import job_options
from quorate.cli.pipeline.output import ProgressLine, print_summary
from quorate.cli.pipeline.ranges import (
    existing_log,
    interval,
    pinned,
    range_end,
    range_options,
)
from quorate.pipeline.checkpoints import StreamCheckpoint, checkpoint_for, default_checkpoint
from quorate.pipeline.files import check_directory
from quorate.pipeline.job_watch import follow, run_batch
from quorate.pipeline.pipeline_file import NeedsSession, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quorate.cli.pipeline.options import JobOptions
    from quorate.pipeline.definition import Pipeline
    from quorate.pipeline.pipeline_run import PipelineRun
    from quorate.spark.read.planning import Span

__all__ = ["run"]

_PLACE = "OFFSET|earliest|latest|@ISO8601"


class _Pace(NamedTuple):
    """The interval and the size of the micro-batches of a stream."""

    # Seconds between two micro-batches; None: take the records that are there, and end.
    trigger_s: float | None
    # Maximum records in one micro-batch.
    records_max: int | None


@click.command(short_help="Run a pipeline: decode, check, transform, write exactly once.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--dry-run", is_flag=True,
    help="Check the pipeline and its logs, show the plan and some rows of the result; write "
    "nothing.",
)  # fmt: skip
@click.option(
    "--trigger", "trigger_s", metavar="1s", callback=interval,
    help="Run until Ctrl-C or SIGTERM, with a micro-batch at this interval (500ms, 1s, 5m). "
    "Default: take the records that are there, and end.",
)  # fmt: skip
@click.option(
    "--from", "starting", metavar=_PLACE, callback=range_end("starting"),
    help="Backfill: take only a range, from here on. The pipeline's name and the range identify a "
    "backfill, so it can be repeated; the checkpoint is left alone.",
)  # fmt: skip
@click.option(
    "--to",
    "ending",
    metavar=_PLACE,
    callback=range_end("ending"),
    help="Backfill: end before this place.",
)
@click.option(
    "--checkpoint", metavar="DIR",
    help="Directory that notes how far the pipeline came. Default: .quorate/checkpoints/NAME "
    "beside FILE, if Spark runs on this machine.",
)  # fmt: skip
@click.option(
    "--max-records-per-batch", "records_max", metavar="N", type=WholeNumber(1),
    help="Maximum records in one micro-batch.",
)  # fmt: skip
@job_options
def run(
    options: JobOptions,
    file: Path,
    dry_run: bool,
    trigger_s: float | None,
    starting: dict[str, str],
    ending: dict[str, str],
    checkpoint: str | None,
    records_max: int | None,
) -> None:
    """Run the pipeline of FILE, a Python file with @pipeline or TOML with SQL.

    A run takes the new records of the source, writes their results exactly once, and ends. Records
    that cannot be decoded or fail a check go to the dead-letter log. If a run was stopped or
    killed, run it again.

    \b
    quorate pipeline init paid               writes a file to begin with
    quorate pipeline run paid.py --dry-run   shows the plan
    quorate pipeline run paid.py             takes the new records
    quorate pipeline run paid.py --from @2026-01-01 --to @2026-02-01
    """
    ends = starting | ending
    if ends and (trigger_s is not None or checkpoint is not None):
        raise click.UsageError("--from and --to cannot go with --trigger or --checkpoint")
    prepared = None
    # Checked before Spark is started, which takes long.
    with suppress(NeedsSession):
        prepared = _prepared(options, file, ends, checkpoint)
    with options.session(f"quorate pipeline {file.stem}") as spark:
        # This module needs PySpark, whose absence the session explains.
        from quorate.pipeline.pipeline_run import PipelineRun

        pipeline, span = prepared or _prepared(options, file, ends, checkpoint)
        made = PipelineRun(spark, pipeline.seen_from(file.absolute().parent), options.cluster)
        kept = None
        if not ends:
            default = default_checkpoint(file, pipeline.name)
            location = checkpoint_for(checkpoint, default, spark.sparkContext.master)
            kept = StreamCheckpoint(spark, location, _owner(pipeline, span))
        if dry_run:
            _show_plan(options, made, span, kept)
        elif kept is None:
            _backfill(options, made, span)
        else:
            with kept.held():
                _stream(options, made, kept, _Pace(trigger_s, records_max))


def _prepared(
    options: JobOptions, file: Path, ends: Mapping[str, str], checkpoint: str | None
) -> tuple[Pipeline, Span]:
    """The pipeline, and the range of its source; every error in them is raised here."""
    check_directory("--checkpoint", checkpoint)
    pipeline = load(file)
    if pipeline.sink.kind == "parquet":
        check_directory("sink", pipeline.seen_from(file.absolute().parent).sink.name)
    if not ends:
        checkpoint_for(checkpoint, default_checkpoint(file, pipeline.name), options.master)
    return pipeline, _look(options, pipeline, ends)


def _look(options: JobOptions, pipeline: Pipeline, ends: Mapping[str, str]) -> Span:
    """The range of the source as it is now. All logs have to exist: no pipeline makes one."""
    chosen = range_options(options.cluster, pipeline.source.name, ends)
    with options.client.client() as client:
        source = existing_log(client, pipeline.source.name)
        for place in (pipeline.sink, pipeline.dead_letter):
            if place is not None and place.kind == "log":
                existing_log(client, place.name)
        return pinned(source, chosen)


# -- a stream ----------------------------------------------------------------------------------


def _owner(pipeline: Pipeline, span: Span) -> dict[str, str]:
    return {
        "pipeline": pipeline.name,
        "source": str(pipeline.source),
        "incarnation": span.incarnation,
        "sink": str(pipeline.sink),
    }


def _stream(options: JobOptions, run: PipelineRun, kept: StreamCheckpoint, pace: _Pace) -> None:
    pipeline = run.pipeline
    if pace.trigger_s is not None:
        tell(f"{pipeline.name} runs until Ctrl-C")
    began = time.monotonic()
    with ProgressLine(pipeline.name) as line:
        ended = follow(lambda: run.stream(kept.location, pace.trigger_s, pace.records_max), line)
    progress = ended.progress
    seconds = time.monotonic() - began
    print_summary(
        {
            "pipeline": pipeline.name,
            "source": str(pipeline.source),
            "sink": str(pipeline.sink),
            "read": progress.read,
            "written": progress.counts.get("written", 0),
            "dead_letters": progress.counts.get("dead_letters", 0),
            "portions": progress.micro_batches,
            "reached": kept.reached(pipeline.source.name),
            "lag": progress.lag,
            "seconds": round(seconds, 1),
            "records_per_s": round(progress.read / max(0.001, seconds)),
            "checkpoint": kept.location,
        },
        as_json=options.as_json,
    )
    # A run with --trigger always ends like this.
    if ended.interrupted and pace.trigger_s is None:
        tell("the micro-batch under way is not written; the next run repeats it")
        raise KeyboardInterrupt


# -- a backfill --------------------------------------------------------------------------------


def _backfill(options: JobOptions, run: PipelineRun, span: Span) -> None:
    began = time.monotonic()
    pipeline = run.pipeline
    with ProgressLine(f"{pipeline.name} {span.start} to {span.stop}") as line:
        done = run_batch(run.spark, lambda: run.backfill(span), line)
    letters = None if pipeline.dead_letter is None else str(pipeline.dead_letter)
    written = {} if done.already else done.written
    print_summary(
        {
            "pipeline": pipeline.name,
            "source": str(pipeline.source),
            "sink": str(pipeline.sink),
            "from": span.start,
            "to": span.stop,
            "read": span.records,
            "written": written.get(str(pipeline.sink), 0),
            "dead_letters": written.get(letters or "", 0),
            # Rows that an earlier run wrote, to the sink and to the dead letters.
            "already": sum(done.written.values()) if done.already else 0,
            "seconds": round(time.monotonic() - began, 1),
        },
        as_json=options.as_json,
    )
    if done.already:
        tell("this range was written before: nothing was added")


# -- a dry run ---------------------------------------------------------------------------------


def _show_plan(
    options: JobOptions, run: PipelineRun, span: Span, kept: StreamCheckpoint | None
) -> None:
    """Show the plan of a run; ``kept`` is None for a backfill, which has no checkpoint."""
    pipeline = run.pipeline
    start = span.start
    if kept is not None:
        kept.check()
        reached = kept.reached(pipeline.source.name)
        start = span.start if reached is None else reached
    sample = run_batch(run.spark, lambda: run.sample(span), lambda _: None)
    print_summary(
        {
            "pipeline": pipeline.name,
            "source": str(pipeline.source),
            "from": start,
            "to": span.stop,
            "lag": span.stop - start,
            "columns_in": sample.columns_in,
            "columns_out": sample.columns_out,
            "sink": str(pipeline.sink),
            "dead_letter": None if pipeline.dead_letter is None else str(pipeline.dead_letter),
            "checkpoint": None if kept is None else kept.location,
            "sampled": sample.read,
            "sampled_refused": sample.refused,
            "first_refusal": sample.reason,
            "rows": sample.rows if options.as_json else None,
        },
        as_json=options.as_json,
    )
    if not options.as_json:
        print_line()
        for row in sample.rows or ["no rows"]:
            print_line(row)
        tell("nothing was written")
