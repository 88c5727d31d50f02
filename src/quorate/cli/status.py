"""``quorate status``: the state of the nodes, logs and replicas of a cluster."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from quorate.cli.options import client_options
from quorate.cli.output import error_label, print_json, print_line, print_table, tell
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quorate.cli.options import ClientOptions
    from quorate.client.blocking import Client
    from quorate.client.results import ClusterStatus, LogSummary, NodeSummary, ReplicaSummary

__all__ = ["halted_lines", "replica_rows", "short", "status"]

WATCH_S = 1.0
NUMBERS = ("TERM", "FIRST", "END", "COMMITTED")


@click.command()
@click.option("--watch", is_flag=True, help="Show the status every second, until Ctrl-C.")
@client_options
def status(options: ClientOptions, watch: bool) -> None:
    """Show nodes, logs and replicas, as far as the nodes that answer know.

    One node that answers is enough, even without a leader.
    """
    with options.client() as client:
        if not watch:
            _show(options, client.status())
            return
        # Ctrl-C is the usual end of --watch.
        with suppress(KeyboardInterrupt):
            while True:
                _look(options, client)
                time.sleep(WATCH_S)


def _look(options: ClientOptions, client: Client) -> None:
    """Print the status, or the error: a cluster that is away is watched until it is back."""
    try:
        found = client.status()
    except QuorateError as error:
        tell(f"{error_label()} {error.code}: {error}")
        return
    if sys.stdout.isatty() and not options.as_json:
        click.clear()
    _show(options, found)


def _show(options: ClientOptions, found: ClusterStatus) -> None:
    if options.as_json:
        print_json(found)
        return
    print_table(
        ("NODE", "ADDRESS", "UP", "DISK"),
        [(node["id"], node["address"], _yes(node["up"]), _disk(node)) for node in found["nodes"]],
    )
    print_line()
    print_table(
        ("LOG", "LEADER", *NUMBERS, "REPLICAS"),
        [_log_row(log) for log in found["logs"]],
        numbers=NUMBERS,
    )
    for node in found["nodes"]:
        if node["why"]:
            silent = click.style(f"{node['id']} does not answer", fg="red")
            print_line(f"{silent}: {node['why']}")
    for line in halted_lines(found["logs"]):
        print_line(line)


def halted_lines(logs: Iterable[LogSummary]) -> Iterator[str]:
    """A line for each replica that its node stopped, with the reason."""
    for log in logs:
        for one in log["replicas"]:
            if one["halted"]:
                stopped = click.style(f"{log['name']} is stopped on {one['node']}", fg="red")
                yield f"{stopped}: {one['halted']}"


def _yes(up: bool) -> str:
    return click.style("yes", fg="green") if up else click.style("no", fg="red")


def _disk(node: NodeSummary) -> str:
    """The share of the node's disk that is in use."""
    used = node["disk_used"]
    if used is None:
        return "-"
    return click.style(f"{used} %, no room", fg="red") if node["full"] else f"{used} %"


def _log_row(log: LogSummary) -> tuple[str, ...]:
    numbers = (log["term"], log["first_offset"], log["end_offset"], log["committed"])
    replicas = ", ".join(_replica(one) for one in log["replicas"])
    return (log["name"], short(log["leader"]), *map(str, numbers), replicas)


def _replica(replica: ReplicaSummary) -> str:
    text = f"{replica['node']} {_state(replica['state'])}"
    if replica["lag"]:
        text += f" -{replica['lag']}"
    return f"{text} {click.style('no room', fg='red')}" if replica["full"] else text


def _state(state: str) -> str:
    colours = {
        "self": "green",
        "append": "green",
        "down": "red",
        "blocked": "red",
        "unsure": "red",
    }
    return click.style(state, fg=colours.get(state, "yellow"))


def short(leader: str | None) -> str:
    return leader or click.style("none", fg="red")


def replica_rows(log: LogSummary) -> list[tuple[str, ...]]:
    """Node, role, priority, match, lag and state of each replica."""
    return [
        (
            one["node"],
            one["role"],
            str(one["priority"]),
            "-" if one["match"] is None else str(one["match"]),
            "-" if one["lag"] is None else str(one["lag"]),
            _state(one["state"]) + (click.style(", no room", fg="red") if one["full"] else ""),
        )
        for one in log["replicas"]
    ]
