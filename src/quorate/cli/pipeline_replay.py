"""``quorate pipeline replay``: dead letters go back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorate.cli.options import log_name
from quorate.cli.output import print_line
from quorate.cli.pipeline_options import job_options
from quorate.cli.pipeline_output import ProgressLine, print_summary
from quorate.cli.pipeline_ranges import existing_log

if TYPE_CHECKING:
    from quorate.cli.pipeline_options import JobOptions

__all__ = ["replay"]


@click.command()
@click.argument("log", metavar="LOG.dlq", callback=log_name)
@click.option(
    "--to", "target", metavar="LOG", required=True, callback=log_name,
    help="The log that they go to: the one they came from, or another.",
)  # fmt: skip
@click.option(
    "--where", metavar="SQL",
    help="Only those for which this holds, such as \"error_code = 'CHECK_FAILED'\". There are key, "
    "value, offset, timestamp, error_code, error_message, source_log, source_offset, pipeline, "
    "left_out.",
)  # fmt: skip
@job_options
def replay(options: JobOptions, log: str, target: str, where: str | None) -> None:
    """Append the dead letters of the log LOG.dlq to another log, as they were.

    They have their key, value, headers and time again; what the letter said about the error is
    left out. The log remembers how far it went, for each --where: run it again, and only new
    letters are taken, whatever was killed in between. The letters stay where they are.

    \b
    quorate pipeline replay orders.dlq --to orders
    quorate pipeline replay orders.dlq --to orders --where "source_offset >= 1000"
    """
    with options.client.client() as client:
        letters, to = existing_log(client, log), existing_log(client, target)
        with options.session(f"quorate replay {log}") as spark:
            # Needs PySpark, whose absence the session explains.
            from quorate.pipeline.replaying import replay as append_letters

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
