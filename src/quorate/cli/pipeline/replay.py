"""``quorate pipeline replay``: append dead letters to a log again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorate.cli.options import log_name
from quorate.cli.output import print_line
from quorate.cli.pipeline.options import job_options
from quorate.cli.pipeline.output import ProgressLine, print_summary
from quorate.cli.pipeline.ranges import existing_log

if TYPE_CHECKING:
    from quorate.cli.pipeline.options import JobOptions

__all__ = ["replay"]


@click.command()
@click.argument("log", metavar="LOG.dlq", callback=log_name)
@click.option(
    "--to", "target", metavar="LOG", required=True, callback=log_name,
    help="Log that the letters go to: the one that they came from, or another.",
)  # fmt: skip
@click.option(
    "--where", metavar="SQL",
    help="Only letters for which this holds, such as \"error_code = 'CHECK_FAILED'\". The columns "
    "are key, value, offset, timestamp, error_code, error_message, source_log, source_offset, "
    "pipeline, left_out.",
)  # fmt: skip
@job_options
def replay(options: JobOptions, log: str, target: str, where: str | None) -> None:
    """Append the dead letters of the log LOG.dlq to another log, as they were.

    Each record has its key, value, headers and time again, without the description of the error.
    The target log remembers the last letter for each --where: another run takes only new letters,
    even if a run was killed. The letters stay in LOG.dlq.

    \b
    quorate pipeline replay orders.dlq --to orders
    quorate pipeline replay orders.dlq --to orders --where "source_offset >= 1000"
    """
    with options.client.client() as client:
        letters, to = existing_log(client, log), existing_log(client, target)
        with options.session(f"quorate replay {log}") as spark:
            # This module needs PySpark, whose absence the session explains.
            from quorate.pipeline.replay import replay as append_letters

            with ProgressLine(log) as line:
                done = append_letters(spark, options.cluster, letters, to, where, line)
    print_summary(
        {
            "letters": log,
            "to": target,
            "replayed": done.replayed,
            "skipped": done.skipped,
            "first": done.start,
            "next": done.stop,
        },
        as_json=options.as_json,
    )
    if done.start == done.stop and not options.as_json:
        print_line("nothing new: all letters were looked at before")
