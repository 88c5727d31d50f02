"""``quorate bench``: the throughput and latency of a cluster under one load, as a line of JSON."""

from __future__ import annotations

import secrets
import signal
from typing import TYPE_CHECKING

import click

from quorate.cli.loading import load
from quorate.cli.options import Number, client_options, log_name
from quorate.cli.output import print_json
from quorate.cli.workloads import WORKLOADS
from quorate.net.loop import run

if TYPE_CHECKING:
    from quorate.cli.options import ClientOptions
    from quorate.client.blocking import Client, Log

__all__ = ["bench"]

SECONDS = 5.0


@click.command()
@click.option(
    "--workload",
    type=click.Choice(list(WORKLOADS)),
    required=True,
    help="One of the loads above.",
)
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="Seconds to measure, after half a second of warm-up.",
)
@click.option(
    "--log", "name", metavar="NAME", callback=log_name,
    help="An existing log; it keeps the records.",
)  # fmt: skip
@client_options
def bench(options: ClientOptions, workload: str, seconds: float, name: str | None) -> None:
    """Measure appends to a log, and print one line of JSON.

    \b
    W1  100 B, one after the other
    W2  100 B, 64 in flight
    W3  100 B, 2000 in flight over 4 connections
    W4  batches of 100 x 100 B, 64 in flight
    W5  batches of 100 x 1 KiB, 32 in flight

    Without --log, or if no log has that name, a log is made and deleted afterwards.
    """
    with options.client() as client:
        log, made = _log(client, name)
        try:
            shape = WORKLOADS[workload]
            # The loop replaces Python's own handler with one that cancels the task: an exception
            # that is raised in the middle of a callback gets lost there.
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            tally = run(load(options.endpoints, log.name, shape, seconds, timeout=options.timeout))
        finally:
            if made:
                # Another client may have deleted the log, and made a new one of the same name.
                client.delete_log(log.name, incarnation=log.incarnation)
    print_json(tally.document(shape))


def _log(client: Client, name: str | None) -> tuple[Log, bool]:
    """The log to load, and whether it was made for this run."""
    if name is not None and name in client.logs():
        return client.log(name), False
    return client.create_log(name or f"bench-{secrets.token_hex(4)}"), True
