"""``quorate bench``: what a cluster does under one of the loads, as one line of JSON."""

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
    help="Which of the loads above.",
)
@click.option(
    "--seconds",
    metavar="S",
    type=Number(0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="How long is measured, after half a second that is not.",
)
@click.option(
    "--log", "name", metavar="NAME", callback=log_name,
    help="An existing log, which keeps the records.",
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

    Without --log, or if there is no log of that name, one is made and deleted afterwards.
    """
    with options.client() as client:
        log, made = _log(client, name)
        try:
            shape = WORKLOADS[workload]
            # The loop's own end for it: what is raised in the middle of a callback gets lost there.
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            tally = run(load(options.endpoints, log.name, shape, seconds, timeout=options.timeout))
        finally:
            if made:
                # Somebody else may have deleted it, and made another one.
                client.delete_log(log.name, incarnation=log.incarnation)
    print_json(tally.document(shape))


def _log(client: Client, name: str | None) -> tuple[Log, bool]:
    """The one to be loaded, and whether it was made for that."""
    if name is not None and name in client.logs():
        return client.log(name), False
    return client.create_log(name or f"bench-{secrets.token_hex(4)}"), True
